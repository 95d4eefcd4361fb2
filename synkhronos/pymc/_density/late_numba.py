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

from synkhronos._libraries.fork_safe_lock import ForkSafeLock
from synkhronos._libraries.numba import NUMBA

_NUMBA, _EXTENDING = "numba", "numba.extending"
_lock = ForkSafeLock()


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
    with _lock.held():  # else another thread may remove one, and import numba, before it is deleted
        for name in (_NUMBA, _EXTENDING):
            if isinstance(sys.modules.get(name), _LateNumba):
                del sys.modules[name]


@contextlib.contextmanager
def numba_late() -> Iterator[None]:
    """A context in which the first import of nutpie does not import numba."""
    package, extending = _LateNumba(_NUMBA), _LateNumba(_EXTENDING)
    vars(extending)["intrinsic"] = _LateIntrinsic
    # one step: another thread may import numba at any time
    if "nutpie" in sys.modules or sys.modules.setdefault(_NUMBA, package) is not package:
        yield
        return
    sys.modules.setdefault(_EXTENDING, extending)
    try:
        yield
    finally:
        _remove_stand_ins()
