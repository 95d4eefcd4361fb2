"""All that makes functions and keeps them: modes, rewrites, machine code, and what tells of it.

Each room imports only itself and the rooms before it.

===================  =============================================================================
``graph_types``      types for which PyTensor has no names, or says less than is known
``nodes``            questions about a node: elements, batches, views
``memory``           memory that functions have left: when it is looked for, and given back
``traces``           notes about the lines that made variables, which rewrites do without
``thread_flags``     flags that PyTensor changes for a while are those of the thread
``terminal``         one line of a terminal that is drawn over and over
``where``            rewrites of some graphs only
``late_imports``     code for numba and JAX that is imported when a graph is compiled
``data``             arrays of a graph as data, and what is computed of them once
``loops``            loops over arrays, compiled by numba
``special_entries``  functions of SciPy that machine code calls by name
``kept``             what this machine has compiled before, by the keys of graphs
``compile_cache``    what compiled functions leave for other processes
``array_functions``  functions and loops of arrays, for operations that have those of one number
``python_mode``      the mode of functions of a few values, which Python evaluates
``python_function``  such a function, which is made at its first call
``vectorised``       elementary and special functions that a compiler vectorises
``lean``             operations of PyTensor that compile slowly, with numba code of our own
``direct``           machine code of small graphs, without numba's compiler
``progress``         tells the user of compiling and proofs
===================  =============================================================================
"""
