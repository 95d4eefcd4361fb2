"""The node's shared memory: one sparse memfd, which every member maps, divided into regions.

Each member owns one region. Only the owner allocates there and writes the control words at the
region's head, so there is no allocator lock, and no word has two writers. The member that will
write a page touches it first. Members refer to arrays of the arena by offset, shape, dtype and
generation, never by address.

A memfd has no name, so it cannot outlive the processes that map it, and Docker's limit on /dev/shm
does not apply to it. posix_fallocate takes physical memory after a check of the limits of the
machine and of the cgroup: an over-committed page would raise SIGBUS, and fallocate above the limit
of a cgroup ends in an OOM kill. madvise(MADV_REMOVE) gives the memory back when the last numpy view
of a block is gone.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
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
from numpy.typing import DTypeLike

from synkhronos._errors import InputError
from synkhronos._host.atomic import AtomicReference
from synkhronos._host.descriptors import Descriptor
from synkhronos._host.memory_limits import available
from synkhronos._host.ranges import DirtyRanges, Ranges

PAGE = mmap.PAGESIZE
HEAD_BYTES = 1 << 20  # of each region; _transport/shared_state/control_words.py says what is in it
_TAKING = HEAD_BYTES - 8  # offset of a word in the head: the bytes that the owner is about to take
_MIN_REGION = 1 << 36
_MAX_ARENA = 1 << 45  # a quarter of what 47 address bits allow
# Equal offsets in two regions must not be a power of two apart. The first-level cache of AMD's Zen
# selects lines by a hash of the lower address bits: a loop over two such arrays is 6 times slower.
_STAGGER = 41 * PAGE
_CHECK_EVERY = 1 << 20  # bytes; smaller allocations do not read /proc
_STEP = 1 << 26  # bytes that are taken at a time; meanwhile they count twice for the other members
_RESERVE = 1 << 24  # bytes kept free for the rest of the program
_PAGE_TABLE = 512  # pages that one page of a member's page tables describes
# <sys/mman.h>
_MADV_REMOVE = 9  # free the pages, also in the file
_MADV_POPULATE_WRITE = 23  # allocate the pages now; since Linux 5.14
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_LARGE_PAGE = 1 << 21
_SEALS = 0x0002 | 0x0004 | 0x0001  # F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@dataclass(frozen=True)
class ArrayRef:
    """A reference to an array in the arena, valid in all members."""

    offset: int
    shape: tuple[int, ...]
    dtype: str
    generation: int

    def __reduce__(self) -> Any:
        return ArrayRef, (self.offset, self.shape, self.dtype, self.generation)


@dataclass(frozen=True)
class FileRef:
    """A reference to an array in a file, which each member maps itself (numpy.memmap)."""

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: str
    mode: str
    generation: int
    # machine, device and inode of the file: another one may get its name
    inode: tuple[str, int, int]


class _Finalizer(weakref.ref):
    """Calls a C function when an object is freed.

    If a finalizer runs Python code, Ctrl-C may be raised inside it. Then the interrupt is lost, and
    so is the memory that the rest of the finalizer would free.
    """

    __slots__ = ("also", "length", "offset")

    offset: int
    length: int
    also: _Finalizer  # another one, kept alive by this one

    __hash__ = object.__hash__  # the object may have no hash, or be gone
    __eq__ = object.__eq__
    _as_parameter_ = 0  # libc's functions ignore this extra argument


class _Block:
    """One allocation; numpy views keep it alive, and the memory is freed when it ends."""

    __slots__ = ("__array_interface__", "__weakref__", "_arena")

    def __init__(self, arena: Arena, offset: int, length: int) -> None:
        self._arena = arena  # keeps the mapping alive
        self.__array_interface__ = {
            "shape": (length,),
            "typestr": "|u1",
            "data": (arena.address + offset, False),
            "version": 3,
        }


class Arena:
    """Shared memory of `regions` regions, of which this process owns number `mine`.

    With `mirror` there is one more region, which holds copies of arrays of the master's region on
    another machine. `private` memory is not shared. The kernel backs it with large pages, which it
    seldom does for shared memory: large arrays are read and written in half the time.

    A fork of this process is no member: it writes a copy of the heads of the regions, not them.

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
        self.fd: Descriptor | None = Descriptor(fd)
        self.region_bytes = region_bytes
        self._shift = regions * region_bytes if mirror else 0
        self._bytes = (regions + mirror) * region_bytes
        self._private = private
        try:
            self.buffer = _map(-1 if private else fd, self._bytes)
        except OSError:  # `vm.overcommit_memory=2` refuses that much private memory
            self._private = False
            self.buffer = _map(fd, self._bytes)
        self.address = ctypes.addressof(self.buffer)
        self._memory = memoryview(np.ndarray((self._bytes,), np.uint8, self.buffer))
        self._drop = mmap.MADV_DONTNEED if self._private else _MADV_REMOVE
        if self._private:
            self.close_fd()
            self._advise(0, self._bytes, mmap.MADV_NOHUGEPAGE)
        self._advise(0, self._bytes, mmap.MADV_DONTDUMP)
        self._dirty: DirtyRanges | None = None  # with `track_changes`
        self._mirrored = Ranges()  # parts of the mirror that have memory
        self.generation = 0
        # whether a fork of this process gets a copy of all of this memory, as for other memory
        self.copied_in_forks = False
        self.own(mine)
        _arenas.add(self)

    def own(self, mine: int) -> None:
        """Make region `mine` this process's own; called again after a fork."""
        self.mine = mine
        self._unchecked = 0  # bytes taken since the last check of the limits
        start = mine * self.region_bytes
        self._free = _FreeList(start + HEAD_BYTES, start + self.region_bytes)
        self._blocks: set[_Finalizer] = set()  # in use, or about to be reclaimed
        self._released: deque[_Finalizer] = deque()
        heads = [region * self.region_bytes for region in range(self.regions)]
        self._taking = [np.ndarray((1,), np.int64, self.buffer, h + _TAKING) for h in heads]

    def head(self, region: int) -> memoryview:
        """The head of a region, which only its owner writes."""
        start = region * self.region_bytes
        return memoryview(np.ndarray((HEAD_BYTES,), np.uint8, self.buffer, start))

    def reserve_heads(self) -> None:
        """Allocate the memory of all heads, filled with zeros."""
        self._check(self.regions * HEAD_BYTES)
        # dropped first: after a restart they hold words of the earlier workers
        for region in range(self.regions):
            self._advise(region * self.region_bytes, HEAD_BYTES, self._drop)
            self._fallocate(region * self.region_bytes, HEAD_BYTES)

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> np.ndarray:
        """Allocate an array in this process's region; it is freed with its last view.

        Raises
        ------
        MemoryError
            It says what was asked for, what is free, and which limit applies.
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
        """Make a block that frees its memory, then its addresses (the last callback runs first)."""
        block = _Block(self, offset, length)
        free = functools.partial(_libc.madvise, self.address + offset, length, self._drop)
        gone = _Finalizer(block, self._released.append)
        gone.offset, gone.length = offset, length
        gone.also = _Finalizer(block, free)
        self._blocks.add(gone)
        return block

    def _take(self, offset: int, length: int) -> None:
        """Allocate physical memory, and announce it to the other members meanwhile.

        Otherwise members that allocate at the same time would all count the same free memory.
        """
        # /proc is not read for each of these: `_check` keeps as much back for every member
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
        """Raise unless there is memory for this and for what other members are about to take."""
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
            os.posix_fallocate(self.own_fd(), offset, length)
        except OSError as exc:
            limit = available()
            raise _short(length, limit.free, f"{exc.strerror}; {limit.text}") from None

    def own_fd(self) -> Descriptor:
        """The descriptor of the memory.

        Raises
        ------
        OSError
            It is closed, or its number belongs to another file.
        """
        if self.fd is None or not self.fd.is_ours:
            raise OSError(errno.EBADF, "the descriptor of the shared memory is closed")
        return self.fd

    def _allot(self, offset: int, length: int) -> None:
        """Allocate private memory: large pages inside the range, small pages at its ends."""
        whole = _LARGE_PAGE - 1
        first = ((self.address + offset + whole) & ~whole) - self.address
        last = ((self.address + offset + length) & ~whole) - self.address
        self._advise(offset, length, mmap.MADV_NOHUGEPAGE)
        if first < last:
            self._advise(first, last - first, mmap.MADV_HUGEPAGE)
        # older kernels allocate the pages at the first write
        self._advise(offset, length, _MADV_POPULATE_WRITE)

    @property
    def mirrors(self) -> bool:
        """Whether there is a mirror of the master's region on another machine."""
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
            self._mirrored = self._mirrored.plus(start, stop)
        return self.bytes_at(self._shift + offset, length)

    def free_mirrored(self, offset: int, length: int) -> None:
        """Free the mirror of a range that the master has freed."""
        self._advise(self._shift + offset, length, self._drop)
        self._mirrored = self._mirrored.minus(offset, offset + length)

    def _advise(self, offset: int, length: int, advice: int) -> None:
        _libc.madvise(self.address + offset, length, advice)

    def _reclaim(self) -> None:
        while self._released:
            try:
                gone = self._released.popleft()
            except IndexError:  # a handler, a finalizer or another thread has taken it
                return
            self._blocks.discard(gone)
            if self._dirty is not None:
                self._dirty.free(gone.offset, gone.length)
            self._free.give(gone.offset, gone.length)
            self._unchecked = max(0, self._unchecked - gone.length)

    def copy_in_forks(self) -> None:
        """Let forks of this process, a worker, have copies; those without Python have no heads."""
        self.copied_in_forks = True
        for region in range(self.regions):
            self._advise(region * self.region_bytes, HEAD_BYTES, mmap.MADV_DONTFORK)

    def part(self) -> None:
        """In a fork of the owner: nothing here must change what members share."""
        self._blocks.clear()
        if self.fd is None:
            return
        if self.copied_in_forks:
            self._copy(0, self._bytes)
            return
        for region in range(self.regions):
            self._copy(region * self.region_bytes, HEAD_BYTES)

    def _copy(self, offset: int, length: int) -> None:
        """Map a range again, so that what this process writes there stays its own."""
        flags, address = mmap.MAP_PRIVATE | _MAP_FIXED | _MAP_NORESERVE, self.address + offset
        # `vm.overcommit_memory=2` and `ulimit -d` may refuse a copy that can be written
        for access in (mmap.PROT_READ | mmap.PROT_WRITE, mmap.PROT_READ):
            if _libc.mmap(address, length, access, flags, self.fd, offset) == address:
                break
        self._advise(offset, length, mmap.MADV_DONTDUMP)

    def holds(self, array: np.ndarray) -> bool:
        """Whether the array lies in the arena, in the region of any member."""
        start = array.__array_interface__["data"][0] - self.address
        return 0 <= start < self._bytes and array.size > 0

    def offset(self, array: np.ndarray) -> int:
        """The offset of an array in the arena, in bytes."""
        return int(array.__array_interface__["data"][0]) - self.address

    def ref(self, array: np.ndarray, generation: int = 0) -> ArrayRef:
        """A reference to a C-contiguous array of the arena."""
        return ArrayRef(self.offset(array), array.shape, array.dtype.str, generation)

    def view(self, ref: ArrayRef) -> np.ndarray:
        """The array of a reference; it does not keep the block alive."""
        return np.ndarray(ref.shape, ref.dtype, self.buffer, ref.offset + self._shift)

    def empty_other_regions(self) -> None:
        """Free the memory of the other members, which have ended.

        Two calls: the kernel goes through the mappings of all members in each.
        """
        below, above = self.mine, self.mine + 1
        if below:
            self._advise(0, below * self.region_bytes, self._drop)
        if above < self.regions:
            beyond = (self.regions - above) * self.region_bytes
            self._advise(above * self.region_bytes, beyond, self._drop)

    def close_fd(self) -> None:
        """Close the descriptor; the mapping lives as long as any view of it."""
        fd, self.fd = self.fd, None
        if fd is not None:
            fd.close()


