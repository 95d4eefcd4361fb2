"""nutpie imported without numba, whose import takes longer than a call whose model is kept.

nutpie marks one function as an intrinsic of numba, for the code that it compiles itself.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

from synkhronos._libraries.numba import NUMBA

_NUMBA, _EXTENDING = "numba", "numba.extending"


class _LateIntrinsic:
    """A function that becomes an intrinsic when numba looks at it."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    @cached_property
    def _numba_type_(self) -> Any:
        """The type of the intrinsic, for which numba asks where code names this object."""
        made = import_module(_EXTENDING).intrinsic(self._function)
        context = NUMBA.get("cpu_target").typing_context
        context.refresh()
        return context.resolve_value_type(made)


class _LateNumba(ModuleType):
    """Stands for numba: another thread may import it meanwhile, and gets what numba has."""

    def __getattr__(self, name: str) -> object:
        if self.__name__ == _EXTENDING and name.startswith("__"):  # of which Python's import asks
            raise AttributeError(name)
        _remove_stand_ins()
        import_module(_EXTENDING)
        found: object = getattr(sys.modules[self.__name__], name)
        return found


def _remove_stand_ins() -> None:
    for name in (_NUMBA, _EXTENDING):
        if isinstance(sys.modules.get(name), _LateNumba):
            del sys.modules[name]


@contextlib.contextmanager
def numba_late() -> Iterator[None]:
    """A context in which the first import of nutpie does not import numba."""
    if {_NUMBA, "nutpie"} & sys.modules.keys():
        yield
        return
    package, extending = _LateNumba(_NUMBA), _LateNumba(_EXTENDING)
    vars(extending)["intrinsic"] = _LateIntrinsic
    sys.modules |= {_NUMBA: package, _EXTENDING: extending}
    try:
        yield
    finally:
        _remove_stand_ins()
