"""The communicator of one machine: members read each other's arrays where they are.

In an exchange each member publishes a manifest (the offsets, dtypes and shapes of its arrays), and
all come to a barrier. Each member does its part of the work on the arrays of all, and a second
barrier ends the exchange. Arrays in the arena are published where they are; others are first copied
to a staging buffer. A reduction is cut into chunks: member r reduces chunk r of all arrays, in the
order of ranks, and writes it to the arrays of all members.

Where all members reduce arrays of up to 4 KB together, each copies its own to one of two small
buffers, and reduces those of all itself. One barrier is enough, since the next exchange of all
members uses the other buffer: whoever writes to the first one again has met all in between. Members
that reduce without the others do not meet these, so they go the way of large arrays.
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
from synkhronos._plan.rows import edges as split
from synkhronos._proofs.reductions import Reduction, result_dtype
from synkhronos._transport.communicators.communicator import (
    DIFFER,
    Arrays,
    Communicator,
    Join,
    Members,
    Weights,
)
from synkhronos._transport.shared_state.control_words import (
    ASLEEP,
    BARRIER,
    MANIFEST,
    MANIFEST_SLOT_BYTES,
    MANIFEST_SLOTS,
    MANIFEST_TABLE,
    SMALL_BUFFER_BYTES,
    SMALL_BUFFERS,
)
from synkhronos._transport.shared_state.node import Node
from synkhronos._transport.shared_state.ordered_words import IS_ORDERED

_SUM, _add = Reduction.SUM, np.add  # a look-up takes longer
_LINE = 64  # bytes; chunks begin on cache lines
_WHOLE_BELOW = 1 << 11  # bytes: a smaller array is not cut; members take such arrays in turn
_SMALL_ALIGN = 16  # bytes; the checksum and one small array share a cache line
# Sums of one small array after which compiled code is loaded, which takes 0.1 s. The first time on
# a machine it is compiled, in a second.
_COMPILE_AFTER = 10_000
_COMPILED_BYTES = 1 << 10  # up to which Python takes longer than the numbers
_LOOKS_COMPILED = 16  # for each look in Python
_VOID = -1  # a checksum of no arrays: others are CRCs, which are not negative
_KEEP = 64  # manifests and plans that are kept
_DTYPES = {np.dtype(c).num: np.dtype(c) for c in "?bBhHiIlLqQefdgFDG"}

Signature = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass
class _Manifest:
    """Arrays that this member has published under a number."""

    number: int
    refs: tuple[weakref.ref[np.ndarray], ...]  # arrays in the arena, C-contiguous
    page: np.ndarray  # count, then offset, dtype number, ndim and shape of each
    small: bool  # reduced in the small_set slots all the same, as those of the other members
    plans: dict[object, Any] = field(default_factory=dict)


@dataclass
class _SmallArrays:
    """Small arrays of one signature in the small_set slots."""

    checksum: int
    refs: tuple[weakref.ref[np.ndarray], ...]
    signature: Signature
    plans: list[_SmallPlan | None]  # for both buffers
    sums: int = 0  # so far


@dataclass
class _SmallPlan:
    """Views of one of the two small buffers of all members."""

    mine: list[np.ndarray]
    my_checksum: Any
    others: list[Any]  # checksums of the other members
    columns: list[list[np.ndarray]]  # for each array, the views of all members
    # of two members whose arrays numpy adds directly: the views of both, for each array
    pairs: list[tuple[np.ndarray, np.ndarray]] | None


class SharedMemory(Communicator):
    """Moves arrays between the members of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.rank = node.rank
        self.size = node.size
        self.nodes = 1
        self.leader = node.master
        self._words = node.words.of
        self._mine = node.words.of[node.rank]
        self._manifest_table = node.words.bytes[node.rank][MANIFEST_TABLE:SMALL_BUFFERS].cast("q")
        self._others = [r for r in range(node.size) if r != node.rank]
        self._number = 0
        self._manifests: dict[int | tuple[int, ...], _Manifest] = {}
        # by the `id` of a vector: what makes its sums over all members in compiled code
        self._repeated: dict[int, tuple[weakref.ref[np.ndarray], Callable[[Arrays], None]]] = {}
        self._small_arrays: dict[int | tuple[int, ...], _SmallArrays] = {}
        self._seen: dict[tuple[int, int], list[np.ndarray]] = {}
        self._staging: np.ndarray | None = None
        self._checksums = [self._small_buffers(self.rank, turn, ())[0] for turn in (0, 1)]
        self._staged: dict[Signature, list[np.ndarray]] = {}
        # of a reduction that has not ended: other members may still write here
        self._results: list[np.ndarray] = []

    @property
    def home(self) -> SharedMemory:
        return self

    @property
    def shared(self) -> Node:
        """The memory and the words that the members of the node share."""
        return self._node

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        return self._node.arena.empty(shape, dtype)

    def without_master(self) -> AbstractContextManager[None]:
        return self._node.without_master()

    def barrier(self, members: Members = None) -> None:
        self._node.step(members)
        if self._takes_part(members):
            self._node.barrier(members)

    def enter(
        self, members: Members = None, before_release: Callable[[], object] | None = None
    ) -> None:
        """See Communicator, and `Node.enter` for `before_release`."""
        self._node.step(members)
        if self._takes_part(members):
            self._node.enter(members, before_release)

    @property
    def interrupts(self) -> AbstractContextManager[None]:
        return self._node.waiter.interrupts

    def wait_for_gpu(
        self, done: Callable[[], bool], beyond: Callable[[], None] = lambda: None
    ) -> None:
        """See Communicator, and `Node.wait_for_gpu` for `beyond`."""
        self._node.wait_for_gpu(done, beyond)

    def fail_exchange(self) -> None:
        self._node.fail_exchange()

    def expose(self, arrays: Arrays) -> list[list[np.ndarray]]:
        self._node.step()
        if self.size == 1:
            return [list(arrays)]
        _, found = self._meet(arrays, None)
        found = [list(arrays) if r == self.rank else list(a) for r, a in enumerate(found)]
        self._node.barrier()
        return found

    def show(
        self, arrays: Arrays, made: Arrays, root: int
    ) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
        """Views of all members' arrays (of equal shapes and dtypes), and of the root's `made`."""
        self._node.step()
        _, parts = self._meet([*self._shared(arrays), *made], None)
        rows = [p[: len(arrays)] for p in parts]
        _check_equal(rows)
        return rows, parts[root][len(arrays) :]

    def _takes_part(self, members: Members) -> bool:
        return members is None or self.rank in members

    def _publish(self, arrays: Arrays) -> _Manifest:
        key = _key(arrays)
        # a new array may have the `id` of an old one, so `_same` asks the weak references
        found = self._manifests.get(key)
        if found is None or not _same(found.refs, arrays):
            found = self._manifest(arrays)
            _remember(self._manifests, key, found)
        self._show(found)
        return found

    def _show(self, manifest: _Manifest) -> None:
        """Set the word by which the others find it after the next barrier."""
        if manifest.number <= self._number - MANIFEST_SLOTS:  # another manifest has its slot by now
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
        # numbers only grow: what is kept under one never belongs to other arrays
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
        """The arrays if they are in the arena, else copies in the staging buffer."""
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
        """Arrays of this signature in the staging buffer, which grows as needed."""
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
        self._node.step(members)
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
        self._node.step(members)
        if not self._takes_part(members):
            return None
        _, parts = self._meet(self._shared(arrays), members)
        result = self.join(parts, join) if self.rank == root else None
        self._node.barrier(members)
        return result

    def collect(
        self, arrays: Arrays, root: int, members: Members = None
    ) -> list[list[np.ndarray]] | None:
        """At the root: copies of all members' arrays, in the order of ranks."""
        self._node.step(members)
        if not self._takes_part(members):
            return None
        _, parts = self._meet(self._shared(arrays), members)
        result = [[np.array(a) for a in part] for part in parts] if self.rank == root else None
        self._node.barrier(members)
        return result

    def all_gather(self, arrays: Arrays, join: Join = "concatenate") -> list[np.ndarray]:
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
        weights: Weights = None,
        members: Members = None,
    ) -> list[np.ndarray] | None:
        self._node.step(members)
        if not self._takes_part(members):
            return None
        shared = self._shared(arrays)
        results = []
        if self.rank == root:
            results = [self.empty(a.shape, result_dtype(a.dtype, op)) for a in arrays]
            # kept after an exception here, until all have reported and the next reduction begins
            self._results = results
        _, parts = self._meet([*shared, *results], members)
        ranks = range(self.size) if members is None else members
        count = len(arrays)
        at_root = parts[list(ranks).index(root)][count:]
        rows = [p[:count] for p in parts]
        _check_equal(rows)
        for chunk in self._chunks(rows, ranks, at_root):
            reduce_into(chunk[-1], chunk[:-1], op, weights)
        self._node.barrier(members)
        self._results = []
        return results if self.rank == root else None

    def all_reduce(
        self,
        arrays: Arrays,
        op: Reduction,
        weights: Weights = None,
        members: Members = None,
        starting: Callable[[], None] | None = None,
    ) -> None:
        if op is _SUM and members is None and starting is None and len(arrays) == 1:
            repeated = self._repeated.get(id(arrays[0]))
            if repeated is not None and repeated[0]() is arrays[0] and arrays[0].flags.writeable:
                repeated[1](arrays)
                return
        if members is not None and len(members) == self.size:
            members = None
        self._node.step(members)
        if members is not None and self.rank not in members:
            return
        key, all_meet = _key(arrays), members is None
        small_set = self._small_arrays.get(key) if all_meet else None
        if small_set is not None and _same(small_set.refs, arrays):
            if op is _SUM and starting is None:
                small_set.sums += 1
                if small_set.sums == _COMPILE_AFTER:
                    self._compile(small_set, arrays)
            self._reduce_small(small_set, arrays, op, weights, starting)
            return
        known = self._manifests.get(key)
        if known is not None and not (known.small and all_meet) and _same(known.refs, arrays):
            self._show(known)
            self._reduce_chunks(known, arrays, op, weights, members, starting)
        elif all_meet and _small(arrays):
            small_set = _new_small(arrays)
            _remember(self._small_arrays, key, small_set)
            self._reduce_small(small_set, arrays, op, weights, starting)
        else:
            shared = self._shared(arrays)
            known = self._publish(shared)
            self._reduce_chunks(known, shared, op, weights, members, starting)
            if shared is not arrays:
                for a, reduced in zip(arrays, shared, strict=True):
                    np.copyto(a, reduced)

    def _reduce_chunks(
        self,
        manifest: _Manifest,
        shared: Arrays,
        op: Reduction,
        weights: Weights,
        members: Members,
        starting: Callable[[], None] | None,
    ) -> None:
        how = (op, members, None if weights is None else tuple(weights))
        plans = manifest.plans.get(how)
        if plans is None:
            # before `enter`: after it a failure could leave values half written
            compile_for(shared, self.size if members is None else len(members), op)
            plans = manifest.plans[how] = {}
        if members is None:  # a member with small arrays reads this word in place of a checksum
            self._checksums[self._node.turn][0] = _VOID
        self._node.enter(members)
        plan = self._plan(plans, op, weights, members)
        if starting is not None:
            starting()
        for reduce_chunk in plan:
            reduce_chunk()
        self._node.barrier(members)

    def _plan(
        self,
        plans: dict[object, list[Callable[[], None]]],
        op: Reduction,
        weights: Weights,
        members: Members,
    ) -> list[Callable[[], None]]:
        """This member's part of the work, kept for the same arrays of all members."""
        ranks = range(self.size) if members is None else members
        # others may have brought other arrays than last time
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
        self, parts: list[list[np.ndarray]], ranks: Sequence[int], targets: list[np.ndarray] | None
    ) -> list[list[np.ndarray]]:
        """This member's chunk of each array: a 1-D view for each rank, then one of the target."""
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
        arrays: Arrays,
        op: Reduction,
        weights: Weights,
        starting: Callable[[], None] | None,
    ) -> None:
        plan = self._small_plan(small_set)
        for target, a in zip(plan.mine, arrays):  # noqa: B905 (`strict` takes 0.1 us longer)
            target[...] = a
        plan.my_checksum[0] = small_set.checksum
        self._mine[MANIFEST] = 0  # a member with large arrays finds none here
        self._node.enter()
        self._add_small(plan, small_set.checksum, arrays, op, weights, starting)

    def _add_small(
        self,
        plan: _SmallPlan,
        checksum: int,
        arrays: Arrays,
        op: Reduction,
        weights: Weights,
        starting: Callable[[], None] | None,
    ) -> None:
        # when all have come, and before anything is written: all raise, or none
        for word in plan.others:
            if word[0] != checksum:
                raise InputError(DIFFER)
        if starting is not None:
            starting()
        if op is _SUM and plan.pairs is not None:
            for (first, second), a in zip(plan.pairs, arrays):  # noqa: B905
                _add(first, second, a)
            return
        for column, a in zip(plan.columns, arrays, strict=True):
            total = reduce_block(column, op, weights, out=a)
            if total is not a:
                a[...] = total

    def _compile(self, small_set: _SmallArrays, arrays: Arrays) -> None:
        """Let compiled code make the next sums of one small vector, if that is what these are."""
        a = arrays[0]
        plain = a.flags.c_contiguous and a.flags.aligned and a.flags.writeable
        if len(arrays) > 1 or not plain or not 0 < a.nbytes <= _COMPILED_BYTES or not IS_ORDERED:
            return
        from synkhronos._backends.small_sums import (
            DIFFERENT,
            DTYPES,
            LATE,
            Place,
            Table,
            address_of,
        )

        if a.dtype not in DTYPES:
            return
        heads = [address_of(head) for head in self._node.words.bytes]

        def table(turn: int) -> Table:
            start = SMALL_BUFFERS + turn * SMALL_BUFFER_BYTES
            places = [
                Place(h + 8 * BARRIER, h + 8 * ASLEEP, h + start, h + start + _SMALL_ALIGN)
                for h in heads
            ]
            mine = heads[self.rank] + 8 * MANIFEST
            return Table(a, self.rank, self.leader, places, mine, small_set.checksum)

        tables = table(0), table(1)
        meet_and_sum, at = tables[0].run, [t.address for t in tables]
        node, arrive, waiter = self._node, self._node.arrive, self._node.waiter

        def again(arrays: Arrays, tables: Any = tables) -> None:  # which keep their words
            here = arrive()
            found = meet_and_sum(at[node.turn], here, _LOOKS_COMPILED * waiter.looks)
            if not found:
                return
            if found == LATE:
                node.pass_entrance(here)
                plan = self._small_plan(small_set)
                self._add_small(plan, small_set.checksum, arrays, _SUM, None, None)
                return
            waiter.ring(self._others)
            if found == DIFFERENT:
                raise InputError(DIFFER)

        _remember(self._repeated, id(a), (small_set.refs[0], again))

    def _small_plan(self, small_set: _SmallArrays) -> _SmallPlan:
        turn = self._node.turn
        plan = small_set.plans[turn]
        if plan is None:
            plan = small_set.plans[turn] = self._make_small_plan(small_set, turn)
        return plan

    def _make_small_plan(self, small_set: _SmallArrays, turn: int) -> _SmallPlan:
        slots = [self._small_buffers(r, turn, small_set.signature) for r in range(self.size)]
        my_checksum, mine = slots[self.rank]
        others = [word for r, (word, _) in enumerate(slots) if r != self.rank]
        columns = [list(column) for column in zip(*[a for _, a in slots], strict=True)]
        direct = len(slots) == 2 and all(a.dtype != np.float16 for a in mine)
        pairs = [(first, second) for first, second in columns] if direct else None
        return _SmallPlan(mine, my_checksum, others, columns, pairs)

    def _small_buffers(
        self, rank: int, turn: int, signature: Signature
    ) -> tuple[Any, list[np.ndarray]]:
        start = SMALL_BUFFERS + turn * SMALL_BUFFER_BYTES
        memory = self._node.words.bytes[rank][start : start + SMALL_BUFFER_BYTES]
        found, at = [], _SMALL_ALIGN
        for dtype, shape in signature:
            found.append(np.ndarray(shape, dtype, memory, at))
            at += -(-_nbytes(dtype, shape) // _SMALL_ALIGN) * _SMALL_ALIGN
        return memory[:_SMALL_ALIGN].cast("q"), found

    def reduce_scatter(
        self, arrays: Arrays, op: Reduction, edges: Sequence[int], weights: Weights = None
    ) -> list[np.ndarray]:
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
    checksum = zlib.crc32(repr(signature).encode())
    return _SmallArrays(checksum, tuple(weakref.ref(a) for a in arrays), signature, [None, None])


def _chunk(a: np.ndarray, index: int, place: int, turns: int) -> tuple[int, int]:
    """The elements (lo, hi) of an array that member `place` of `turns` reduces."""
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
    for i, a in enumerate(arrays):  # noqa: SIM110 (a generator takes 0.5 us longer)
        if refs[i]() is not a:
            return False
    return True


def _remember(memory: dict[Any, Any], key: object, value: object) -> None:
    """Keep the latest few entries."""
    if len(memory) >= _KEEP:
        del memory[next(iter(memory))]
    memory[key] = value


def _check_equal(parts: list[list[np.ndarray]]) -> None:
    found = [[(a.dtype.name, a.shape) for a in part] for part in parts]
    if any(f != found[0] for f in found):
        raise InputError(f"a reduction needs equal shapes and dtypes in all members: {found}")


def check_joinable(column: Sequence[tuple[str, tuple[int, ...]]], join: Join) -> None:
    """Refuse dtypes and shapes that cannot be joined."""
    skip = 0 if join == "stack" else 1
    found = {(name, len(shape), shape[skip:]) for name, shape in column}
    if len(found) > 1:
        shapes = [shape for _, shape in column]
        hint = "; nd_up=0 joins unequal lengths" if join == "stack" else ""
        raise InputError(f"cannot join arrays of shapes {shapes}{hint}")
