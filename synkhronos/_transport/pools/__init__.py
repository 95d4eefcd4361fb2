"""Pools: workers of another program, such as Dask, which run batches for this process.

================  ================================================================================
``pool``          ``Pool``: what all of them can do
``_executors``    executors of ``concurrent.futures``
``_mpi``          ``MPIPoolExecutor`` of mpi4py
``_dask``         clients of Dask
``_ray``          Ray
``chosen``        which one the user has given
================  ================================================================================

One file each, of at most 60 lines, which alone imports the library. This package schedules nothing
between machines: a pool does.
"""
