"""Public classes and functions name the package that users import them from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from importlib import import_module
from types import FunctionType

from synkhronos._errors import BackendMissing


def belong_to(package: str, things: Iterable[object]) -> None:
    """Let classes and functions say `package` as their module, in tracebacks, reprs and pickles.

    `inspect.getsource` of such a class fails, as it reads the file of the named module; that of its
    methods and of functions does not.
    """
    for thing in things:
        if isinstance(thing, type | FunctionType):
            thing.__module__ = package


def imported_late(
    package: str,
    names: Collection[str],
    home: Callable[[str], str],  # the module of a name in the package
    library: str,  # all names need it; it has this name on PyPI, and comes by this extra
    distribution: str,
    extra: str,
) -> Callable[[str], object]:
    """The ``__getattr__`` of a package whose names are imported when they are first used."""

    def found(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            import_module(library)
        except ImportError:
            raise BackendMissing(distribution, extra) from None
        value = getattr(import_module(f"{package}.{home(name)}"), name)
        belong_to(package, [value])
        return value

    return found
