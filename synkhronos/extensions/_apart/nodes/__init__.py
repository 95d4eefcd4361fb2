"""Nodes as members: the members of a node train by one rule, and the nodes meet by another."""