_Spans = tuple[tuple[int, int], ...]


class _FreeList:
    """Free address ranges (start, stop), sorted and merged; allocation is first fit.

    No range is given to two callers, also if one of them interrupts the other.
    """

    def __init__(self, start: int, stop: int) -> None:
        self._ranges: AtomicReference[_Spans] = AtomicReference(((start, stop),))

    def take(self, length: int) -> int | None:
        def taken(ranges: _Spans) -> tuple[_Spans, int | None]:
            for i, (start, stop) in enumerate(ranges):
                if stop - start >= length:
                    rest = [(start + length, stop)] if stop - start > length else []
                    return (*ranges[:i], *rest, *ranges[i + 1 :]), start
            return ranges, None

        return self._ranges.update(taken)

    def longest(self) -> int:
        """Bytes of the longest range."""
        return max([stop - start for start, stop in self._ranges.value], default=0)

    def give(self, start: int, length: int) -> None:
        def given(ranges: _Spans) -> tuple[_Spans, None]:
            low, high = start, start + length
            first = last = bisect.bisect(ranges, (low, high))
            if last < len(ranges) and ranges[last][0] == high:
                high = ranges[last][1]
                last += 1
            if first and ranges[first - 1][1] == low:
                first -= 1
                low = ranges[first][0]
            return (*ranges[:first], (low, high), *ranges[last:]), None

        self._ranges.update(given)


