"""After sampling: each draw goes through one compiled function, on all cores.

====================  ============================================================================
``predictive``        `sample_posterior_predictive` and `sample_prior_predictive`
``densities``         `compute_log_likelihood` and `compute_log_prior`
``deterministics``    `compute_deterministics`
``loo``               `loo`: PSIS-LOO, by the work ``loo_rows``
``subsample``         `loo_subsample`: PSIS-LOO of some rows, and an approximation of all
``calculation``       ``Calculation``: PyMC's compiled function, its draws, and their random streams
``observed``          rows of an observed variable, and their log-likelihoods at the draws
``labels``            values of rows, in the order of the rows
``elpd``              results of ArviZ, and warnings about rows
``points``            ``Points``: draws of variables, as arrays over all draws
``blocks``            which draws are computed together, and by whom
``loo_rows``          ``LooRows``: log-likelihoods of blocks of rows, or of chosen ones; PSIS-LOO
``some_rows``         ``SomeRows``: the graph of some rows, computed from these rows of the data
``moments``           ``MatchedRows``: moment matching of rows whose Pareto k is large
``unconstrained``     ``Unconstrained``: draws without bounds, and a model's densities there
``pareto``            Pareto-smoothed importance sampling of a row, in numba
``work``              ``Work``: what can be divided over processes, and where results go
``division``          divides a work over a group of its own
``pooled``            ``PooledDivision``: divides it over the workers of a pool, as items of `map`
``store``             ``Store``: zarr arrays on disk, of which each process writes whole chunks
====================  ============================================================================
"""
