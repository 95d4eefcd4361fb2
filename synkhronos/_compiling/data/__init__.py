"""Arrays of a graph as data: other data of the same graph need no other code.

============  ====================================================================================
``aligned``   arrays that begin at a cache line
``lifted``    arrays become variables
``computed``  a graph that is evaluated by its operations
``once``      what is computed of data alone is computed once, and not in each call
============  ====================================================================================
"""
