"""Pools: workers of another program, such as Dask, which run batches for this process.

================  ================================================================================
``pool``          ``Pool``: what all of them can do
``_executors``    executors of ``concurrent.futures``
``_mpi``          ``MPIPoolExecutor`` of mpi4py
``_dask``         clients of Dask
``_ray``          Ray
``chosen``        which one the user has given
``stations``      ``Here``: what a worker keeps between batches, and the cores that these use
``batches``       ``Batches``: the batches of a call go out, and their ends come back
================  ================================================================================

Each pool has a short file, which alone imports the library. This package schedules nothing between
machines: a pool does. `map` and `search` run on all of them.
"""
