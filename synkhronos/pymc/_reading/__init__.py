"""A model is read: which terms are sums over rows, and what their rows are computed from.

Each room imports only itself and the rooms before it.

===============  =================================================================================
``models``       the model that is given, and copies of it
``bambi``        models that Bambi has built: how its own fit changes their draws
``rewrites``     rewrites of a term's graph: fewer costly functions, constants from data
``declared``     what the user declares: operations that keep rows apart
``facts``        what is known of variables: lengths, and what is free
``assumptions``  checks the operations that are read as they are declared
``counts``       which lengths are the number of rows, whatever data are set
``lengths``      arrays that are made with given lengths, for any number of rows
``rows``         which variables of a term lie along its rows
``summands``     sums over rows in a scalar log-density, which are divided, and the rest
``terms``        finds the terms of a log-density that can be divided, and the axis of each
``reading``      `read`: the `Reading` of a model, which everything that follows takes
===============  =================================================================================
"""
