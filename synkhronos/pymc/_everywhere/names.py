"""The names of functions in all modules of this process, and other functions in their place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_OURS = "synkhronos"  # its modules call PyMC's own functions


def renamed(pairs: Sequence[tuple[Callable[..., Any], Callable[..., Any]]]) -> list[str]:
    """Let the second function of each pair have all names of the first; returns these.

    Names in classes, closures and default values are not found.
    """
    new = {id(old): new for old, new in pairs}
    found = []
    for place, module in list(sys.modules.items()):
        if place.partition(".")[0] == _OURS or not issubclass(type(module), ModuleType):
            continue
        # of modules that are imported when an attribute is read, this reads none
        names: dict[str, object] = ModuleType.__getattribute__(module, "__dict__")
        for name, value in list(names.items()):
            if id(value) in new:
                names[name] = new[id(value)]
                found.append(f"{place}.{name}")
    return found
