"""Chains of a model: in threads, in processes, on several nodes; and in a folder, to go on.

Each room imports only itself and the rooms before it.

=================  =================================================================================
``progress``       how far chains in processes are
``blocks``         the file of a block of draws, and arrays that are read from many of them
``kernel``         blocks of draws by nutpie, with a metric, a step size and a position as given
``chain_settings`` the settings that the draws of a run depend on, in one form
``chain_model``    the model and the data that the draws of a run are of, as digests
``chain_folder``   the folder of a run: of which model it is, and who may write to it
``stored_chains``  a run in a folder: chains block after block, and the tree of all draws
``nodes``          chains on several nodes: each samples some of them
``processes``      chains of nutpie with members, each in a process of its own
``members``        how many members each chain gets, by a measurement
``metric``         the metric that is named, or chosen and kept with the model
``sampling``       `sample`: chooses how the chains are sampled, and calls `pm.sample`
``sampler``        `Sampler`: `sample` as an object
``node_main``      what the process of a node's chains runs
=================  =================================================================================
"""
