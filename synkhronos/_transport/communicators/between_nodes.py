"""Transfers of arrays between the leaders of nodes.

Before each transfer all leaders agree that they will come; the memory for it is taken before the
agreement. A leader that fails after the agreement declares the transfer failed: no leader waits for
it any more, and the group ends.
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
from synkhronos._proofs.reductions import Reduction, combine, normalized
from synkhronos._transport import serialization
from synkhronos._transport.channels.leader_tree import DIFFERENT, Leaders
from synkhronos._transport.communicators.communicator import DIFFER
from synkhronos._transport.communicators.half_precision import Rounding, compressed, decompressed

_SMALL = 1 << 14  # bytes; a value up to this size travels with the agreement itself
_SMALL_REDUCTION = 1 << 12  # bytes of all nodes together; up to this, too
_SIZE = struct.Struct("=q")
_EXTREMA = (Reduction.MIN, Reduction.MAX)
# A warning turned into an error between two transfers would leave the others in the second one.
_SILENT = functools.partial(np.errstate, all="ignore")


class Transfers(Protocol):
    """Collective transfers of bytes between all leaders; `_backends.mpi.World` implements them.

    All leaders call the same methods in the same order. A method returns when this leader may use
    its arrays again. `sizes` are bytes of each leader.
    """

    def broadcast(self, buffer: np.ndarray, root: int) -> None:
        """Copy the root's buffer into all others."""

    def gather(
        self, mine: np.ndarray, into: np.ndarray | None, sizes: Sequence[int], root: int
    ) -> None:
        """Write all leaders' bytes, by rank, into the root's `into`; None elsewhere."""

    def all_gather(self, mine: np.ndarray, into: np.ndarray, sizes: Sequence[int]) -> None:
        """Write all leaders' bytes, by rank, into `into` of each."""

    def all_to_all(self, parts: np.ndarray, into: np.ndarray) -> None:
        """Send row k of `parts` to leader k; row k of `into` comes from leader k."""

    def all_to_all_v(
        self, parts: np.ndarray, sent: Sequence[int], into: np.ndarray, found: Sequence[int]
    ) -> None:
        """Send part k of `parts`, ``sent[k]`` bytes, to leader k; ``found[k]`` come from it."""

    def scatter(
        self, parts: np.ndarray | None, sizes: Sequence[int], mine: np.ndarray, root: int
    ) -> None:
        """Write each leader's share of the root's `parts` into its `mine`."""

    def reduces(self, dtype: np.dtype, op: Reduction) -> bool:
        """Whether `all_reduce` can combine such values; if not, `all_to_all` moves them."""

    def all_reduce(self, array: np.ndarray, op: Reduction) -> None:
        """Combine the leaders' arrays in place."""


