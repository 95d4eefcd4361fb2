"""Chains of a model: in threads, in processes with members, and on several nodes.

Each room imports only itself and the rooms before it.

=============  ===================================================================================
``progress``   how far chains in processes are
``nodes``      chains on several nodes: each samples some of them
``processes``  chains of nutpie with members, each in a process of its own
``members``    how many members each chain gets, by a measurement
``sampling``   `sample`: chooses how the chains are sampled, and calls `pm.sample`
``sampler``    `Sampler`: `sample` as an object
``node_main``  what the process of a node's chains runs
=============  ===================================================================================
"""
