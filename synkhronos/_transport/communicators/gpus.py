"""The communicator of members on GPUs: NCCL moves arrays on GPUs, and shared memory all others.

Before GPUs exchange anything, all members meet in shared memory. They agree that each brings arrays
on a GPU, of the same shapes, and is connected to the others. So all members enter the exchange or
none. Members connect when NCCL is first needed, and again after a connection was lost. If NCCL
cannot connect them, arrays go through shared memory, and the master warns once.

JAX and NCCL use separate streams. The host waits until an array is computed before NCCL reads it,
and until NCCL has written before it continues. JAX does not know that NCCL writes to its memory, so
only fresh arrays are written, and arrays that only the caller holds (`adding_up`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from synkhronos._backends import jax as jax_backend
from synkhronos._backends.nccl import ID_BYTES, Link, NotServed, Operation, element, new_id
from synkhronos._host.arena import Arena
from synkhronos._plan.transfers import Plan
from synkhronos._proofs.reductions import Reduction, scales
from synkhronos._transport.communicators.communicator import (
    Arrays,
    Communicator,
    Fill,
    Join,
    Members,
    Weights,
)
from synkhronos._transport.communicators.half_precision import Rounding
from synkhronos._transport.communicators.hierarchy import Hierarchy
from synkhronos._transport.communicators.nccl_types import nccl_reduction, reduced_dtype
from synkhronos._transport.communicators.shared_memory import SharedMemory, check_joinable
from synkhronos._transport.communicators.sums import BackgroundSums, Sums
from synkhronos._transport.shared_state.waiting import PeerFailed
from synkhronos._warnings import log

Specs = tuple[tuple[str, tuple[int, ...]], ...]

_NOTHING = b"null"
_OTHERS = "another member could not"
_KEEP = 64  # signatures whose checksums are kept


def with_gpus(host: SharedMemory | Hierarchy, members_per_gpu: int) -> Communicator:
    """The communicator of members on GPUs; `host` itself where `members_per_gpu` is 0."""
    return Gpus(host, members_per_gpu > 1) if members_per_gpu else host


class Gpus(Communicator):
    """Moves arrays between members that are each on a GPU."""

    on_gpus = True

    def __init__(self, host: SharedMemory | Hierarchy, shared: bool) -> None:
        self.rank, self.size = host.rank, host.size
        self.nodes, self.leader = host.nodes, host.leader
        self._host = host  # the communicator for arrays in the host's memory, of the same members
        self._shared = shared  # whether several members of a node are on one GPU
        self._link: Link | None = None
        self._refused = False  # all members know that NCCL cannot connect them
        self._vote = np.zeros(3, np.int64)
        self._checksums: dict[Specs, int] = {}

    @property
    def home(self) -> SharedMemory:
        return self._host.home

    @property
    def node(self) -> int:
        return self._host.node

    def sum_over_nodes(self, arrays: Arrays, fill: Fill, rounding: Rounding | None = None) -> None:
        self._host.sum_over_nodes(arrays, fill, rounding)

    def mappable(self) -> Arena:
        return self._host.mappable()

    def start_sums(self, sums: Sums, cores: Sequence[int]) -> BackgroundSums | None:
        return self._host.start_sums(sums, cores)

    def run_between_nodes[R](self, plan: Plan[R]) -> R:
        return self._host.run_between_nodes(plan)

    def fail_exchange(self) -> None:
        self._host.fail_exchange()

    @property
    def interrupts(self) -> AbstractContextManager[None]:
        return self._host.interrupts

    def wait_for_gpu(self, done: Callable[[], bool]) -> None:
        self._host.wait_for_gpu(done)

    @property
    def is_linked(self) -> bool:
        """Whether NCCL has connected the members."""
        return self._link is not None

    def native(self, value: object) -> object:
        """See Communicator; an array stays where it is on the GPU."""
        return value if jax_backend.is_held(value) else np.asarray(value)

    def close(self) -> None:
        self._unlink()
        self._host.close()

    def _unlink(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    # only in the host's memory

    def without_master(self) -> contextlib.AbstractContextManager[None]:
        return self._host.without_master()

    def barrier(self, members: Members = None) -> None:
        self._host.barrier(members)

    def enter(self) -> None:
        self._host.enter()

    def expose(self, arrays: Arrays) -> list[list[np.ndarray]]:
        return self._host.expose(arrays)

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        return self._host.empty(shape, dtype)

    # agreements

    def _agree(self, value: int) -> bool:
        """Whether all members have the same value, other than 0, and are connected.

        Connects them if needed. All members get the same answer.
        """
        vote = self._vote
        vote[:] = value, -value, self._link is not None
        self._host.all_reduce([vote], Reduction.MIN)
        if not vote[0] or vote[0] != -vote[1]:
            return False
        if not vote[2]:
            self._open()
        return self._link is not None

    def _can_reduce(self, arrays: Arrays, members: Members) -> bool:
        """Whether NCCL reduces these arrays."""
        if not self._everybody(members):
            return False
        checksum = 0
        if arrays and all([jax_backend.is_held(a) for a in arrays]):
            specs = _specs(arrays)
            found = self._checksums.get(specs)
            if found is None:
                if len(self._checksums) >= _KEEP:
                    self._checksums.clear()
                found = self._checksums[specs] = 1 + zlib.crc32(repr(specs).encode())
            checksum = found
        return self._agree(checksum)

    def _everybody(self, members: Members) -> bool:
        """Whether NCCL may be used: it connects all members or none."""
        return not self._refused and (members is None or len(members) == self.size)

    def _open(self) -> None:
        """Connect all members, or note that NCCL cannot."""
        self._unlink()
        name, why = np.zeros(ID_BYTES, np.uint8), ""
        if self.rank == 0:
            try:
                name = new_id()
            except NotServed as exc:
                why = str(exc)
        [name] = self._host.broadcast([name], 0) or [name]
        if name.any():
            why = self._connect(name)
        lines = self._lines(json.dumps(why).encode())
        reasons = {rank: text for rank, text in enumerate(map(json.loads, lines)) if text}
        if not reasons:
            return
        self._unlink()
        self._refused = True
        if self.rank == self.leader:  # on the first node this is the master
            rank, text = min(reasons.items(), key=lambda found: found[1] == _OTHERS)
            log.warning(
                "arrays on GPUs move through the host's memory, which is slower, since NCCL cannot "
                "serve this group: rank %d: %s",
                rank,
                text,
            )

    def _connect(self, name: np.ndarray) -> str:
        """Connect this member; returns the reason if NCCL cannot."""
        try:
            gpu, watch = jax_backend.ordinal(), self._host.wait_for_gpu
            self._link = Link(name, self.rank, self.size, self._shared, gpu, watch)
        except NotServed as exc:
            self.fail_exchange()
            return str(exc)
        except PeerFailed:
            self.fail_exchange()  # only the leader got the other node's message
            return _OTHERS
        return ""

    def _run(self, operations: Sequence[Operation], arrays: Sequence[object]) -> None:
        """Run operations of NCCL; `arrays` are all that they read or write."""
        jax_backend.ready(arrays)
        if operations:
            with self._exchange(operations):
                pass

    @contextlib.contextmanager
    def _exchange(self, operations: Sequence[Operation]) -> Iterator[None]:
        """Run operations of NCCL while the body runs, and wait for them.

        A failure, also in the body, aborts them and closes the link, since memory must not be freed
        while NCCL writes to it.
        """
        link = self._link
        assert link is not None
        with self._host.interrupts:
            try:
                event = link.post(operations)
                yield
                link.finish(event)
            except BaseException:
                self.fail_exchange()  # first, since the abort may take long
                self._unlink()
                raise

    def _lines(self, line: bytes) -> list[bytes]:
        """The lines of all members; a line contains no line break."""
        said = np.frombuffer(line + b"\n", np.uint8)
        [found] = self._host.all_gather([said])
        return found.tobytes().splitlines()

    # moved without being combined: NCCL sees bytes

    def broadcast(
        self, arrays: Arrays | None, root: int, members: Members = None
    ) -> list[np.ndarray] | None:
        mine = self.rank == root
        if self._everybody(members):
            specs = self._of_root(arrays, root)
            if specs is not None:
                held: Any = list(arrays or ()) if mine else _blanks(specs)
                at = [_place(a) for a in held]
                moves = [("broadcast", (p, p, n, element("int8"), root)) for p, n in at if n]
                self._run(moves, held)
                return held
        return self._host.broadcast(_staged(arrays) if mine else None, root, members)

    def scatter(self, arrays: Arrays | None, root: int, edges: Sequence[int]) -> list[np.ndarray]:
        mine = self.rank == root
        specs = self._of_root(arrays, root) if self._everybody(None) else None
        if specs is None:
            return self._host.scatter(_staged(arrays) if mine else None, root, edges)
        lo, hi = edges[self.rank], edges[self.rank + 1]
        found = _blanks(tuple((name, (hi - lo, *shape[1:])) for name, shape in specs))
        moves: list[Operation] = []
        for i, (name, shape) in enumerate(specs):
            row = math.prod(shape[1:]) * _itemsize(name)
            if mine and arrays is not None:
                at = jax_backend.pointer(arrays[i])
                for rank, (a, b) in enumerate(itertools.pairwise(edges)):
                    if n := (b - a) * row:
                        moves.append(("send", (at + a * row, n, element("int8"), rank)))
            if n := (hi - lo) * row:
                moves.append(("recv", (jax_backend.pointer(found[i]), n, element("int8"), root)))
        self._run(moves, [*found, *(arrays or ())])
        return found

    def _of_root(self, arrays: Arrays | None, root: int) -> Specs | None:
        """Shapes and dtypes of the root's arrays, if NCCL moves them."""
        line = _header(arrays) if self.rank == root else _NOTHING
        [found] = self._host.broadcast([np.frombuffer(line, np.uint8)], root) or []
        line = found.tobytes()
        return _read(line) if self._agree(int(line != _NOTHING)) else None

    def gather(
        self, arrays: Arrays, root: int, join: Join = "concatenate", members: Members = None
    ) -> list[np.ndarray] | None:
        if self._everybody(members):
            specs = self._of_all(arrays)
            if specs is not None:
                return self._join(arrays, specs, join, root)
        return self._host.gather(_staged(arrays), root, join, members)

    def all_gather(self, arrays: Arrays, join: Join = "concatenate") -> list[np.ndarray]:
        if self._everybody(None):
            specs = self._of_all(arrays)
            if specs is not None:
                return self._join(arrays, specs, join, None) or []
        return self._host.all_gather(_staged(arrays), join)

    def _of_all(self, arrays: Arrays) -> list[Specs] | None:
        """Shapes and dtypes of each member's arrays, if NCCL moves them."""
        lines = self._lines(_header(arrays))
        return [_read(x) for x in lines] if self._agree(int(_NOTHING not in lines)) else None

    def _join(
        self, arrays: Arrays, specs: list[Specs], join: Join, root: int | None
    ) -> list[Any] | None:
        """All members' arrays, joined, at the root or in all members."""
        moves: list[Operation] = []
        found: list[object] = []
        for i, column in enumerate(zip(*specs, strict=True)):
            check_joinable(column, join)
            name, first = column[0]
            shape = (
                (self.size, *first)
                if join == "stack"
                else (sum([s[0] if s else 1 for _, s in column]), *first[1:])
            )
            ends = itertools.accumulate(
                [math.prod(s) * _itemsize(name) for _, s in column], initial=0
            )
            spans = list(itertools.pairwise(ends))
            if root in (None, self.rank):
                found.append(_blanks(((name, shape),))[0])
            moves += self._joining(arrays[i], found[-1] if found else None, spans, root)
        self._run(moves, [*arrays, *found])
        return found if root in (None, self.rank) else None

    def _joining(
        self, mine: object, target: object, spans: list[tuple[int, int]], root: int | None
    ) -> list[Operation]:
        """The operations that move each member's array to its range of bytes in the target."""
        at, size = _place(mine)
        byte = element("int8")
        if root is None:
            to = jax_backend.pointer(target)
            return [
                ("broadcast", (at if r == self.rank else to + a, to + a, b - a, byte, r))
                for r, (a, b) in enumerate(spans)
                if b > a
            ]
        moves: list[Operation] = [("send", (at, size, byte, root))] if size else []
        if root == self.rank:
            to = jax_backend.pointer(target)
            moves += [("recv", (to + a, b - a, byte, r)) for r, (a, b) in enumerate(spans) if b > a]
        return moves

    # combined

    def reduce(
        self,
        arrays: Arrays,
        op: Reduction,
        root: int,
        weights: Weights = None,
        members: Members = None,
    ) -> list[np.ndarray] | None:
        if not self._can_reduce(arrays, members):
            return self._host.reduce(_staged(arrays), op, root, weights, members)
        found = self._reduced(arrays, op, weights, root)
        if self.rank != root:
            return None
        return _finished(found, arrays, op)

    def all_reduce(
        self,
        arrays: Any,
        op: Reduction,
        weights: Weights = None,
        members: Members = None,
        starting: Callable[[], None] | None = None,
    ) -> None:
        """See Communicator. Arrays of JAX stay as they are: the list `arrays` gets fresh ones."""
        held = [i for i, a in enumerate(arrays) if not isinstance(a, np.ndarray)]
        if not self._can_reduce(arrays, members):
            staged: Any = [np.array(a) if i in held else a for i, a in enumerate(arrays)]
            self._host.all_reduce(staged, op, weights, members, starting)
            for i in held:
                arrays[i] = staged[i]
            return
        found = self._reduced(arrays, op, weights, None)
        arrays[:] = [jax_backend.rounded(v, a.dtype) for v, a in zip(found, arrays, strict=True)]

    @contextlib.contextmanager
    def adding_up(self, arrays: list[Any]) -> Iterator[None]:
        """See Communicator; sums in place while the body runs.

        If NCCL cannot connect the members, `arrays` gets fresh ones.
        """
        if not self._can_reduce(arrays, None):
            staged = [np.array(a) for a in arrays]
            self._host.all_reduce(staged, Reduction.SUM)
            arrays[:] = [jax_backend.held(a) for a in staged]
            yield
            return
        jax_backend.ready(arrays)
        moves: list[Operation] = []
        for a in arrays:
            found = nccl_reduction(a.dtype, Reduction.SUM)
            if found is None or found.dtype != a.dtype.name:
                raise TypeError(f"{a.dtype.name} cannot be summed in place")
            if a.size:
                p, n = jax_backend.pointer(a), a.size * found.parts
                moves.append(("all_reduce", (p, p, n, *found.numbers)))
        with self._exchange(moves):
            yield

    def _reduced(
        self, arrays: Arrays, op: Reduction, weights: Weights, root: int | None
    ) -> list[Any]:
        """Fresh arrays of the reduced values, in the dtypes in which they were combined."""
        found, held = [], []
        moves: list[Operation] = []
        for a in arrays:
            how = nccl_reduction(np.dtype(a.dtype), op)
            if how is None:
                found.append(self._combined(a, op))
                continue
            given = jax_backend.weighted(a, how.dtype, self._scale(a, op, weights)[0])
            fresh = jax_backend.blank(given.shape, given.dtype) if given is a else given
            found.append(fresh)
            held += [given, fresh]
            if not a.size:
                continue
            args = (
                jax_backend.pointer(given),
                jax_backend.pointer(fresh),
                a.size * how.parts,
                *how.numbers,
            )
            moves.append(("all_reduce", args) if root is None else ("reduce", (*args, root)))
        self._run(moves, held)
        return self._divided(found, arrays, op, weights)

    def _scale(self, array: Any, op: Reduction, weights: Weights) -> tuple[float | None, float]:
        """The factor of this member's values in an average, and the divisor of the sum."""
        if op is not Reduction.AVG:
            return None, 1.0
        given, divisor = scales(np.dtype(array.dtype), weights, self.size)
        return given[self.rank], divisor

    def _divided(
        self, found: list[object], arrays: Arrays, op: Reduction, weights: Weights
    ) -> list[object]:
        """Divide sums of integers, which are exact, for their means."""
        divisors = [self._scale(a, op, weights)[1] for a in arrays]
        return [
            v if d == 1.0 else jax_backend.divided(v, d)
            for v, d in zip(found, divisors, strict=True)
        ]

    def _combined(self, array: Any, op: Reduction) -> Any:
        """Combine what NCCL cannot: each member gets all arrays, and combines them itself."""
        specs = [_specs([array])] * self.size
        [parts] = self._join([array], specs, "stack", None) or []
        return jax_backend.combined(parts, op)

    def reduce_scatter(
        self, arrays: Arrays, op: Reduction, edges: Sequence[int], weights: Weights = None
    ) -> list[np.ndarray]:
        if not self._can_reduce(arrays, None):
            return self._host.reduce_scatter(_staged(arrays), op, edges, weights)
        lo, hi = edges[self.rank], edges[self.rank + 1]
        found, moves, held = [], [], []
        for a in arrays:
            how = nccl_reduction(np.dtype(a.dtype), op)
            if how is None:
                found.append(self._combined(a, op)[lo:hi])
                continue
            given = jax_backend.weighted(a, how.dtype, self._scale(a, op, weights)[0])
            fresh = jax_backend.blank((hi - lo, *a.shape[1:]), given.dtype)
            found.append(fresh)
            held += [given, fresh]
            at, to = jax_backend.pointer(given), jax_backend.pointer(fresh)
            each = math.prod(a.shape[1:])
            for rank, (x, y) in enumerate(itertools.pairwise(edges)):
                if n := (y - x) * each:
                    start = at + x * each * given.dtype.itemsize
                    moves.append(("reduce", (start, to, n * how.parts, *how.numbers, rank)))
        self._run(moves, held)
        return _finished(self._divided(found, arrays, op, weights), arrays, op)


