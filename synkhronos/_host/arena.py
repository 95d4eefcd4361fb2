"""The node's shared memory: one sparse memfd, mapped by every member, cut into regions.

Each member owns one region: it alone allocates there, and it alone writes the words at the
region's head, so no allocator lock and no word with two writers exists. Pages are touched first
by the member that will write them. Members name pieces of the arena to each other by offset,
shape, dtype and generation, never by address.

A memfd has no name, so nothing can stay behind after any death, and Docker's limit on /dev/shm
does not bind it. Physical memory is taken by posix_fallocate after a check of the machine's and
the cgroup's limits (an over-committed page would be a SIGBUS, and fallocate itself ends in an OOM
kill where a cgroup's limit is passed), and given back by madvise(MADV_REMOVE) when the last numpy
view of a block dies.
"""

from __future__ import annotations

import bisect
import ctypes
import fcntl
import functools
import math
import mmap
import os
import resource
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from synkhronos._host.memory_limits import available
from synkhronos._host.ranges import DirtyRanges, Ranges

PAGE = mmap.PAGESIZE
HEAD_BYTES = (
    1 << 20
)  # of each region: its owner's words, boards and boxes; see channels/control_words.py
BORDER = 64  # bytes, a cache line: what begins there XLA reads in place, all else it copies
_TAKING = HEAD_BYTES - 8  # in a head: how many bytes its owner is about to take
_MIN_REGION = 1 << 36
_MAX_ARENA = 1 << 45  # a quarter of what 47 address bits allow
# Equal places of two regions must not lie a power of two apart: the first-level cache of AMD's Zen
# tells lines apart by a hash of the lower address bits, and a loop over two such arrays is 6 times
# slower.
_STAGGER = 41 * PAGE
_CHECK_EVERY = 1 << 20  # bytes; for less it is not worth to read /proc
_STEP = 1 << 26  # bytes that are taken at a time, until which they count twice for the others
_RESERVE = 1 << 24  # bytes that are left to the rest of the program
_PAGE_TABLE = 512  # pages that one page of a member's page tables describes
# <sys/mman.h>
_MADV_REMOVE = 9  # free the pages, of the file too
_MADV_POPULATE_WRITE = 23  # since Linux 5.14: take the pages now
_MAP_NORESERVE = 0x4000
_LARGE_PAGE = 1 << 21
_SEALS = 0x0002 | 0x0004 | 0x0001  # F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def aligned_empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Fresh memory of this process alone, on a 64-byte border."""
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + BORDER, np.uint8)
    start = -raw.ctypes.data % BORDER
    return raw[start : start + nbytes].view(dtype).reshape(shape)


@dataclass(frozen=True)
class ArrayRef:
    """The name of an array in the arena, the same for all members."""

    offset: int
    shape: tuple[int, ...]
    dtype: str
    generation: int

    def __reduce__(self) -> Any:
        return ArrayRef, (self.offset, self.shape, self.dtype, self.generation)


@dataclass(frozen=True)
class FileRef:
    """The name of an array in a file that each member maps for itself (numpy.memmap)."""

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: str
    mode: str
    generation: int


class _Finalizer(weakref.ref):
    """Follows an object's death, by a callback that is C and not Python.

    Where Python code runs in a finalizer a Ctrl-C may be raised there: the interrupt is lost, and
    so is what the rest of the finalizer would have freed.

    Attributes
    ----------
    offset, length : int
    also : _Finalizer
        One that is to live as long.
    """

    __slots__ = ("also", "length", "offset")

    offset: int
    length: int
    also: _Finalizer

    __hash__ = object.__hash__  # what has gone may have had none, or have it no more
    __eq__ = object.__eq__
    _as_parameter_ = 0  # what a function of libc gets: one argument too many, which it ignores


class _Block:
    """The life of one allocation: numpy views hold it, and with its end the memory is freed."""

    __slots__ = ("__array_interface__", "__weakref__", "_arena")

    def __init__(self, arena: Arena, offset: int, length: int) -> None:
        self._arena = arena  # which is mapped for as long
        self.__array_interface__ = {
            "shape": (length,),
            "typestr": "|u1",
            "data": (arena.address + offset, False),
            "version": 3,
        }


