"""The meeting and the sum of a small vector of each member, in one call of compiled code.

The steps are those of `SharedMemory._reduce_small` with `Node.enter`: copy the vector to this
member's buffer, come to the entrance, wait for a short time, look at the checksums, and add up in
the order of ranks. Each step in Python takes 0.1 to 0.5 us, all together more than the meeting.

On x86, another core sees stores in the order of the program. The store of the word BARRIER must not
come after the load of ASLEEP, so a locked instruction makes it: a member that is about to sleep
either sees the word, or is seen asleep.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from synkhronos._compiling.loops import njit

DTYPES = tuple(np.dtype(t) for t in ("f4", "f8", "i8"))  # int32 + int32 is int64 in numba
# what `Table.run` returns: the sum is there; a member has not come yet; the sum is there, and a
# member may sleep; the members' arrays differ, and a member may sleep
DONE, LATE, DONE_ASLEEP, DIFFERENT = range(4)

_I64 = ir.IntType(64)
# words of a table; then four for each rank: addresses of BARRIER, ASLEEP, checksum and numbers
_FIELDS = (
    "count",
    "kind",
    "members",
    "me",
    "leader",
    "target",
    "numbers",
    "my_checksum",
    "checksum",
    "manifest",
    "barrier",
)


@dataclass(frozen=True)
class Place:
    """The addresses of what one member shows the others in a small reduction."""

    barrier: int
    asleep: int
    checksum: int
    numbers: int


class Table:
    """All that a repeated sum needs, as words which compiled code reads.

    Parameters
    ----------
    array : numpy.ndarray
        C-contiguous, of one of `DTYPES`; it is overwritten by the sum.
    me, leader : int
        Places in `members`. The leader lets the others go on.
    members : sequence of Place
    manifest : int
        The address of this member's word MANIFEST.
    checksum : int
    """

    def __init__(
        self,
        array: np.ndarray,
        me: int,
        leader: int,
        members: Sequence[Place],
        manifest: int,
        checksum: int,
    ) -> None:
        mine = members[me]
        words = {
            "count": array.size,
            "kind": DTYPES.index(array.dtype),
            "members": len(members),
            "me": me,
            "leader": leader,
            "target": array.ctypes.data,
            "numbers": mine.numbers,
            "my_checksum": mine.checksum,
            "checksum": checksum,
            "manifest": manifest,
            "barrier": mine.barrier,
        }
        assert tuple(words) == _FIELDS
        places = np.array([[p.barrier, p.asleep, p.checksum, p.numbers] for p in members])
        self._words = np.concatenate([list(words.values()), places.ravel()]).astype(np.int64)
        self.address = self._words.ctypes.data
        self.run: Any = _compiled()  # of the address, the number of the entrance, and looks


def address_of(memory: memoryview) -> int:
    """The address of writable memory."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@functools.cache
def _compiled() -> Any:
    return njit(_meet_and_sum)  # type: ignore[arg-type]


def _word_at(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type = _I64) -> ir.Value:
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic  # type: ignore[untyped-decorator]
def _seen(typing: Any, address: Any) -> Any:
    """A word that another process may change at any time."""

    def code(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_word_at(builder, args[0]), "acquire", 8)

    return types.int64(types.int64), code


@intrinsic  # type: ignore[untyped-decorator]
def _tell(typing: Any, address: Any, word: Any) -> Any:
    """Set a word, which other cores see before this one reads anything else."""

    def code(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("xchg", _word_at(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), code


@intrinsic  # type: ignore[untyped-decorator]
def _number(typing: Any, address: Any, like: Any) -> Any:
    """The number at an address, of the type of another one."""

    def code(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.load(_word_at(builder, args[0], context.get_value_type(like)))

    return like(types.int64, like), code


@intrinsic  # type: ignore[untyped-decorator]
def _put(typing: Any, address: Any, number: Any) -> Any:
    """Write a number to an address."""

    def code(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        builder.store(args[1], _word_at(builder, args[0], context.get_value_type(number)))
        return context.get_dummy_value()

    return types.none(types.int64, number), code


@numba.njit  # type: ignore[untyped-decorator]
def _copied(source: int, target: int, count: int, size: int, like: Any) -> None:
    for at in range(0, count * size, size):
        _put(target + at, _number(source + at, like))


@numba.njit  # type: ignore[untyped-decorator]
def _added(places: int, members: int, target: int, count: int, size: int, like: Any) -> None:
    for at in range(0, count * size, size):
        total = _number(_number(places + 24, members) + at, like)
        for r in range(1, members):
            total += _number(_number(places + 32 * r + 24, members) + at, like)
        _put(target + at, total)


@numba.njit  # type: ignore[untyped-decorator]
def _come(barrier: int, here: int, looks: int) -> bool:
    for _ in range(looks):  # noqa: SIM110 (numba knows no generators here)
        if _seen(barrier) >= here:
            return True
    return False


def _meet_and_sum(table: int, here: int, looks: int) -> int:
    count, kind = _number(table, here), _number(table + 8, here)
    members, me = _number(table + 16, here), _number(table + 24, here)
    leader = _number(table + 32, here)
    target, numbers = _number(table + 40, here), _number(table + 48, here)
    checksum, places = _number(table + 64, here), table + 88
    if kind == 0:
        _copied(target, numbers, count, 4, np.float32(0))
    elif kind == 1:
        _copied(target, numbers, count, 8, np.float64(0))
    else:
        _copied(target, numbers, count, 8, np.int64(0))
    _put(_number(table + 56, here), checksum)
    _put(_number(table + 72, here), np.int64(0))
    asleep = np.int64(0)
    if me == leader:
        for r in range(members):
            if r != me and not _come(_number(places + 32 * r, here), here, looks):
                return 1
        _tell(_number(table + 80, here), here)
        for r in range(members):
            asleep |= _seen(_number(places + 32 * r + 8, here))
    else:
        _tell(_number(table + 80, here), here)
        if _seen(_number(places + 32 * leader + 8, here)):
            return 1
        if not _come(_number(places + 32 * leader, here), here, looks):
            return 1
    for r in range(members):
        if _seen(_number(places + 32 * r + 16, here)) != checksum:
            return 3
    if kind == 0:
        _added(places, members, target, count, 4, np.float32(0))
    elif kind == 1:
        _added(places, members, target, count, 8, np.float64(0))
    else:
        _added(places, members, target, count, 8, np.int64(0))
    return 2 if asleep else 0
