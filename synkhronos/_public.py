"""Public classes and functions name the package that users import them from."""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType


def belong_to(package: str, things: Iterable[object]) -> None:
    """Let classes and functions say `package` as their module, in tracebacks, reprs and pickles.

    `inspect.getsource` of such a class fails, as it reads the file of the named module; that of its
    methods and of functions does not.
    """
    for thing in things:
        if isinstance(thing, type | FunctionType):
            thing.__module__ = package
