"""Arrays of a graph as data: other data of the same graph need no other code.

============  ====================================================================================
``lifted``    arrays become variables
``computed``  a graph that is evaluated by its operations
``once``      what is computed of data alone is computed once, and not in each call
============  ====================================================================================
"""
