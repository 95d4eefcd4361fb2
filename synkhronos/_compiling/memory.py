"""Memory that functions and their values have left goes back to the kernel."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None) if os.name == "posix" else None


def trim() -> None:
    """Return free memory to the kernel; it costs page faults if it is needed again."""
    trim = getattr(_libc, "malloc_trim", None)  # of glibc only
    if trim is not None:
        trim(0)