class Arena:
    """Shared memory of `regions` regions, of which this process owns number `mine`.

    With `mirror` there is one region more, in which arrays of another machine's region have copies.
    `private` memory is shared with nobody; the kernel backs it with large pages, which it seldom
    does for shared memory, so that what is large is read and written in half the time.

    >>> arena = Arena(2)
    >>> a = arena.empty((3,), "float32"); a[:] = [1, 2, 3]
    >>> arena.view(arena.ref(a))
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
        private: bool = False,
    ) -> None:
        self.regions = regions
        if fd is None or region_bytes is None:
            fd, region_bytes = _create(regions + mirror)
        self.fd = fd
        self.region_bytes = region_bytes
        self._shift = regions * region_bytes if mirror else 0
        self._bytes = (regions + mirror) * region_bytes
        self._private = private
        try:
            self.buffer = _map(-1 if private else fd, self._bytes)
        except OSError:  # so many private addresses are refused by `vm.overcommit_memory=2`
            self._private = False
            self.buffer = _map(fd, self._bytes)
        self.address = ctypes.addressof(self.buffer)
        self._memory = memoryview(np.ndarray((self._bytes,), np.uint8, self.buffer))
        self._drop = mmap.MADV_DONTNEED if self._private else _MADV_REMOVE
        if self._private:
            self.close_fd()
            self._advise(0, self._bytes, mmap.MADV_NOHUGEPAGE)
        self._advise(0, self._bytes, mmap.MADV_DONTDUMP)
        self._dirty: DirtyRanges | None = None  # kept where somebody wants to know
        self._mirrored = Ranges()  # of the mirror, what has memory
        self.generation = 0
        self.own(mine)
        _arenas.add(self)

    def own(self, mine: int) -> None:
        """Take region `mine` as this process's own (again after a fork)."""
        self.mine = mine
        self._unchecked = 0  # bytes taken since the limits were looked at
        start = mine * self.region_bytes
        self._free = _FreeList(start + HEAD_BYTES, start + self.region_bytes)
        self._blocks: set[_Finalizer] = set()  # that are in use, or about to be reclaimed
        self._released: deque[_Finalizer] = deque()
        heads = [region * self.region_bytes for region in range(self.regions)]
        self._taking = [np.ndarray((1,), np.int64, self.buffer, h + _TAKING) for h in heads]

    def head(self, region: int) -> memoryview:
        """The first HEAD_BYTES of a region, which only its owner writes."""
        start = region * self.region_bytes
        return memoryview(np.ndarray((HEAD_BYTES,), np.uint8, self.buffer, start))

    def reserve_heads(self) -> None:
        """Take the physical memory of all heads, filled with zeros."""
        self._check(self.regions * HEAD_BYTES)
        for region in range(self.regions):
            self._advise(region * self.region_bytes, HEAD_BYTES, self._drop)
            self._fallocate(region * self.region_bytes, HEAD_BYTES)

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
        offset = self._free.take(length)
        if offset is None:
            longest, limit = self._free.longest(), _limits_of_addresses()
            raise _short(length, longest, f"addresses of this member in one stretch{limit}")
        block = self._block(offset, length)
        self._take(offset, length)
        self.generation += 1
        return block

    def _block(self, offset: int, length: int) -> _Block:
        """A block that gives its memory back, and then its addresses (the last callback first)."""
        block = _Block(self, offset, length)
        free = functools.partial(_libc.madvise, self.address + offset, length, self._drop)
        gone = _Finalizer(block, self._released.append)
        gone.offset, gone.length = offset, length
        gone.also = _Finalizer(block, free)
        self._blocks.add(gone)
        return block

    def _take(self, offset: int, length: int) -> None:
        """Take physical memory, and let the others know until it is done.

        Else members that allocate at once would all see the same free memory, and take it.
        """
        if self._unchecked + length < _CHECK_EVERY:
            self._unchecked += length
            self._fallocate(offset, length)
            return
        mine = self._taking[self.mine]
        mine[0] = length
        try:
            self._check(length)
            for done in range(0, length, _STEP):
                self._fallocate(offset + done, min(_STEP, length - done))
                mine[0] = max(0, length - done - _STEP)
        finally:
            mine[0] = 0
        self._unchecked = 0

    def _check(self, length: int) -> None:
        """Raise unless there is memory for that, and for what other members are about to take."""
        limit = available()
        others = sum([int(t[0]) for r, t in enumerate(self._taking) if r != self.mine])
        beside = _RESERVE + others + self.regions * (_CHECK_EVERY + length // _PAGE_TABLE)
        free = limit.free - beside
        if free < length:
            raise _short(length, free, f"{limit.text}, and {beside:,} are kept back")

    def _fallocate(self, offset: int, length: int) -> None:
        if self._private:
            self._allot(offset, length)
            return
        try:
            os.posix_fallocate(self.fd, offset, length)
        except OSError as exc:
            limit = available()
            raise _short(length, limit.free, f"{exc.strerror}; {limit.text}") from None

    def _allot(self, offset: int, length: int) -> None:
        """Take private memory: large pages where they hold nothing but this, small ones around."""
        whole = _LARGE_PAGE - 1
        first = ((self.address + offset + whole) & ~whole) - self.address
        last = ((self.address + offset + length) & ~whole) - self.address
        self._advise(offset, length, mmap.MADV_NOHUGEPAGE)
        if first < last:
            self._advise(first, last - first, mmap.MADV_HUGEPAGE)
        # an older kernel gives the pages when they are first written
        self._advise(offset, length, _MADV_POPULATE_WRITE)

    @property
    def mirrors(self) -> bool:
        """Whether there is a mirror of another machine's region."""
        return bool(self._shift)

    def track_changes(self) -> None:
        """Record from now on what is written and freed, for `changes`."""
        self._dirty = DirtyRanges()

    @property
    def tracks_changes(self) -> bool:
        """Whether other machines have copies of this memory."""
        return self._dirty is not None

    def mark_dirty(self, array: np.ndarray) -> None:
        """Note that an array of the arena was written; of a strided one, also the bytes between."""
        if self._dirty is None or not array.nbytes:
            return
        if array.flags.c_contiguous:
            self.mark_dirty_range(self.offset(array), array.nbytes)
            return
        start, stop = byte_bounds(array)
        self.mark_dirty_range(start - self.address, stop - start)

    def mark_dirty_range(self, offset: int, length: int) -> None:
        """Note that bytes of the arena were written; faster than `mark_dirty`."""
        if self._dirty is not None and length:
            self._dirty.write(offset, length)

    def changes(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Ranges (offset, bytes) written since the last acknowledgement, and freed before that."""
        self._reclaim()
        return ([], []) if self._dirty is None else self._dirty.take()

    def acknowledge_changes(self) -> None:
        """Note that all other machines have what `changes` returned last."""
        if self._dirty is not None:
            self._dirty.acknowledge()

    def bytes_at(self, offset: int, length: int) -> memoryview:
        """The bytes of a range of this arena."""
        return self._memory[offset : offset + length]

    def mirrored(self, offset: int, length: int) -> memoryview:
        """The mirror of a range of the master's region; takes the memory for it."""
        if offset + length > self.region_bytes:
            raise MemoryError(
                f"asked for a copy of bytes {offset:,} to {offset + length:,} of the master's "
                f"memory, this node has addresses for {self.region_bytes:,}: raise `ulimit -v`"
            )
        for start, stop in self._mirrored.missing(offset, offset + length):
            self._take(self._shift + start, stop - start)
            self._mirrored.add(start, stop)
        return self.bytes_at(self._shift + offset, length)

    def free_mirrored(self, offset: int, length: int) -> None:
        """Free the mirror of a range that the master has freed."""
        self._advise(self._shift + offset, length, self._drop)
        self._mirrored.discard(offset, offset + length)

    def _advise(self, offset: int, length: int, advice: int) -> None:
        _libc.madvise(self.address + offset, length, advice)

    def _reclaim(self) -> None:
        while self._released:
            gone = self._released[0]
            self._blocks.discard(gone)
            self._released.popleft()
            if self._dirty is not None:
                self._dirty.free(gone.offset, gone.length)
            self._free.give(gone.offset, gone.length)
            self._unchecked = max(0, self._unchecked - gone.length)

    def leave_memory(self) -> None:
        """In a fork of the owner: no block that dies here may punch holes into its memory."""
        self._blocks.clear()

    def holds(self, array: np.ndarray) -> bool:
        """Whether the array's memory lies in the arena (of any member)."""
        start = array.__array_interface__["data"][0] - self.address
        return 0 <= start < self._bytes and array.size > 0

    def offset(self, array: np.ndarray) -> int:
        """Where in the arena an array begins, in bytes."""
        return int(array.__array_interface__["data"][0]) - self.address

    def ref(self, array: np.ndarray, generation: int = 0) -> ArrayRef:
        """Name a C-contiguous array of the arena."""
        return ArrayRef(self.offset(array), array.shape, array.dtype.str, generation)

    def view(self, ref: ArrayRef) -> np.ndarray:
        """The array that a ref names; it does not keep the block alive."""
        return np.ndarray(ref.shape, ref.dtype, self.buffer, ref.offset + self._shift)

    def empty_other_regions(self) -> None:
        """Give back what other members took; they are gone, and nobody may read it any more."""
        for region in range(self.regions):
            if region != self.mine:
                self._advise(region * self.region_bytes, self.region_bytes, self._drop)

    def close_fd(self) -> None:
        """Drop the descriptor; the mapping lives as long as a view of it does."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class _FreeList:
    """Address ranges (start, stop) not in use, sorted and merged; first fit.

    Each change is one assignment: the handler of a signal may raise between any two.
    """

    def __init__(self, start: int, stop: int) -> None:
        self._ranges = [(start, stop)]

    def take(self, length: int) -> int | None:
        for i, (start, stop) in enumerate(self._ranges):
            if stop - start >= length:
                rest = [(start + length, stop)] if stop - start > length else []
                self._ranges = [*self._ranges[:i], *rest, *self._ranges[i + 1 :]]
                return start
        return None

    def longest(self) -> int:
        """Bytes of the longest range."""
        return max([stop - start for start, stop in self._ranges], default=0)

    def give(self, start: int, length: int) -> None:
        ranges, stop = self._ranges, start + length
        first = last = bisect.bisect(ranges, (start, stop))
        if last < len(ranges) and ranges[last][0] == stop:
            stop = ranges[last][1]
            last += 1
        if first and ranges[first - 1][1] == start:
            first -= 1
            start = ranges[first][0]
        self._ranges = [*ranges[:first], (start, stop), *ranges[last:]]


def open_file(ref: FileRef) -> np.ndarray:
    """Map the file that a FileRef names."""
    mode: Any = ref.mode
    return np.asarray(np.memmap(ref.path, ref.dtype, mode, ref.offset, ref.shape))


class Views:
    """The arrays behind pieces, opened once and remembered while they are in use."""

    def __init__(self, arena: Arena, keep: int = 256) -> None:
        self._arena = arena
        self._keep = keep
        self._open: dict[ArrayRef | FileRef, np.ndarray] = {}

    def __getitem__(self, ref: ArrayRef | FileRef) -> np.ndarray:
        found = self._open.get(ref)
        if found is None:
            found = open_file(ref) if isinstance(ref, FileRef) else self._arena.view(ref)
            if len(self._open) >= self._keep:
                del self._open[next(iter(self._open))]
            self._open[ref] = found
        return found

    def offset(self, array: np.ndarray) -> int:
        """Where in the arena an array begins, in bytes."""
        return self._arena.offset(array)

    def hold(self, array: np.ndarray) -> bool:
        """Whether the array lies in the arena."""
        return self._arena.holds(array)


_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()
_mappings: set[_Finalizer] = set()


def _leave_memory() -> None:
    for arena in list(_arenas):
        arena.leave_memory()


os.register_at_fork(after_in_child=_leave_memory)


def _map(fd: int, length: int) -> Any:
    """Map a file, or for -1 fresh memory; it is unmapped when the last numpy view of it is gone.

    Python's own mmap keeps a duplicate of the descriptor for as long as the mapping lives.
    """
    fresh = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    flags = fresh if fd < 0 else mmap.MAP_SHARED
    address = _libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    kind: Any = type("Memory", (ctypes.c_ubyte * length,), {})
    memory = kind.from_address(address)
    gone = _Finalizer(memory, _mappings.discard)
    gone.also = _Finalizer(memory, functools.partial(_libc.munmap, address, length))
    _mappings.add(gone)
    return memory


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
    # a forked worker maps it beside the master's mapping, and as much is left to all else
    limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    room = 4 if limited else 1
    while size >= 4 * HEAD_BYTES:
        try:
            os.ftruncate(fd, (size + _STAGGER) * regions)
            _map(fd, room * (size + _STAGGER) * regions)
        except OSError:
            size //= 2
            continue
        return size + _STAGGER
    raise MemoryError(
        f"asked for {room * regions * 4 * HEAD_BYTES:,} bytes of addresses for shared memory, and "
        f"they cannot be had{_limits_of_addresses() or ': free memory, or ask for fewer members'}"
    )


def _limits_of_addresses() -> str:
    """What makes the arena smaller than it is elsewhere, and what to do."""
    found = []
    for name, which in (("-v", resource.RLIMIT_AS), ("-f", resource.RLIMIT_FSIZE)):
        soft, _ = resource.getrlimit(which)
        if soft != resource.RLIM_INFINITY:
            found.append(f"`ulimit {name}` is {soft:,} bytes")
    return f"; {' and '.join(found)}: raise it" if found else ""


def _short(asked: int, free: int, limit: str) -> MemoryError:
    return MemoryError(
        f"asked for {asked:,} bytes of shared memory, {max(0, free):,} are free ({limit}). "
        "Free Data that is no longer needed (del, free_memory()), use numpy.memmap for data "
        "larger than memory, or raise the limit"
    )
