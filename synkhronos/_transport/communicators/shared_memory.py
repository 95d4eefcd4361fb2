"""The communicator of one machine: members read each other's arrays where they are.

A meeting: each member publishes a manifest (where its arrays are, their dtypes and shapes), all
come to a barrier, each member does its share of the work on everybody's arrays, and a second
barrier ends it. Arrays that live in the arena are published as they are; others are copied into a
staging buffer first. A reduction is cut into chunks: member r reduces chunk r over all ranks, in
the order of ranks, and writes every member's copy.

Arrays of up to 4 KB in all are copied into one of two slots instead, and every member reduces all
of them by itself: one barrier, since the next small meeting uses the other slot.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from synkhronos._backends.reduction_loops import compile_for, in_place, reduce_block, reduce_into
from synkhronos._errors import InputError
from synkhronos._plan.reductions import Reduction, result_dtype
from synkhronos._plan.rows import edges as split
from synkhronos._transport.channels.control_words import (
    MANIFEST,
    MANIFEST_SLOT_BYTES,
    MANIFEST_SLOTS,
    MANIFEST_TABLE,
    SMALL_BUFFER_BYTES,
    SMALL_BUFFERS,
)
from synkhronos._transport.channels.node import Node
from synkhronos._transport.communicators.communicator import (
    DIFFER,
    Arrays,
    Communicator,
    Join,
    Members,
)

_LINE = 64  # bytes; chunks begin on cache lines
_WHOLE_BELOW = 1 << 11  # bytes: smaller arrays are reduced by one member each, in turn
_SMALL_ALIGN = 16  # bytes; the check word and one small array share a cache line
_VOID = -1  # a check word of nothing: checks are CRCs, which are positive
_KEEP = 64  # manifests and plans remembered
_DTYPES = {np.dtype(c).num: np.dtype(c) for c in "?bBhHiIlLqQefdgFDG"}

Signature = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass
class _Manifest:
    """Arrays that this member has brought to a meeting, published under a number."""

    number: int
    refs: tuple[weakref.ref[np.ndarray], ...]  # of arrays in the arena, C-contiguous
    page: np.ndarray  # count, then offset, dtype number, ndim and shape of each
    small: bool  # reduced in the small_set slots all the same, as those of the other members
    plans: dict[Any, Any] = field(default_factory=dict)


@dataclass
class _SmallArrays:
    """Small arrays of one signature in the small_set slots."""

    check: int
    refs: tuple[weakref.ref[np.ndarray], ...]
    signature: Signature
    plans: tuple[dict[Members, _SmallPlan], dict[Members, _SmallPlan]]  # for either parity


@dataclass
class _SmallPlan:
    """Where the slots are, for one parity and one set of members."""

    mine: list[np.ndarray]
    my_check: Any
    checks: list[Any]
    columns: list[list[np.ndarray]]  # for each array, every member's slot
    pairs: list[bool]  # for each array, whether numpy adds it as it is


class SharedMemory(Communicator):
    """Collectives between the members of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.rank = node.rank
        self.size = node.size
        self.nodes = 1
        self.leader = node.master
        self._words = node.words.of
        self._mine = node.words.of[node.rank]
        self._manifest_table = node.words.bytes[node.rank][MANIFEST_TABLE:SMALL_BUFFERS].cast("q")
        self._number = 0
        self._manifests: dict[int | tuple[int, ...], _Manifest] = {}
        self._small_arrays: dict[int | tuple[int, ...], _SmallArrays] = {}
        self._seen: dict[tuple[int, int], list[np.ndarray]] = {}
        self._staging: np.ndarray | None = None
        self._checks = [self._small_buffers(self.rank, parity, ())[0] for parity in (0, 1)]
        self._staged: dict[Signature, list[np.ndarray]] = {}

    @property
    def home(self) -> SharedMemory:
        """The only node."""
        return self

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """An array in the arena."""
        return self._node.arena.empty(shape, dtype)

    def without_master(self) -> AbstractContextManager[None]:
        """Run a command that the master takes no part in; see Communicator."""
        return self._node.without_master()

    def barrier(self, members: Members = None) -> None:
        """Wait for all."""
        self._node.step()
        if self._takes_part(members):
            self._node.barrier(members)

    def enter(
        self, members: Members = None, before_release: Callable[[], object] | None = None
    ) -> None:
        """See Communicator, and `Node.enter` for `before_release`."""
        self._node.step()
        if self._takes_part(members):
            self._node.enter(members, before_release)

    @property
    def interrupts(self) -> AbstractContextManager[None]:
        """A context in which Ctrl-C waits."""
        return self._node.waiter.interrupts

    def attend(self, done: Callable[[], bool], beyond: Callable[[], None] = lambda: None) -> None:
        """Wait for the end of an exchange of GPUs; see `Node.attend`."""
        self._node.attend(done, beyond)

    def fail_exchange(self) -> None:
        self._node.fail_exchange()

    def expose(self, arrays: Arrays) -> list[list[np.ndarray]]:
        """Views of everybody's arrays; see Communicator."""
        self._node.step()
        _, found = self._meet(arrays, None)
        found = [list(arrays) if r == self.rank else list(a) for r, a in enumerate(found)]
        self._node.barrier()
        return found

    def show(
        self, arrays: Arrays, made: Arrays, root: int
    ) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
        """Everybody's arrays, which are equal in kind, and the root's others, made by `empty`."""
        self._node.step()
        _, parts = self._meet([*self._shared(arrays), *made], None)
        rows = [p[: len(arrays)] for p in parts]
        _check_equal(rows)
        return rows, parts[root][len(arrays) :]

    def _takes_part(self, members: Members) -> bool:
        return members is None or self.rank in members

    def _publish(self, arrays: Arrays) -> _Manifest:
        key = _key(arrays)
        found = self._manifests.get(key)
        if found is None or not _same(found.refs, arrays):
            found = self._manifest(arrays)
            _remember(self._manifests, key, found)
        self._show(found)
        return found

    def _show(self, manifest: _Manifest) -> None:
        """Let the others find it, at the next barrier."""
        if manifest.number <= self._number - MANIFEST_SLOTS:  # its slot is another's by now
            self._announce(manifest)
        self._mine[MANIFEST] = manifest.number

    def _manifest(self, arrays: Arrays) -> _Manifest:
        arena = self._node.arena
        words: list[int] = [len(arrays)]
        for a in arrays:
            words += [arena.offset(a), a.dtype.num, a.ndim, *a.shape]
        page = arena.empty((len(words),), np.int64)
        page[:] = words
        manifest = _Manifest(0, tuple(weakref.ref(a) for a in arrays), page, _small(arrays))
        self._announce(manifest)
        return manifest

    def _announce(self, manifest: _Manifest) -> None:
        self._number += 1
        manifest.number = self._number
        slot = self._number % MANIFEST_SLOTS * (MANIFEST_SLOT_BYTES // 8)
        self._manifest_table[slot] = self._node.arena.offset(manifest.page)
        self._manifest_table[slot + 1] = manifest.page.size

    def _brought(self, rank: int) -> tuple[int, list[np.ndarray]]:
        """The number and the arrays of a member's manifest."""
        number = self._node.words.of[rank][MANIFEST]
        found = self._seen.get((rank, number))
        if found is None:
            found = self._read(rank, number)
            _remember(self._seen, (rank, number), found)
        return number, found

    def _read(self, rank: int, number: int) -> list[np.ndarray]:
        board = self._node.words.bytes[rank][MANIFEST_TABLE:SMALL_BUFFERS].cast("q")
        slot = number % MANIFEST_SLOTS * (MANIFEST_SLOT_BYTES // 8)
        buffer = self._node.arena.buffer
        words = np.ndarray((board[slot + 1],), np.int64, buffer, board[slot]).tolist()
        found, at = [], 1
        for _ in range(words[0]):
            offset, num, ndim = words[at : at + 3]
            shape = tuple(words[at + 3 : at + 3 + ndim])
            at += 3 + ndim
            found.append(np.ndarray(shape, _DTYPES[num], buffer, offset if all(shape) else 0))
        return found

    def _meet(self, arrays: Arrays, members: Members) -> tuple[_Manifest, list[list[np.ndarray]]]:
        manifest = self._publish(arrays)
        self._node.barrier(members)
        ranks = range(self.size) if members is None else members
        return manifest, [self._brought(r)[1] for r in ranks]

    def _shared(self, arrays: Arrays) -> Arrays:
        """The arrays if they live in the arena, else copies in the staging buffer."""
        known = self._manifests.get(_key(arrays))
        if known is not None and _same(known.refs, arrays):
            return arrays
        holds = self._node.arena.holds
        if all([a.flags.c_contiguous and (holds(a) or not a.size) for a in arrays]):
            return arrays
        staged = self._stage(tuple((a.dtype.str, a.shape) for a in arrays))
        for to, a in zip(staged, arrays, strict=True):
            np.copyto(to, a)
        return staged

    def _stage(self, signature: Signature) -> list[np.ndarray]:
        """Arrays of this signature in the staging buffer, which grows and is used again."""
        found = self._staged.get(signature)
        if found is not None:
            return found
        sizes = [_nbytes(dtype, shape) for dtype, shape in signature]
        starts = np.cumsum([0] + [-(-n // _LINE) * _LINE for n in sizes]).tolist()
        if self._staging is None or self._staging.size < starts[-1]:
            self._staged.clear()
            self._staging = self._node.arena.empty((max(1, starts[-1]),), np.uint8)
        found = [
            self._staging[at : at + n].view(dtype).reshape(shape)
            for at, n, (dtype, shape) in zip(starts, sizes, signature, strict=False)
        ]
        _remember(self._staged, signature, found)
        return found

    def broadcast(
        self, arrays: Arrays | None, root: int, members: Members = None
    ) -> list[np.ndarray] | None:
        """The root's arrays; see Communicator."""
        self._node.step()
        if not self._takes_part(members):
            return None
        self._publish(self._shared(arrays or ()) if self.rank == root else ())
        self._node.barrier(members)
        result: Any = arrays
        if self.rank != root:
            result = [np.array(a) for a in self._brought(root)[1]]
        self._node.barrier(members)
        return result

    def gather(
        self, arrays: Arrays, root: int, join: Join = "concatenate", members: Members = None
    ) -> list[np.ndarray] | None:
        """Everybody's arrays at the root; see Communicator."""
        self._node.step()
        if not self._takes_part(members):
            return None
        _, parts = self._meet(self._shared(arrays), members)
        result = self.join(parts, join) if self.rank == root else None
        self._node.barrier(members)
        return result

    def collect(
        self, arrays: Arrays, root: int, members: Members = None
    ) -> list[list[np.ndarray]] | None:
        """At the root: everybody's arrays, copied, in the order of ranks."""
        self._node.step()
        if not self._takes_part(members):
            return None
        _, parts = self._meet(self._shared(arrays), members)
        result = [[np.array(a) for a in part] for part in parts] if self.rank == root else None
        self._node.barrier(members)
        return result

    def all_gather(self, arrays: Arrays, join: Join = "concatenate") -> list[np.ndarray]:
        """Everybody's arrays everywhere; see Communicator."""
        self._node.step()
        _, parts = self._meet(self._shared(arrays), None)
        result = self.join(parts, join)
        self._node.barrier()
        return result

    def join(self, parts: list[list[np.ndarray]], join: Join) -> list[np.ndarray]:
        """Join each array over the parts."""
        columns = [list(column) for column in zip(*parts, strict=True)]
        for column in columns:
            check_joinable([(a.dtype.name, a.shape) for a in column], join)
        if join == "stack":
            return [np.stack(column) for column in columns]
        return [
            np.concatenate([a.reshape(1) if a.ndim == 0 else a for a in column])
            for column in columns
        ]

    def scatter(self, arrays: Arrays | None, root: int, edges: Sequence[int]) -> list[np.ndarray]:
        """Rows of the root's arrays; see Communicator."""
        self._node.step()
        self._publish(self._shared(arrays or ()) if self.rank == root else ())
        self._node.barrier()
        lo, hi = edges[self.rank], edges[self.rank + 1]
        result = [np.array(a[lo:hi]) for a in self._brought(root)[1]]
        self._node.barrier()
        return result

    def reduce(
        self,
        arrays: Arrays,
        op: Reduction,
        root: int,
        weights: Sequence[float] | None = None,
        members: Members = None,
    ) -> list[np.ndarray] | None:
        """Reduced values at the root; see Communicator."""
        self._node.step()
        if not self._takes_part(members):
            return None
        shared = self._shared(arrays)
        results = []
        if self.rank == root:
            results = [self.empty(a.shape, result_dtype(a.dtype, op)) for a in arrays]
        _, parts = self._meet([*shared, *results], members)
        ranks = range(self.size) if members is None else members
        count = len(arrays)
        at_root = parts[list(ranks).index(root)][count:]
        rows = [p[:count] for p in parts]
        _check_equal(rows)
        for chunk in self._chunks(rows, ranks, at_root):
            reduce_into(chunk[-1], chunk[:-1], op, weights)
        self._node.barrier(members)
        return results if self.rank == root else None

    def all_reduce(
        self,
        arrays: Arrays,
        op: Reduction,
        weights: Sequence[float] | None = None,
        members: Members = None,
        starting: Callable[[], None] | None = None,
    ) -> None:
        """Reduced values in place; see Communicator."""
        parity = self._node.step()
        if members is not None and self.rank not in members:
            return
        key = _key(arrays)
        small_set = self._small_arrays.get(key)
        if small_set is not None and _same(small_set.refs, arrays):
            self._reduce_small(small_set, parity, arrays, op, weights, members, starting)
            return
        known = self._manifests.get(key)
        if known is not None and not known.small and _same(known.refs, arrays):
            self._show(known)
            self._reduce_chunks(known, parity, arrays, op, weights, members, starting)
        elif _small(arrays):
            small_set = _new_small(arrays)
            _remember(self._small_arrays, key, small_set)
            self._reduce_small(small_set, parity, arrays, op, weights, members, starting)
        else:
            shared = self._shared(arrays)
            known = self._publish(shared)
            self._reduce_chunks(known, parity, shared, op, weights, members, starting)
            if shared is not arrays:
                for a, reduced in zip(arrays, shared, strict=True):
                    np.copyto(a, reduced)

    def _reduce_chunks(
        self,
        manifest: _Manifest,
        parity: int,
        shared: Arrays,
        op: Reduction,
        weights: Sequence[float] | None,
        members: Members,
        starting: Callable[[], None] | None,
    ) -> None:
        how = (op, members, None if weights is None else tuple(weights))
        plans = manifest.plans.get(how)
        if plans is None:
            compile_for(shared, self.size if members is None else len(members), op)
            plans = manifest.plans[how] = {}
        # a member whose arrays are small reads this word where it expects everybody's check
        self._checks[parity][0] = _VOID
        self._node.enter(members)
        plan = self._plan(plans, op, weights, members)
        if starting is not None:
            starting()
        for reduce_chunk in plan:
            reduce_chunk()
        self._node.barrier(members)

    def _plan(
        self,
        plans: dict[Any, list[Callable[[], None]]],
        op: Reduction,
        weights: Sequence[float] | None,
        members: Members,
    ) -> list[Callable[[], None]]:
        """This member's work, remembered for the arrays that all have brought this time."""
        ranks = range(self.size) if members is None else members
        key = tuple([self._words[r][MANIFEST] for r in ranks])
        if not all(key):
            raise InputError(DIFFER)
        plan = plans.get(key)
        if plan is None:
            parts = [self._brought(r)[1] for r in ranks]
            _check_equal(parts)
            plan = [in_place(c, op, weights) for c in self._chunks(parts, ranks, None)]
            _remember(plans, key, plan)
        return plan

    def _chunks(
        self,
        parts: list[list[np.ndarray]],
        ranks: Sequence[int],
        targets: list[np.ndarray] | None,
    ) -> list[list[np.ndarray]]:
        """This member's chunk of each array: one 1-D view for each rank, then the target's."""
        place, turns = list(ranks).index(self.rank), len(ranks)
        found = []
        for i, column in enumerate(zip(*parts, strict=True)):
            flat = [a.reshape(-1) for a in column]
            if targets is not None:
                flat.append(targets[i].reshape(-1))
            lo, hi = _chunk(flat[0], i, place, turns)
            if hi > lo:
                found.append([a[lo:hi] for a in flat])
        return found

    def _reduce_small(
        self,
        small_set: _SmallArrays,
        parity: int,
        arrays: Arrays,
        op: Reduction,
        weights: Sequence[float] | None,
        members: Members,
        starting: Callable[[], None] | None,
    ) -> None:
        plan = small_set.plans[parity].get(members)
        if plan is None:
            plan = small_set.plans[parity][members] = self._small_plan(small_set, parity, members)
        for i, a in enumerate(arrays):
            plan.mine[i][...] = a
        plan.my_check[0] = small_set.check
        self._mine[MANIFEST] = 0  # to a member whose arrays are large this one brings none
        self._node.enter(members)
        for check in plan.checks:
            if check[0] != small_set.check:
                raise InputError(DIFFER)
        if starting is not None:
            starting()
        for i, a in enumerate(arrays):
            column = plan.columns[i]
            if op is Reduction.SUM and plan.pairs[i]:
                np.add(column[0], column[1], out=a)
                continue
            total = reduce_block(column, op, weights, out=a)
            if total is not a:
                a[...] = total

    def _small_plan(self, small_set: _SmallArrays, parity: int, members: Members) -> _SmallPlan:
        ranks = range(self.size) if members is None else members
        slots = [self._small_buffers(r, parity, small_set.signature) for r in ranks]
        my_check, mine = slots[list(ranks).index(self.rank)]
        columns = [list(column) for column in zip(*[arrays for _, arrays in slots], strict=True)]
        pairs = [len(column) == 2 and column[0].dtype != np.float16 for column in columns]
        return _SmallPlan(mine, my_check, [check for check, _ in slots], columns, pairs)

    def _small_buffers(
        self, rank: int, parity: int, signature: Signature
    ) -> tuple[Any, list[np.ndarray]]:
        start = SMALL_BUFFERS + parity * SMALL_BUFFER_BYTES
        memory = self._node.words.bytes[rank][start : start + SMALL_BUFFER_BYTES]
        found, at = [], _SMALL_ALIGN
        for dtype, shape in signature:
            found.append(np.ndarray(shape, dtype, memory, at))
            at += -(-_nbytes(dtype, shape) // _SMALL_ALIGN) * _SMALL_ALIGN
        return memory[:_SMALL_ALIGN].cast("q"), found

    def reduce_scatter(
        self,
        arrays: Arrays,
        op: Reduction,
        edges: Sequence[int],
        weights: Sequence[float] | None = None,
    ) -> list[np.ndarray]:
        """This member's rows of the reduced values; see Communicator."""
        self._node.step()
        _, parts = self._meet(self._shared(arrays), None)
        _check_equal(parts)
        lo, hi = edges[self.rank], edges[self.rank + 1]
        results = []
        for column in zip(*parts, strict=True):
            rows = [a[lo:hi] for a in column]
            result = np.empty(rows[0].shape, result_dtype(rows[0].dtype, op))
            reduce_into(result.reshape(-1), [r.reshape(-1) for r in rows], op, weights)
            results.append(result)
        self._node.barrier()
        return results


def _new_small(arrays: Arrays) -> _SmallArrays:
    signature = tuple((a.dtype.str, a.shape) for a in arrays)
    check = zlib.crc32(repr(signature).encode())
    return _SmallArrays(check, tuple(weakref.ref(a) for a in arrays), signature, ({}, {}))


def _chunk(a: np.ndarray, index: int, place: int, turns: int) -> tuple[int, int]:
    """Elements (lo, hi) of an array that the member at `place` of `turns` reduces."""
    if a.nbytes < _WHOLE_BELOW:
        return (0, a.size) if index % turns == place else (0, 0)
    per_line = max(1, _LINE // a.itemsize)
    at = split(-(-a.size // per_line), turns)
    return at[place] * per_line, min(at[place + 1] * per_line, a.size)


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def _small(arrays: Arrays) -> bool:
    """Whether they fit into a small_set slot."""
    return sum([a.nbytes + _SMALL_ALIGN for a in arrays]) + _SMALL_ALIGN <= SMALL_BUFFER_BYTES


def _key(arrays: Arrays) -> int | tuple[int, ...]:
    return id(arrays[0]) if len(arrays) == 1 else tuple(map(id, arrays))


def _same(refs: tuple[weakref.ref[np.ndarray], ...], arrays: Arrays) -> bool:
    for i, a in enumerate(arrays):  # noqa: SIM110 (a generator costs half a microsecond)
        if refs[i]() is not a:
            return False
    return True


def _remember(memory: dict[Any, Any], key: Any, value: Any) -> None:
    """Keep the latest few; the oldest goes first."""
    if len(memory) >= _KEEP:
        del memory[next(iter(memory))]
    memory[key] = value


def _check_equal(parts: list[list[np.ndarray]]) -> None:
    found = [[(a.dtype.name, a.shape) for a in part] for part in parts]
    if any(f != found[0] for f in found):
        raise InputError(f"a reduction needs equal shapes and dtypes in all members: {found}")


def check_joinable(column: Sequence[tuple[str, tuple[int, ...]]], join: Join) -> None:
    """Refuse arrays, by dtype and shape, that do not fit behind each other."""
    skip = 0 if join == "stack" else 1
    found = {(name, len(shape), shape[skip:]) for name, shape in column}
    if len(found) > 1:
        shapes = [shape for _, shape in column]
        hint = "; nd_up=0 joins unequal lengths" if join == "stack" else ""
        raise InputError(f"cannot join arrays of shapes {shapes}{hint}")
