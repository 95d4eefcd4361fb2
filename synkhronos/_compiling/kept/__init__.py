"""Compiled once on this machine: the key of a graph, and a folder that outlives processes.

Each room imports only itself and the rooms before it.

================  ===================================================================
``folder``        bytes by their keys, in a folder that belongs to the user alone
``keys``          the key of a graph, the same in every process, and of this machine
``known_code``    keys of graphs from which code of known packages makes others
``pickles``       objects of the folder, as bytes and back
``image``         machine code as one piece of memory, which needs no LLVM in another process
``machine_code``  numba's machine code, called without numba
``functions``     functions of PyTensor: their rewritten graphs and machine code
================  ===================================================================
"""
