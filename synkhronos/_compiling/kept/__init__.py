"""Compiled once on this machine: the key of a graph, and a folder that outlives processes.

==========  ===================================================================
``folder``  bytes by their keys, in a folder that belongs to the user alone
``keys``    the key of a graph, the same in every process, and of this machine
==========  ===================================================================
"""
