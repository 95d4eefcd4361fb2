"""Compiled once on this machine: the key of a graph, and a folder that outlives processes.

Each room imports only itself and the rooms before it.

================  ===================================================================
``folder``        bytes by their keys, in a folder that belongs to the user alone
``digests``       bytes that stand for contents
``packages``      the versions and files of packages, and what belongs to them
``processor``     the processor of this machine
``contents``      digests of all that a graph is made of, the same in every process
``keys``          the key of a graph, and of the machine that its code is for
``known_code``    keys of graphs from which code of known packages makes others
``pickles``       objects of the folder, as bytes and back
``image``         machine code as one piece of memory, which needs no LLVM in another process
``machine_code``  numba's machine code, called without numba
``functions``     functions of PyTensor: their rewritten graphs and machine code
================  ===================================================================
"""
