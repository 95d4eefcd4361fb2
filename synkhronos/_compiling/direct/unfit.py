"""The errors of graphs that are left to numba, and of data that no code is for."""


class UnfitError(Exception):
    """A graph has an operation, a type or a form that has no code here."""


class OutsideError(IndexError):
    """An index that is data chooses no element: code of numba would read what is no element."""