def open_file(ref: FileRef) -> np.ndarray:
    """Map the array of a FileRef.

    Raises
    ------
    InputError
        Another file has the name now. Members that opened it before have the rows of the old one.
    """
    mode: Any = ref.mode
    with open(ref.path, "r+b" if mode == "r+" else "rb") as file:
        machine, *_ = found = inode_of(file.fileno())
        if machine == ref.inode[0] and found != ref.inode:
            raise InputError(
                f"{ref.path} is not the file any more that Data were made of: another one has its "
                "name. Map that one, and give it to the Data: d.set_value(np.memmap(...)). To "
                "change rows, write into the file and do not replace it"
            )
        return np.asarray(np.memmap(file, ref.dtype, mode, ref.offset, ref.shape))


def mapped_inode(array: np.ndarray, path: str) -> tuple[str, int, int]:
    """The inode of the file that an array maps, and that has the name `path`.

    Raises
    ------
    InputError
        Another file has the name, which the members would map.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size:
            with mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ) as other:
                now = np.frombuffer(other, np.uint8)
                addresses = [a.__array_interface__["data"][0] for a in (array, now)]
                del now  # else the map cannot be closed
                first, second = _files_at(*addresses)
            if first == second is not None:
                return inode_of(file.fileno())
    raise InputError(
        f"the array maps a file that is not {path} any more: another one has the name, and members "
        "would read that. Map it again, by np.load(path, mmap_mode=) or np.memmap, or give a copy, "
        "np.array(value)"
    )


def _files_at(*addresses: int) -> list[tuple[str, str] | None]:
    """Device and inode of what is mapped at addresses, as the kernel's table of maps has them.

    Some file systems have other numbers of devices there than in `os.stat`.
    """
    found: list[tuple[str, str] | None] = [None] * len(addresses)
    with open("/proc/self/maps", "rb") as table:
        for line in table:
            span, _, _, device, inode, *_ = line.decode(errors="replace").split(maxsplit=5)
            low, high = (int(end, 16) for end in span.split("-"))
            for i, address in enumerate(addresses):
                if low <= address < high:
                    found[i] = device, inode
    return found


def inode_of(file: str | int) -> tuple[str, int, int]:
    """Machine, device and inode of a file, or of a descriptor's."""
    found = os.stat(file)
    return os.uname().nodename, found.st_dev, found.st_ino


