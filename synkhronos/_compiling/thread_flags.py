"""Flags that PyTensor changes while it compiles hold in the thread that compiles.

PyTensor notes the mode of a function in ``config.mode`` while it rewrites the function, for all
threads. Another one would take this mode for the default. Where two threads restore the flag in
another order than they changed it, one of their modes would stay the default.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import pytensor

from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.pytensor import PYTENSOR


class _Here(threading.local):
    """The values of flags in this thread, while it compiles."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}


_here = _Here()


class CompilerConfig:
    """PyTensor's configuration for its compiler, whose changes hold in this thread."""

    def __getattr__(self, name: str) -> Any:
        return getattr(pytensor.config, name)

    @contextlib.contextmanager
    def change_flags(self, **values: Any) -> Iterator[None]:
        """A context in which flags have other values in this thread."""
        for name in values:
            _let_threads_have(name)
        before, _here.values = _here.values, {**_here.values, **values}
        try:
            yield
        finally:
            _here.values = before


@functools.cache
def _let_threads_have(name: str) -> None:
    """Let the value of a flag be that of the thread, where it has one."""
    getattr(pytensor.config, name)  # PyTensor reads the environment at the first time
    flag: Any = vars(type(pytensor.config))[name]
    of_process = {name: PYTENSOR.of(flag, "val")}

    def values() -> dict[str, Any]:
        return _here.values if name in _here.values else of_process

    value = property(lambda _: values()[name], lambda _, new: values().update({name: new}))
    flag.__class__ = type(type(flag).__name__, (type(flag),), {"val": value})


with optional_gain():
    PYTENSOR.replace({"config": CompilerConfig()})
