"""A model is read: which terms are sums over rows, and what their rows are computed from.

Each room imports only itself and the rooms before it.

==================  ==============================================================================
``initial_values``  a model without its initial values, for copies that need none
``bambi``           models that Bambi has built: how its own fit changes their draws
``rewrites``        rewrites of a term's graph: fewer costly functions, constants from data
``counts``          which lengths are the number of rows, whatever data are set
``declared``        operations that the user declares to keep rows apart
``rows``            which variables of a term lie along its rows
``summands``        sums over rows in a scalar log-density, which are divided, and the rest
``selections``      rows that are chosen after their density, such as ``logp[seen]``
``terms``           a model's observed terms and Potentials, and which of them cannot be divided
==================  ==============================================================================
"""
