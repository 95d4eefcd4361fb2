"""Flags that PyTensor and PyMC change for a while hold in the thread that changes them.

PyTensor notes the mode of a function in ``config.mode`` while it rewrites the function, for all
threads. Another one would take this mode for the default. Where two threads restore a flag in
another order than they changed it, one of their values would stay: a mode, or no compiler for C.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import pytensor

from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.pytensor import PYTENSOR

_LIBRARIES = {"pytensor", "pymc"}  # the changes of others hold in all threads, as users expect
type _Context = contextlib.AbstractContextManager[None]


class _Here(threading.local):
    """The values of flags in this thread, while they are changed."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}


_here = _Here()


def _by_thread(kind: type) -> type:
    """A class of PyTensor's flags whose value is that of the thread, where it has one."""

    def value(flag: Any) -> Any:
        return _here.values[flag.name] if flag.name in _here.values else vars(flag)["val"]

    def put(flag: Any, new: object) -> None:
        if flag.name in _here.values:
            _here.values[flag.name] = new
        else:
            vars(flag)["val"] = new

    def reduced(flag: Any, protocol: object) -> tuple[object, ...]:
        return object.__new__, (kind,), vars(flag)  # copies have the value of the process

    return type(kind.__name__, (kind,), {"val": property(value, put), "__reduce_ex__": reduced})


@contextlib.contextmanager
def _in_thread(config: Any, names: Iterable[str], changed: _Context) -> Iterator[None]:
    """A context of PyTensor that changes flags, in this thread only."""
    before = _here.values
    values = {name: getattr(config, name) for name in names}
    for flag in (vars(type(config))[name] for name in values):
        if not isinstance(vars(type(flag)).get("val"), property):
            flag.__class__ = _by_thread(type(flag))
    _here.values = {**before, **values}
    try:
        with changed:
            yield
    finally:
        _here.values = before


def _package_above(frame: FrameType | None) -> str:
    """The package whose code has called the function of this frame."""
    above = frame and frame.f_back
    return str(above.f_globals.get("__name__")).partition(".")[0] if above else ""


def _replace() -> None:
    change_flags = PYTENSOR.get("change_flags")

    def change(config: Any, **values: Any) -> _Context:
        changed: _Context = change_flags(config, **values)
        # a frame in a variable would keep itself and its callers alive
        is_of_library = _package_above(inspect.currentframe()) in _LIBRARIES
        return _in_thread(config, values, changed) if is_of_library else changed

    PYTENSOR.of(vars(type(pytensor.config))["mode"], "val")
    PYTENSOR.replace({"change_flags": functools.wraps(change_flags)(change)})


pytensor.config.mode  # noqa: B018 (PyTensor reads the value of a flag at the first time)
with optional_gain():
    _replace()
