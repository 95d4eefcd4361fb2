"""Transfers between the leaders of nodes: each begins with an agreement that all will come.

What a transfer needs of memory is taken before. A leader that fails after the agreement all the
same tears the transfer: nobody waits for it, and the group is over.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from synkhronos._backends.reduction_loops import reduce_block
from synkhronos._errors import InputError
from synkhronos._plan.reductions import Reduction, combine, shares
from synkhronos._transport import serialization
from synkhronos._transport.channels.leader_tree import DIFFERENT, Leaders
from synkhronos._transport.communicators.communicator import DIFFER
from synkhronos._transport.communicators.half_precision import halved, restored

_SMALL = 1 << 14  # bytes: what is smaller travels with the agreement itself
_TOLD = 1 << 12  # bytes of all nodes together: below, reductions are made of what leaders say
_SIZE = struct.Struct("=q")
_EXTREMA = (Reduction.MIN, Reduction.MAX)
# between two transfers: a warning that is an error would leave the others in the second one
_SILENT = functools.partial(np.errstate, all="ignore")


class Transfers(Protocol):
    """What moves bytes between all leaders at once; see `_mpi.World`."""

    def broadcast(self, buffer: np.ndarray, root: int) -> None: ...

    def gather(
        self, mine: np.ndarray, into: np.ndarray | None, sizes: Sequence[int], root: int
    ) -> None: ...

    def all_gather(self, mine: np.ndarray, into: np.ndarray, sizes: Sequence[int]) -> None: ...

    def all_to_all(self, parts: np.ndarray, into: np.ndarray) -> None: ...

    def scatter(
        self, parts: np.ndarray | None, sizes: Sequence[int], mine: np.ndarray, root: int
    ) -> None: ...

    def reduces(self, dtype: np.dtype, op: Reduction) -> bool: ...

    def all_reduce(self, array: np.ndarray, op: Reduction) -> None: ...


class Between:
    """One leader's end of transfers.

    All leaders call the same verbs in the same order. A leader that has failed before, or fails to
    get memory, frees the others by `Leaders.leave`. In the master Ctrl-C waits meanwhile.
    """

    def __init__(
        self, leaders: Leaders, transfers: Transfers, interrupts: AbstractContextManager[None]
    ) -> None:
        self.node = leaders.rank
        self.nodes = leaders.size
        self._leaders = leaders
        self._transfers = transfers
        self.interrupts = interrupts

    def without_master(self) -> AbstractContextManager[None]:
        """Run a command that the master takes no part in: agreements raise GroupError."""
        return self._leaders.without_root()

    def agree(self) -> None:
        """A meeting of all leaders."""
        self._leaders.agree()

    def check(self) -> None:
        """Raise where an exchange of GPUs failed on another node; see Leaders."""
        self._leaders.check()

    def fail_exchange(self) -> None:
        """Tell the other nodes that an exchange of GPUs failed on this node."""
        self._leaders.fail_exchange()

    def broadcast(self, value: Any, root: int) -> Any:
        """The root's value, everywhere."""
        mine = self.node == root
        packed = _packed(value) if mine else None
        with self.interrupts:
            heard = self._sizes_or_all(packed, (root,))
            if isinstance(heard[root], bytes):
                return value if mine else _unpacked(np.frombuffer(heard[root], np.uint8))
            buffer = packed if packed is not None else np.empty(heard[root], np.uint8)
            self._leaders.agree()
            self._move(self._transfers.broadcast, buffer, root)
        return value if mine else _unpacked(buffer)

    def gather(self, value: Any, root: int) -> list[Any] | None:
        """Everybody's values at the root, by node."""
        packed = _packed(value)
        with self.interrupts:
            heard = self._sizes_or_all(packed, range(self.nodes))
            if all(isinstance(h, bytes) for h in heard.values()):
                return self._read(heard) if self.node == root else None
            sizes = _sizes(heard)
            into = np.empty(sum(sizes), np.uint8) if self.node == root else None
            self._leaders.agree()
            self._move(self._transfers.gather, packed, into, sizes, root)
        return None if into is None else [_unpacked(part) for part in _cut(into, sizes)]

    def all_gather(self, value: Any) -> list[Any]:
        """Everybody's values everywhere, by node."""
        packed = _packed(value)
        with self.interrupts:
            heard = self._sizes_or_all(packed, range(self.nodes))
            if all(isinstance(h, bytes) for h in heard.values()):
                return self._read(heard)
            sizes = _sizes(heard)
            into = np.empty(sum(sizes), np.uint8)
            self._leaders.agree()
            self._move(self._transfers.all_gather, packed, into, sizes)
        return [_unpacked(part) for part in _cut(into, sizes)]

    def scatter(self, values: Sequence[Any] | None, root: int) -> Any:
        """This node's one of the root's values."""
        packed, says = None, b""
        if values is not None:
            parts = [_packed(v) for v in values]
            packed, says = np.concatenate(parts), np.array([p.size for p in parts]).tobytes()
        with self.interrupts:
            _, heard = self._leaders.agree(says=says)
            sizes = np.frombuffer(heard[root], np.int64).tolist()
            mine = np.empty(sizes[self.node], np.uint8)
            self._leaders.agree()
            self._move(self._transfers.scatter, packed, sizes, mine, root)
        return _unpacked(mine)

    def all_reduce(
        self,
        arrays: Sequence[np.ndarray],
        op: Reduction,
        weights: Sequence[float] | None = None,
        starting: Callable[[], None] | None = None,
    ) -> None:
        """Reduce C-contiguous arrays in place, in all nodes; weights by node."""
        told = self.nodes * sum([a.nbytes for a in arrays]) <= _TOLD
        with self.interrupts:
            if told:
                heard = self.agree_on(arrays, b"".join([a.tobytes() for a in arrays]))
                if starting is not None:
                    starting()
                self._reduce_told(heard, arrays, op, weights)
                return
            room = self._room([a for a in arrays if not self._sends(a, op)])
            undefined = op in _EXTREMA and any([_has_nan(a) for a in arrays])
            heard = self.agree_on(arrays, b"\1" if undefined else b"")
            if starting is not None:
                self._move(starting)
            for array in arrays:
                self._move(self._reduce, array, op, weights, room, bool(heard))

    def _reduce_told(
        self,
        heard: dict[int, bytes],
        arrays: Sequence[np.ndarray],
        op: Reduction,
        weights: Sequence[float] | None,
    ) -> None:
        at = 0
        for array in arrays:
            values = [_told(heard.get(n, b""), at, array) for n in range(self.nodes)]
            _reduce_all(values, op, weights, array)
            at += array.nbytes

    def add(self, array: np.ndarray, compress: str | None = None) -> None:
        """One of several sums in place that the leaders have agreed to come to."""
        if compress is None or array.dtype.char not in "fd":
            self._move(self._reduce, array, Reduction.SUM, None)
        else:
            self._move(self._add_halved, array, compress)

    def _move[**P](self, transfer: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Make a transfer that all leaders have agreed to come to."""
        try:
            transfer(*args, **kwargs)
        except BaseException:
            self._leaders.tear()
            raise

    def _add_halved(self, array: np.ndarray, how: str) -> None:
        """Each node adds up one stretch of all, in the order of nodes, and sends the sum to all."""
        flat, n = array.reshape(-1), self.nodes
        length = -(-flat.size // n)
        parts = np.zeros((n, length), np.uint16)
        parts.reshape(-1)[: flat.size] = halved(flat, how)
        into = np.empty_like(parts)
        total = np.zeros(length, array.dtype)
        self._transfers.all_to_all(parts, into)
        with _SILENT():
            for part in into:
                total += restored(part, how, array.dtype)
        mine, whole = halved(total, how), into.reshape(-1)
        self._transfers.all_gather(mine.view(np.uint8), whole.view(np.uint8), [mine.nbytes] * n)
        flat[...] = restored(whole[: flat.size], how, array.dtype)

    def agree_on(self, arrays: Sequence[np.ndarray], says: bytes = b"") -> dict[int, bytes]:
        """A meeting of leaders that have arrays of the same dtypes and shapes, and what they say.

        Raises
        ------
        InputError
            They have others.
        """
        word, heard = self._leaders.agree(_word(tuple([(a.dtype, a.shape) for a in arrays])), says)
        if word == DIFFERENT:
            raise InputError(DIFFER)
        return heard

    def reduce(
        self, arrays: list[np.ndarray] | None, op: Reduction, weights: Sequence[float]
    ) -> list[np.ndarray] | None:
        """Reduced values everywhere, of those nodes that have arrays; None where none has.

        Arrays are the caller's to lose; weights by node, 0 for those without.
        """
        if all(weights):
            assert arrays is not None
            self.all_reduce(arrays, op, weights)
            return arrays
        values = self.all_gather(arrays)
        given = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None]
        if not given:
            return None
        columns = zip(*[v for v, _ in given], strict=True)
        return [combine(c, op, [w for _, w in given]) for c in columns]

    def _sends(self, array: np.ndarray, op: Reduction) -> bool:
        """Whether MPI reduces such arrays, and as numpy does it."""
        rounded = op is Reduction.AVG and array.dtype.kind not in "fc"
        return not rounded and self._transfers.reduces(array.dtype, _plain(op))

    def _room(self, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
        """Memory for the longest of these of all nodes."""
        longest = max([a.nbytes for a in arrays], default=0)
        return np.empty(self.nodes * longest, np.uint8) if longest else None

    def _reduce(
        self,
        array: np.ndarray,
        op: Reduction,
        weights: Sequence[float] | None,
        room: np.ndarray | None = None,
        undefined: bool = False,
    ) -> None:
        """In place; `undefined`: a minimum or maximum of values some of which may be NaN."""
        if not self._sends(array, op):
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            sizes = [raw.size] * self.nodes
            into = np.empty(sum(sizes), np.uint8) if room is None else room[: sum(sizes)]
            self._transfers.all_gather(raw, into, sizes)
            column = [p.view(array.dtype).reshape(array.shape) for p in _cut(into, sizes)]
            _reduce_all(column, op, weights, array)
            return
        if op is Reduction.AVG:
            share = shares([1.0] * self.nodes if weights is None else weights)[self.node]
            with _SILENT():
                np.multiply(array, array.dtype.type(share), out=array)
        if undefined and array.dtype.kind == "f":  # which MPI's comparisons may pass over
            flat = array.reshape(-1)
            holes = np.isnan(flat)
            self._transfers.all_reduce(holes.view(np.uint8), Reduction.MAX)
            self._transfers.all_reduce(flat, op)
            flat[holes] = np.nan
            return
        self._transfers.all_reduce(array, _plain(op))

    def _sizes_or_all(self, packed: np.ndarray | None, who: Sequence[int]) -> dict[int, Any]:
        """By leader: the size of a large parcel, or a small one itself."""
        says = b""
        if packed is not None:
            small = packed.size <= _SMALL
            says = b"\1" + packed.tobytes() if small else b"\0" + _SIZE.pack(packed.size)
        _, heard = self._leaders.agree(says=says)
        return {r: heard[r][1:] if heard[r][0] else _SIZE.unpack_from(heard[r], 1)[0] for r in who}

    def _read(self, heard: dict[int, Any]) -> list[Any]:
        return [_unpacked(np.frombuffer(h, np.uint8)) for _, h in sorted(heard.items())]


def _plain(op: Reduction) -> Reduction:
    return Reduction.SUM if op is Reduction.AVG else op


def _has_nan(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" and array.size > 0 and bool(np.isnan(array.min()))


def _sizes(heard: dict[int, Any]) -> list[int]:
    return [h if isinstance(h, int) else len(h) for _, h in sorted(heard.items())]


def _cut(whole: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """The parts of all nodes."""
    stops = np.cumsum(sizes).tolist()
    return [whole[stop - n : stop] for stop, n in zip(stops, sizes, strict=True)]


@functools.lru_cache(maxsize=256)
def _word(kinds: tuple[tuple[np.dtype, tuple[int, ...]], ...]) -> int:
    """What is the same for arrays of the same kinds, and hardly ever for others."""
    return zlib.crc32(repr([(dtype.str, shape) for dtype, shape in kinds]).encode())


def _told(said: bytes, at: int, like: np.ndarray) -> np.ndarray:
    if not like.size:
        return like.copy()
    return np.frombuffer(said, like.dtype, like.size, at).reshape(like.shape)


def _reduce_all(
    values: list[np.ndarray], op: Reduction, weights: Sequence[float] | None, out: np.ndarray
) -> None:
    """In the order of nodes."""
    total = reduce_block(values, op, weights, out=out)
    if total is not out:
        out[...] = total


def _packed(value: Any) -> np.ndarray:
    parcel = serialization.Parcel(value)
    buffer = np.empty(parcel.nbytes, np.uint8)
    parcel.write(memoryview(buffer))
    return buffer


def _unpacked(buffer: np.ndarray) -> Any:
    return serialization.read(memoryview(buffer))
