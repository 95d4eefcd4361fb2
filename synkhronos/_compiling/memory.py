"""Memory that functions and their values have left: when it is looked for, and given back."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable

from synkhronos._libraries.library import Replacing

_libc = ctypes.CDLL(None) if os.name == "posix" else None


def trim() -> None:
    """Return free memory to the kernel; it costs page faults if it is needed again."""
    trim = getattr(_libc, "malloc_trim", None)  # of glibc only
    if trim is not None:
        trim(0)


_NEW_OBJECTS = 300_000  # about what the graphs and functions of a small model leave: some 40 MB


def _collect_rarely() -> Callable[[], None]:
    """Let more objects be made before Python looks for garbage; returns what restores that."""
    before = first, *others = gc.get_threshold()
    inside = (first and max(first, _NEW_OBJECTS), *others)
    gc.set_threshold(*inside)

    def restore() -> None:
        if gc.get_threshold() == inside:  # else the program has set another one
            gc.set_threshold(*before)

    return restore


_rarely_collected = Replacing(_collect_rarely)


def rarely_collected() -> Replacing:
    """A context in which Python looks for garbage that refers to itself less often.

    Graphs and their code are many objects that stay. Python would look at all objects of the
    process some times while one function is made: a sixth of the time.
    """
    return _rarely_collected
