"""Models that this machine has compiled before: they start at once, in any process.

Each room imports only itself and the rooms before it.

============  ====================================================================================
``graphs``    the graphs that all functions of a sampler follow from, and their key
``written``   the graph that a model was written in, by which the key of the others is noted
``start``     the function of the initial point: its rewritten graph, evaluated by its operations
``lengths``   its functions for data of other lengths, of their rewritten graphs
``entry``     a compiled model of nutpie as bytes, and back
``models``    leads `pm.sample` to what is kept of a model
``copies``    leads PyMC and nutpie to what is kept of models of `fast`
``fast``      `fast`: a copy of a model with a faster log-density
``estimate``  the rows of a model, by which `sample` chooses a way
============  ====================================================================================

A key is a digest of graphs, not of how they were written. So nothing that a model was made by can
change its log-density, its Deterministics or its initial point, and leave its key the same: the
code of a ``CustomDist``, a transform, a closure.
"""
