"""The node's shared memory: one sparse memfd, mapped by every member, cut into regions.

Each member owns one region: it alone allocates there, and it alone writes the words at the
region's head, so no allocator lock and no word with two writers exists. Pages are touched first
by the member that will write them. Members name pieces of the arena to each other by offset,
shape, dtype and generation, never by address.

A memfd has no name, so nothing can stay behind after any death, and Docker's limit on /dev/shm
does not bind it. Physical memory is taken by posix_fallocate after a check of the machine's and
the cgroup's limits (an over-committed page would be a SIGBUS or an OOM kill), and given back by
madvise(MADV_REMOVE) when the last numpy view of a block dies.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import fcntl
import math
import mmap
import os
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PAGE = mmap.PAGESIZE
HEAD_BYTES = 1 << 20  # of each region: its owner's words, boards and boxes; see _channels/words.py
_MIN_REGION = 1 << 36
_MAX_ARENA = 1 << 45  # a quarter of what 47 address bits allow
# Equal places of two regions must not lie a power of two apart: the first-level cache of AMD's Zen
# tells lines apart by a hash of the lower address bits, and a loop over two such arrays is 6 times
# slower.
_STAGGER = 41 * PAGE
_CHECK_LIMITS_FROM = 1 << 20  # below this an allocation is not worth reading /proc for
_MADV_REMOVE = 9  # <sys/mman.h>: free the pages, of the file too
_SEALS = 0x0002 | 0x0004 | 0x0001  # F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@dataclass(frozen=True)
class Piece:
    """The name of an array in the arena, the same for all members."""

    offset: int
    shape: tuple[int, ...]
    dtype: str
    generation: int

    def __reduce__(self) -> Any:
        return Piece, (self.offset, self.shape, self.dtype, self.generation)


@dataclass(frozen=True)
class FilePiece:
    """The name of an array in a file that each member maps for itself (numpy.memmap)."""

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: str
    mode: str
    generation: int


class _Block:
    """The life of one allocation: numpy views hold it, and its end frees the memory."""

    __slots__ = ("__array_interface__", "__weakref__", "_arena", "length", "offset")

    def __init__(self, arena: Arena, offset: int, length: int) -> None:
        self._arena = arena
        self.offset = offset
        self.length = length
        self.__array_interface__ = {
            "shape": (length,),
            "typestr": "|u1",
            "data": (arena.address + offset, False),
            "version": 3,
        }

    def __del__(self) -> None:
        self._arena.release(self.offset, self.length)


class Arena:
    """Shared memory of `regions` regions, of which this process owns number `mine`.

    With `mirror` there is one region more, in which arrays of another machine's region have copies.

    >>> arena = Arena(2)
    >>> a = arena.empty((3,), "float32"); a[:] = [1, 2, 3]
    >>> arena.view(arena.piece(a))
    array([1., 2., 3.], dtype=float32)
    >>> arena.close_fd()
    """

    def __init__(
        self,
        regions: int,
        mine: int = 0,
        fd: int | None = None,
        region_bytes: int | None = None,
        mirror: bool = False,
    ) -> None:
        self.regions = regions
        if fd is None or region_bytes is None:
            fd, region_bytes = _create(regions + mirror)
        self.fd = fd
        self.region_bytes = region_bytes
        self._shift = regions * region_bytes if mirror else 0
        self._bytes = (regions + mirror) * region_bytes
        self.buffer = _map(fd, self._bytes)
        self.address = ctypes.addressof(self.buffer)
        self._advise(0, self._bytes, mmap.MADV_DONTDUMP)
        self._written: list[tuple[int, int]] | None = None  # kept where somebody wants to know
        self._freed: list[tuple[int, int]] = []
        self.generation = 0
        self.own(mine)

    def own(self, mine: int) -> None:
        """Take region `mine` as this process's own (again after a fork)."""
        self.mine = mine
        self._pid = os.getpid()
        start = mine * self.region_bytes
        self._free = _FreeList(start + HEAD_BYTES, start + self.region_bytes)
        self._released: deque[tuple[int, int]] = deque()

    def head(self, region: int) -> memoryview:
        """The first HEAD_BYTES of a region, which only its owner writes."""
        start = region * self.region_bytes
        return memoryview(np.ndarray((HEAD_BYTES,), np.uint8, self.buffer, start))

    def reserve_heads(self) -> None:
        """Take the physical memory of all heads, filled with zeros."""
        for region in range(self.regions):
            self._advise(region * self.region_bytes, HEAD_BYTES, _MADV_REMOVE)
            os.posix_fallocate(self.fd, region * self.region_bytes, HEAD_BYTES)

    def empty(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Allocate an array in this process's region; it is freed with its last view.

        Raises
        ------
        MemoryError
            With what was asked, what is free, and which limit binds.
        """
        dtype = np.dtype(dtype)
        count = math.prod(shape)
        block = self._allocate(max(1, count * dtype.itemsize))
        flat = np.asarray(block)[: count * dtype.itemsize]
        return flat.view(dtype).reshape(shape)

    def _allocate(self, nbytes: int) -> _Block:
        self._reclaim()
        length = -(-nbytes // PAGE) * PAGE
        if length >= _CHECK_LIMITS_FROM:
            _check_limits(length)
        offset = self._free.take(length)
        if offset is None:
            raise MemoryError(f"asked for {length:,} bytes of the arena: no address range is free")
        try:
            os.posix_fallocate(self.fd, offset, length)
        except OSError as exc:
            self._free.give(offset, length)
            raise MemoryError(
                f"asked for {length:,} bytes of shared memory: {exc.strerror}. {_advice()}"
            ) from None
        self.generation += 1
        return _Block(self, offset, length)

    @property
    def mirrors(self) -> bool:
        """Whether there is a mirror of another machine's region."""
        return bool(self._shift)

    def tell_news(self) -> None:
        """From now on remember what is written and freed, for `take_news`."""
        self._written = []

    @property
    def told(self) -> bool:
        """Whether other machines have copies of what is written here."""
        return self._written is not None

    def note(self, array: np.ndarray) -> None:
        """An array of the arena has been written."""
        if self._written is not None and array.nbytes:
            self._written.append((self.offset(array), array.nbytes))

    def take_news(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Ranges (offset, bytes) written and freed since the last time; merged, in order."""
        written, freed = merged(self._written or []), self._freed
        self._written, self._freed = [], []
        return written, freed

    def bytes_at(self, offset: int, length: int) -> np.ndarray:
        """The bytes of a range."""
        return np.ndarray((length,), np.uint8, self.buffer, offset)

    def mirrored(self, offset: int, length: int) -> np.ndarray:
        """The bytes in the mirror for a range of the other machine's region, with their memory."""
        if length >= _CHECK_LIMITS_FROM:
            _check_limits(length)
        if offset + length > self.region_bytes:
            raise MemoryError(
                f"asked for a copy of bytes {offset:,} to {offset + length:,} of the master's "
                f"memory, this node has addresses for {self.region_bytes:,}: raise `ulimit -v`"
            )
        try:
            os.posix_fallocate(self.fd, self._shift + offset, length)
        except OSError as exc:
            raise MemoryError(f"asked for {length:,} bytes: {exc.strerror}. {_advice()}") from None
        return self.bytes_at(self._shift + offset, length)

    def free_mirrored(self, offset: int, length: int) -> None:
        """The other machine has freed a range."""
        self._advise(self._shift + offset, length, _MADV_REMOVE)

    def release(self, offset: int, length: int) -> None:
        """Give a block's memory back; runs from finalizers, so it takes no lock."""
        if self._pid != os.getpid():
            return  # a fork of the owner must not punch holes into the owner's memory
        if self._written is not None:
            self._freed.append((offset, length))
        self._advise(offset, length, _MADV_REMOVE)
        self._released.append((offset, length))

    def _advise(self, offset: int, length: int, advice: int) -> None:
        _libc.madvise(self.address + offset, length, advice)

    def _reclaim(self) -> None:
        while self._released:
            self._free.give(*self._released.popleft())

    def holds(self, array: np.ndarray) -> bool:
        """Whether the array's memory lies in the arena (of any member)."""
        start = array.__array_interface__["data"][0] - self.address
        return 0 <= start < self._bytes and array.size > 0

    def offset(self, array: np.ndarray) -> int:
        """Where in the arena an array begins, in bytes."""
        return int(array.__array_interface__["data"][0]) - self.address

    def piece(self, array: np.ndarray, generation: int = 0) -> Piece:
        """Name a C-contiguous array of the arena."""
        return Piece(self.offset(array), array.shape, array.dtype.str, generation)

    def view(self, piece: Piece) -> np.ndarray:
        """The array that a piece names; it does not keep the block alive."""
        return np.ndarray(piece.shape, piece.dtype, self.buffer, piece.offset + self._shift)

    def empty_other_regions(self) -> None:
        """Give back what other members took; they are gone, and nobody may read it any more."""
        for region in range(self.regions):
            if region != self.mine:
                self._advise(region * self.region_bytes, self.region_bytes, _MADV_REMOVE)

    def close_fd(self) -> None:
        """Drop the descriptor; the mapping lives as long as a view of it does."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges (start, length), sorted, those that touch made one.

    >>> merged([(4, 2), (0, 3), (2, 2), (9, 1)])
    [(0, 6), (9, 1)]
    """
    found: list[tuple[int, int]] = []
    for start, length in sorted(ranges):
        if found and start <= sum(found[-1]):
            first, before = found[-1]
            found[-1] = first, max(before, start + length - first)
        else:
            found.append((start, length))
    return found


class _FreeList:
    """Address ranges not in use, sorted and merged; first fit."""

    def __init__(self, start: int, stop: int) -> None:
        self._starts = [start]
        self._lengths = {start: stop - start}

    def take(self, length: int) -> int | None:
        for i, start in enumerate(self._starts):
            have = self._lengths[start]
            if have >= length:
                del self._starts[i], self._lengths[start]
                if have > length:
                    self._starts.insert(i, start + length)
                    self._lengths[start + length] = have - length
                return start
        return None

    def give(self, start: int, length: int) -> None:
        i = bisect.bisect(self._starts, start)
        if i < len(self._starts) and self._starts[i] == start + length:
            length += self._lengths.pop(self._starts.pop(i))
        before = self._starts[i - 1] if i else None
        if before is not None and before + self._lengths[before] == start:
            self._lengths[before] += length
        else:
            self._starts.insert(i, start)
            self._lengths[start] = length


def open_file(piece: FilePiece) -> np.ndarray:
    """Map the file that a FilePiece names."""
    mode: Any = piece.mode
    return np.asarray(np.memmap(piece.path, piece.dtype, mode, piece.offset, piece.shape))


class Views:
    """The arrays behind pieces, opened once and remembered while they are in use."""

    def __init__(self, arena: Arena, keep: int = 256) -> None:
        self._arena = arena
        self._keep = keep
        self._open: dict[Piece | FilePiece, np.ndarray] = {}

    def __getitem__(self, piece: Piece | FilePiece) -> np.ndarray:
        found = self._open.get(piece)
        if found is None:
            found = open_file(piece) if isinstance(piece, FilePiece) else self._arena.view(piece)
            if len(self._open) >= self._keep:
                del self._open[next(iter(self._open))]
            self._open[piece] = found
        return found

    def offset(self, array: np.ndarray) -> int:
        """Where in the arena an array begins, in bytes."""
        return self._arena.offset(array)

    def hold(self, array: np.ndarray) -> bool:
        """Whether the array lies in the arena."""
        return self._arena.holds(array)


class _Memory:
    """The mapping; numpy views hold it, and it is unmapped when the last one is gone.

    Python's own mmap keeps a duplicate of the descriptor for as long as the mapping lives.
    """

    def __del__(
        self,
        munmap: Any = _libc.munmap,
        addressof: Any = ctypes.addressof,
        sizeof: Any = ctypes.sizeof,
    ) -> None:
        munmap(addressof(self), sizeof(self))


def _map(fd: int, length: int) -> Any:
    address = _libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    kind: Any = type("Memory", (ctypes.c_ubyte * length, _Memory), {})
    return kind.from_address(address)


def _create(regions: int) -> tuple[int, int]:
    if not hasattr(os, "memfd_create"):
        raise RuntimeError(
            f"synkhronos needs Linux 5.3 or later (memfd, eventfd, pidfd); this is {sys.platform}"
        )
    fd = os.memfd_create("synkhronos", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        region_bytes = _largest_that_maps(fd, regions)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd, region_bytes


def _largest_that_maps(fd: int, regions: int) -> int:
    """Region size: twice the machine's memory, halved until limits (ulimit -v, -f) allow it."""
    memory = os.sysconf("SC_PHYS_PAGES") * PAGE
    size = max(_MIN_REGION, 1 << (2 * memory - 1).bit_length())
    while size * regions > _MAX_ARENA:
        size //= 2
    while size >= 4 * HEAD_BYTES:
        try:
            os.ftruncate(fd, (size + _STAGGER) * regions)
            _map(fd, (size + _STAGGER) * regions)
        except OSError:
            size //= 2
            continue
        return size + _STAGGER
    raise MemoryError("no address space for shared memory: raise `ulimit -v` and `ulimit -f`")


def _check_limits(nbytes: int) -> None:
    """Refuse what would end in the OOM killer: fallocate does not see cgroup limits."""
    free, limit = available_memory()
    if nbytes > free:
        raise MemoryError(
            f"asked for {nbytes:,} bytes of shared memory, {free:,} are free ({limit}). {_advice()}"
        )


def _advice() -> str:
    return (
        "Free Data that is no longer needed (del, free_memory()), use numpy.memmap for data "
        "larger than memory, or raise the limit"
    )


def available_memory() -> tuple[int, str]:
    """Bytes that may still be taken, and which limit says so."""
    found = [(_meminfo("MemAvailable") + _meminfo("SwapFree"), "the machine's memory")]
    with contextlib.suppress(OSError, ValueError):
        found.extend(_cgroup_limits(Path("/proc/self/cgroup").read_text()))
    return min(found)


def _meminfo(key: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


def _cgroup_limits(text: str) -> list[tuple[int, str]]:
    found = []
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found += _limits_above("/sys/fs/cgroup", path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            found += _limits_above("/sys/fs/cgroup/memory", path, *names)
    return found


def _limits_above(root: str, path: str, limit: str, usage: str) -> list[tuple[int, str]]:
    """The limits of a cgroup and of all its parents; in a container its own is at the root."""
    found = []
    folder = Path(root + path)
    for place in [folder, *folder.parents]:
        if not str(place).startswith(root):
            break
        with contextlib.suppress(OSError, ValueError):
            most = int((place / limit).read_text())  # "max" is a ValueError: no limit
            used = int((place / usage).read_text()) - _reclaimable(place)
            found.append((max(0, most - used), f"the limit of cgroup {place} is {most:,}"))
    return found


def _reclaimable(place: Path) -> int:
    """File cache that the kernel drops when it needs room."""
    for line in (place / "memory.stat").read_text().splitlines():
        if line.startswith(("inactive_file ", "total_inactive_file ")):
            return int(line.split()[1])
    return 0
