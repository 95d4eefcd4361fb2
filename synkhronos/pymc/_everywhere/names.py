"""The names of functions in all modules of this process, and other functions in their place."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CellType, FunctionType, ModuleType
from typing import Any

_OURS = "synkhronos"  # its modules call PyMC's own functions
_PYMC = "pymc"


def renamed(pairs: Sequence[tuple[Callable[..., Any], Callable[..., Any]]]) -> list[str]:
    """Let the second function of each pair have all names of the first; returns these.

    A function with a name of PyMC may be another package's, and call the first one: then it calls
    the second one. Other names in closures, and those in classes and default values, are not found.
    """
    new: dict[Any, Callable[..., Any]] = dict(pairs)
    kinds = {type(old) for old in new}

    def is_old(value: object) -> bool:
        # `id` takes a microsecond where a library listens to audited events: PyTensor's lock does
        return type(value) in kinds and value in new

    all_of_them = {each for pair in pairs for each in pair}
    found = []
    for place, module in list(sys.modules.items()):
        package = place.partition(".")[0]
        if package == _OURS or not issubclass(type(module), ModuleType):
            continue
        # of modules that are imported when an attribute is read, this reads none
        names: dict[str, object] = ModuleType.__getattribute__(module, "__dict__")
        for name, value in list(names.items()):
            if is_old(value):
                names[name] = new[value]
                found.append(f"{place}.{name}")
            elif package == _PYMC and isinstance(value, FunctionType):
                for cell in _closures(value, is_old, all_of_them):
                    cell.cell_contents = new[cell.cell_contents]
    return found


def _closures(
    value: object, is_old: Callable[[object], bool], ends: Iterable[object]
) -> Iterator[CellType]:
    """The places of old functions in the closures of a function.

    Also in those of functions that it calls from there or is around, but not of the ends.
    """
    left, seen = [value], set(ends)
    while left:
        function = left.pop()
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty
                left.append(cell.cell_contents)
                if is_old(cell.cell_contents):
                    yield cell
        left.append(vars(function).get("__wrapped__"))
