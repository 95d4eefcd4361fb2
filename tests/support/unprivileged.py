"""A context in which permissions of files also hold for root, as they do for other users."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

_VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3 of <linux/capability.h>
_OVERRIDE = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = tuple((n, ctypes.c_uint32) for n in ("effective", "permitted", "inheritable"))


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """This thread may only do with files what their permissions say."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_VERSION, 0), (_Sets * 2)()
    if libc.capget(ctypes.byref(header), sets):
        raise OSError(ctypes.get_errno(), "capget")
    before = sets[0].effective

    def set_to(effective: int) -> None:
        sets[0].effective = effective
        if libc.capset(ctypes.byref(header), sets):
            raise OSError(ctypes.get_errno(), "capset")

    set_to(before & ~_OVERRIDE)
    try:
        yield
    finally:
        set_to(before)