class BetweenNodes:
    """One leader's end of transfers.

    All leaders call the same methods in the same order. A leader that has failed before, or gets no
    memory, frees the others by `Leaders.leave`. In the master Ctrl-C waits during a transfer.
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
        """Wait for all leaders to come here."""
        self._leaders.agree()

    def check(self) -> None:
        """Raise if an exchange of GPUs failed on another node; see `Leaders.check`."""
        self._leaders.check()

    def fail_exchange(self) -> None:
        """Tell the other nodes that an exchange of GPUs failed on this node."""
        self._leaders.fail_exchange()

    def broadcast(self, value: object, root: int) -> object:
        """The root's value, on all nodes."""
        mine = self.node == root
        packed = _packed(value) if mine else None
        with self.interrupts:
            payloads = self._sizes_or_values(packed, (root,))
            if isinstance(payloads[root], bytes):
                return value if mine else _unpacked(np.frombuffer(payloads[root], np.uint8))
            buffer = packed if packed is not None else np.empty(payloads[root], np.uint8)
            self._leaders.agree()
            self._move(self._transfers.broadcast, buffer, root)
        return value if mine else _unpacked(buffer)

    def gather(self, value: object, root: int) -> list[Any] | None:
        """At the root: the values of all nodes, in their order."""
        packed = _packed(value)
        with self.interrupts:
            payloads = self._sizes_or_values(packed, range(self.nodes))
            if all(isinstance(h, bytes) for h in payloads.values()):
                return self._read(payloads) if self.node == root else None
            sizes = _sizes(payloads)
            into = np.empty(sum(sizes), np.uint8) if self.node == root else None
            self._leaders.agree()
            self._move(self._transfers.gather, packed, into, sizes, root)
        return None if into is None else [_unpacked(part) for part in _cut(into, sizes)]

    def all_gather(self, value: Any) -> list[Any]:
        """The values of all nodes, in their order, on all nodes."""
        packed = _packed(value)
        with self.interrupts:
            payloads = self._sizes_or_values(packed, range(self.nodes))
            if all(isinstance(h, bytes) for h in payloads.values()):
                return self._read(payloads)
            sizes = _sizes(payloads)
            into = np.empty(sum(sizes), np.uint8)
            self._leaders.agree()
            self._move(self._transfers.all_gather, packed, into, sizes)
        return [_unpacked(part) for part in _cut(into, sizes)]

    def swap(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Send part k, of bytes, to node k; returns what the nodes have sent here."""
        sent = [part.size for part in parts]
        whole = np.concatenate(parts)
        with self.interrupts:
            _, payloads = self._leaders.agree(payload=np.array(sent, np.int64).tobytes())
            sizes = [np.frombuffer(payloads[n], np.int64) for n in range(self.nodes)]
            found = [int(each[self.node]) for each in sizes]
            into = np.empty(sum(found), np.uint8)
            self._leaders.agree()
            self._move(self._transfers.all_to_all_v, whole, sent, into, found)
        return _cut(into, found)

    def scatter(self, values: Sequence[Any] | None, root: int) -> object:
        """The root has one value for each node; returns this node's."""
        packed, payload = None, b""
        if values is not None:
            parts = [_packed(v) for v in values]
            packed, payload = np.concatenate(parts), np.array([p.size for p in parts]).tobytes()
        with self.interrupts:
            _, payloads = self._leaders.agree(payload=payload)
            sizes = np.frombuffer(payloads[root], np.int64).tolist()
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
        """Reduce C-contiguous arrays in place, on all nodes; weights by node."""
        small = self.nodes * sum([a.nbytes for a in arrays]) <= _SMALL_REDUCTION
        with self.interrupts:
            if small:
                payloads = self.agree_on(arrays, b"".join([a.tobytes() for a in arrays]))
                if starting is not None:
                    starting()
                self._reduce_payloads(payloads, arrays, op, weights)
                return
            room = self._room([a for a in arrays if not self._sends(a, op)])
            undefined = op in _EXTREMA and any([_has_nan(a) for a in arrays])
            payloads = self.agree_on(arrays, b"\1" if undefined else b"")
            if starting is not None:
                self._move(starting)
            for array in arrays:
                self._move(self._reduce, array, op, weights, room, bool(payloads))

    def _reduce_payloads(
        self,
        payloads: dict[int, bytes],
        arrays: Sequence[np.ndarray],
        op: Reduction,
        weights: Sequence[float] | None,
    ) -> None:
        at = 0
        for array in arrays:
            values = [_array_of(payloads.get(n, b""), at, array) for n in range(self.nodes)]
            _reduce_all(values, op, weights, array)
            at += array.nbytes

    def add(self, array: np.ndarray, rounding: Rounding | None = None) -> None:
        """Sum an array in place: one of several that the leaders have agreed to come to."""
        if rounding is None or array.dtype.char not in "fd":
            self._move(self._reduce, array, Reduction.SUM, None)
        else:
            self._move(self._add_compressed, array, rounding)

    def _move[**P](self, transfer: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a transfer that all leaders have agreed to come to."""
        try:
            transfer(*args, **kwargs)
        except BaseException:
            self._leaders.fail_transfer()
            raise

    def _add_compressed(self, array: np.ndarray, rounding: Rounding) -> None:
        """Sum in 16 bits: each node sums its part of all arrays, and sends the sum to all."""
        flat, n, how = array.reshape(-1), self.nodes, rounding.format
        own = rounding.part(self.node)
        length = -(-flat.size // n)
        parts = np.zeros((n, length), np.uint16)
        parts.reshape(-1)[: flat.size] = compressed(flat, how, own.part(0).generator())
        into = np.empty_like(parts)
        total = np.zeros(length, array.dtype)
        self._transfers.all_to_all(parts, into)
        with _SILENT():
            for part in into:
                total += decompressed(part, how, array.dtype)
        mine, whole = compressed(total, how, own.part(1).generator()), into.reshape(-1)
        self._transfers.all_gather(mine.view(np.uint8), whole.view(np.uint8), [mine.nbytes] * n)
        flat[...] = decompressed(whole[: flat.size], how, array.dtype)

    def agree_on(self, arrays: Sequence[np.ndarray], payload: bytes = b"") -> dict[int, bytes]:
        """Wait for all leaders, check that their arrays are alike, and return the payloads.

        Raises
        ------
        InputError
            Their dtypes or shapes differ.
        """
        checksum = _checksum(tuple([(a.dtype, a.shape) for a in arrays]))
        agreed, payloads = self._leaders.agree(checksum, payload)
        if agreed == DIFFERENT:
            raise InputError(DIFFER)
        return payloads

    def reduce(
        self, arrays: list[np.ndarray] | None, op: Reduction, weights: Sequence[float]
    ) -> list[np.ndarray] | None:
        """Reduced values on all nodes, of the nodes that have arrays; None if none has.

        The arrays may be overwritten. Weights are by node, 0 for those without arrays.
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
        """Whether MPI reduces such arrays with the same result as numpy."""
        rounded = op is Reduction.AVG and array.dtype.kind not in "fc"
        return not rounded and self._transfers.reduces(array.dtype, _plain(op))

    def _room(self, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
        """Memory for the longest of these arrays from all nodes."""
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
        """Reduce in place; `undefined`: some values of a minimum or maximum may be NaN."""
        if not self._sends(array, op):
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            sizes = [raw.size] * self.nodes
            into = np.empty(sum(sizes), np.uint8) if room is None else room[: sum(sizes)]
            self._transfers.all_gather(raw, into, sizes)
            column = [p.view(array.dtype).reshape(array.shape) for p in _cut(into, sizes)]
            _reduce_all(column, op, weights, array)
            return
        if op is Reduction.AVG:
            share = normalized([1.0] * self.nodes if weights is None else weights)[self.node]
            with _SILENT():
                np.multiply(array, array.dtype.type(share), out=array)
        if undefined and array.dtype.kind == "f":  # comparisons of MPI may lose NaN
            flat = array.reshape(-1)
            holes = np.isnan(flat)
            self._transfers.all_reduce(holes.view(np.uint8), Reduction.MAX)
            self._transfers.all_reduce(flat, op)
            flat[holes] = np.nan
            return
        self._transfers.all_reduce(array, _plain(op))

    def _sizes_or_values(self, packed: np.ndarray | None, who: Sequence[int]) -> dict[int, Any]:
        """By leader: the serialised value if it is small, else its size."""
        payload = b""
        if packed is not None:
            small = packed.size <= _SMALL
            payload = b"\1" + packed.tobytes() if small else b"\0" + _SIZE.pack(packed.size)
        _, payloads = self._leaders.agree(payload=payload)
        found = {r: payloads[r] for r in who}
        return {r: p[1:] if p[0] else _SIZE.unpack_from(p, 1)[0] for r, p in found.items()}

    def _read(self, payloads: dict[int, Any]) -> list[object]:
        return [_unpacked(np.frombuffer(h, np.uint8)) for _, h in sorted(payloads.items())]


def _plain(op: Reduction) -> Reduction:
    return Reduction.SUM if op is Reduction.AVG else op


def _has_nan(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" and array.size > 0 and bool(np.isnan(array.min()))


def _sizes(payloads: dict[int, Any]) -> list[int]:
    return [h if isinstance(h, int) else len(h) for _, h in sorted(payloads.items())]


def _cut(whole: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """The parts of all nodes, by their sizes in bytes."""
    stops = np.cumsum(sizes).tolist()
    return [whole[stop - n : stop] for stop, n in zip(stops, sizes, strict=True)]


@functools.lru_cache(maxsize=256)
def _checksum(kinds: tuple[tuple[np.dtype, tuple[int, ...]], ...]) -> int:
    """A checksum of dtypes and shapes; others hardly ever have the same."""
    return zlib.crc32(repr([(dtype.str, shape) for dtype, shape in kinds]).encode())


def _array_of(payload: bytes, at: int, like: np.ndarray) -> np.ndarray:
    if not like.size:
        return like.copy()
    return np.frombuffer(payload, like.dtype, like.size, at).reshape(like.shape)


def _reduce_all(
    values: list[np.ndarray], op: Reduction, weights: Sequence[float] | None, out: np.ndarray
) -> None:
    """Combine the values in the order of nodes."""
    total = reduce_block(values, op, weights, out=out)
    if total is not out:
        out[...] = total


def _packed(value: object) -> np.ndarray:
    serialized = serialization.Serialized(value)
    buffer = np.empty(serialized.nbytes, np.uint8)
    serialized.write(memoryview(buffer))
    return buffer


def _unpacked(buffer: np.ndarray) -> object:
    return serialization.read(memoryview(buffer))
