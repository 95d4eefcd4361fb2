"""Many models: items in slots of cores, one compilation for all models of one graph.

=================  ===============================================================================
``mapped``         `map`: checks arguments, and runs the items
``where``          ``Where``: slots of this machine or a pool, and the limit of an item
``parent``         ``Fleet``: gives items to processes in slots, and hears how they end
``record``         ``Record``: how they have ended
``pooled``         ``PooledItems``: the same, in batches that a pool's workers run
``batches``        what such a worker does: it gives the items to a process of its own
``pace``           how many items a batch has
``entry``          what such a process runs: fits its items one by one
``fitted``         ``Sampled``: what is done with what `fit` returns
``compilations``   compiled models of nutpie, which models of one graph share
``one_graph``      a model as a graph whose data are variables, and its key
``digests``        digests of items, the same in every process
``packing``        `fit` and items as bytes
``names``          the names of items, and what follows from them: seeds, names of files
``results``        ``Fits``: results of items, each of which is whole or missing
``bar``            ``Bar``: a line that tells how many are done
``stores``         where they are kept; ``OwnFolder``: a folder that only this user writes to
``remote``         ``Remote``: an address of fsspec, where each result is signed
=================  ===============================================================================

Slots and processes are those of ``synkhronos.search`` (``_transport.processes.slots``). Pools are
those of ``_transport.pools``.
"""