class Views:
    """The arrays of references; the latest few stay open."""

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
        """The offset of an array in the arena, in bytes."""
        return self._arena.offset(array)

    def hold(self, array: np.ndarray) -> bool:
        """Whether the array lies in the arena."""
        return self._arena.holds(array)


_arenas: weakref.WeakSet[Arena] = weakref.WeakSet()
_mappings: set[_Finalizer] = set()


def _part() -> None:
    for arena in list(_arenas):
        arena.part()


os.register_at_fork(after_in_child=_part)


def _map(fd: int, length: int) -> Any:
    """Map a file, or private memory for -1, until the last numpy view of it is gone.

    Python's mmap would keep a duplicate of the descriptor as long as the mapping lives.
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
    """The region size: twice the machine's memory, halved until `ulimit -v` and `-f` allow it."""
    memory = os.sysconf("SC_PHYS_PAGES") * PAGE
    size = max(_MIN_REGION, 1 << (2 * memory - 1).bit_length())
    while size * regions > _MAX_ARENA:
        size //= 2
    # a forked worker maps it in addition to the master's mapping; as much is left for other uses
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
        f"asked for {room * regions * 4 * HEAD_BYTES:,} bytes of addresses for shared memory, "
        f"which are not free{_limits_of_addresses() or ': free memory, or ask for fewer members'}"
    )


def _limits_of_addresses() -> str:
    """The limits that keep the arena small, with advice; empty if there is none."""
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
