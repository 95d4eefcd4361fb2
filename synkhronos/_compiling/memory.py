"""Memory that functions and their values have left: when it is looked for, and given back."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
from collections.abc import Iterator

_libc = ctypes.CDLL(None) if os.name == "posix" else None


def trim() -> None:
    """Return free memory to the kernel; it costs page faults if it is needed again."""
    trim = getattr(_libc, "malloc_trim", None)  # of glibc only
    if trim is not None:
        trim(0)


_NEW_OBJECTS = 300_000  # about what the graphs and functions of a small model leave: some 40 MB


class _Collections:
    """How often Python looks for garbage that refers to itself, in all threads."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._before = gc.get_threshold()

    @contextlib.contextmanager
    def rare(self) -> Iterator[None]:
        """A context in which more objects are made before Python looks for garbage.

        Graphs and their code are many objects that stay. Python would look at all objects of the
        process some times while one function is made: a sixth of the time.
        """
        with self._lock:
            if self._inside == 0:
                self._before = first, *others = gc.get_threshold()
                gc.set_threshold(first and max(first, _NEW_OBJECTS), *others)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    gc.set_threshold(*self._before)


rarely_collected = _Collections().rare
