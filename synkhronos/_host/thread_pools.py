"""Thread pools of BLAS and OpenMP libraries: which are loaded, and limits for a while.

Since 3.8 threadpoolctl lets one thread of Python at a time set OpenBLAS's numbers. For others, such
as those of a sampler, it does nothing and says nothing: the master's part would compute with the
threads of all cores. So a limit looks whether it holds, and else ends the claim of that thread.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

_libc = ctypes.CDLL(None)


_END_CLAIM = "clear_controlling_thread"  # of threadpoolctl's OpenBLAS libraries


def thread_pools() -> Sequence[Any]:
    """Controllers (of threadpoolctl) of the BLAS and OpenMP libraries loaded so far.

    To look for them takes 8 ms where many libraries are loaded. So they are looked for again only
    after a library has been loaded or unloaded; a forked worker knows those of its master.
    """
    return _thread_pools(_libraries_loaded())


@functools.lru_cache(maxsize=1)
def _thread_pools(loaded: tuple[int, int]) -> Sequence[object]:
    from threadpoolctl import ThreadpoolController

    del loaded
    return tuple(ThreadpoolController().lib_controllers)


class _Library(ctypes.Structure):
    """`struct dl_phdr_info` of <link.h>."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("n_headers", ctypes.c_uint16),
        ("loaded", ctypes.c_ulonglong),
        ("unloaded", ctypes.c_ulonglong),
    )


_OnLibrary = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p
)


def _libraries_loaded() -> tuple[int, int]:
    """How often a library has been loaded into this process, and unloaded."""
    found = []

    def first(library: Any, size: int, data: object) -> int:
        found.append((library.contents.loaded, library.contents.unloaded))
        return 1  # all entries say the same

    _libc.dl_iterate_phdr(_OnLibrary(first), None)
    return found[0]


class ThreadLimits:
    """A context in which no pool has more threads; the numbers before are restored after it.

    It can be entered again. If an interrupt prevents the restoration, the next one makes up for it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._libraries: Sequence[Any] | None = None
        self._claimed: Sequence[Any] = ()  # those that only one thread may set; they have one claim
        self._before: list[int] | None = None
        self._took_claim = False

    def __enter__(self) -> None:
        if self._libraries is None:
            self._libraries = thread_pools()
            self._claimed = [lib for lib in self._libraries if hasattr(lib, _END_CLAIM)]
        if self._before is None:
            self._before = [library.get_num_threads() for library in self._libraries]
        try:
            self._limit()
            if self._claimed and self._claimed[0].get_num_threads() > self._most:
                self._end_claim()
                self._took_claim = True
                self._limit()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc: object) -> None:
        for library, threads in zip(self._libraries or (), self._before or (), strict=False):
            if threads > self._most:
                library.set_num_threads(threads)
        if self._took_claim:
            self._end_claim()
        self._before, self._took_claim = None, False

    def _limit(self) -> None:
        for library, threads in zip(self._libraries or (), self._before or (), strict=False):
            if threads > self._most:
                library.set_num_threads(self._most)

    def _end_claim(self) -> None:
        getattr(self._claimed[0], _END_CLAIM)(force=True)
