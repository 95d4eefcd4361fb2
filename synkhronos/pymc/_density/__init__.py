"""A faster log-density: the likelihood as a graph, and its proof. Nothing here needs a group.

Each room imports only itself and the rooms before it.

================  ==================================================================================
``likelihood``    the graph that is computed on rows, and its inputs
``op``            the operation in the graph of a model that a group evaluates
``numba``         its code in mode NUMBA
``jax``           its code in mode JAX
``density``       the likelihood as an operation of the model's function, without a group
``containers``    notices that the user sets the value of a shared variable
``serial``        the data of this operation, and its evaluation with numpy
``faults``        an unexpected exception leaves a model plain, unless it is the user's
``proof``         compares the new log-density with the plain one at random points
``failures``      raises what nutpie and `pm.find_MAP` would take for a bad point
``normals``       multivariate normals whose gradient has a closed form
``regressions``   regressions with normal errors, as quadratic forms
``divided``       what replaces a model's log-density
``draws``         how many draws there are, and gradients for them
``estimate``      the seconds of a gradient, from its graph
``gain``          which terms take less time so; the others stay PyMC's
``faster``        a model with a faster log-density
``step_methods``  which step methods `pm.sample` takes, from one graph of the log-density
``metric``        which metric samples a model in less time, from a short warm-up
``late_numba``    nutpie imported without numba
``late_arviz``    nutpie imported without ArviZ
``adaptation``    the choice of the metric where `pm.sample` calls nutpie
``functions``     PyMC's functions in the mode of groups
``nutpie``        nutpie's functions, compiled in less time
================  ==================================================================================
"""
