"""The error of graphs that are left to numba."""


class UnfitError(Exception):
    """A graph has an operation, a type or a form that has no code here."""
