"""All that moves between processes: commands on channels, arrays on communicators.

Each room imports only itself and the rooms before it.

==================  ==============================================================================
``serialization``   objects as bytes
``processes``       start processes, guard them, and say how they ended
``pools``           workers of Dask, Ray, MPI and executors, which run batches for this process
``shared_state``    words in shared memory: who writes them, and who waits for them
``channels``        carry commands to the members, and reports back to the master
``communicators``   move and reduce arrays between members
==================  ==============================================================================
"""
