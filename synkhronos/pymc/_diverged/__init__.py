"""Where the divergences of a run are, and which variables of the model they come with.

Each room imports only itself and the rooms before it.

===============  =================================================================================
``count``        how many there are, in the result of a sampler
``scales``       which variables a model makes the scale of which, by its graph
``positions``    values of variables at divergences, and at all draws
``ranks``        whether divergences are where a quantity is small or large, or by chance
``quantities``   variables and scales, and what to try where divergences come with one
``explanation``  `explain_divergences`, and the line that follows `sample`
===============  =================================================================================
"""