def _specs(arrays: Arrays) -> Specs:
    return tuple([(a.dtype.name, a.shape) for a in arrays])


def _header(arrays: Arrays | None) -> bytes:
    """Shapes and dtypes as text; `_NOTHING` unless all arrays are on the GPU."""
    if not arrays or not all([jax_backend.is_held(a) for a in arrays]):
        return _NOTHING
    return json.dumps(_specs(arrays)).encode()


def _read(line: bytes) -> Specs:
    return tuple((name, tuple(shape)) for name, shape in json.loads(line))


def _blanks(specs: Specs) -> list[Any]:
    return [jax_backend.blank(shape, name) for name, shape in specs]


def _itemsize(name: str) -> int:
    return 2 if name == "bfloat16" else np.dtype(name).itemsize


def _place(array: Any) -> tuple[int, int]:
    """The address of an array, and its length in bytes."""
    return jax_backend.pointer(array), array.size * array.dtype.itemsize


def _staged(arrays: Arrays | None) -> list[np.ndarray]:
    """The arrays in the host's memory; copies of those that are not."""
    return [np.asarray(a) for a in arrays or ()]


def _finished(found: Sequence[object], arrays: Arrays, op: Reduction) -> list[Any]:
    """Reduced values in the dtypes of the results."""
    return [
        jax_backend.rounded(v, reduced_dtype(a.dtype, op))
        for v, a in zip(found, arrays, strict=True)
    ]
