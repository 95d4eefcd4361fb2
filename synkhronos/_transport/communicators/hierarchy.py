"""The communicator of several nodes: in the node through its memory, between nodes by the leaders.

A leader is the first member of its node. It takes part in its node's meetings even where a verb
names other members, since it carries what goes in and out.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from synkhronos._backends.reduction_loops import reduce_into
from synkhronos._plan.reductions import Reduction, shares
from synkhronos._transport.channels.placement import Placement
from synkhronos._transport.communicators.between_nodes import Between
from synkhronos._transport.communicators.communicator import (
    Arrays,
    Communicator,
    Fill,
    Join,
    Members,
)
from synkhronos._transport.communicators.shared_memory import SharedMemory

_LEADER = 0  # its place in the node
STRETCH_BYTES = 1 << 22  # of large sums: what leaders send while their nodes prepare the next


_SUMS = (Reduction.SUM, Reduction.AVG)


class Hierarchy(Communicator):
    """Collectives between the members of several nodes.

    Parameters
    ----------
    local : SharedMemory
        Of the node.
    placement : Placement
    node : int
        This one's number.
    between : Between, optional
        In a leader.
    """

    def __init__(
        self, local: SharedMemory, placement: Placement, node: int, between: Between | None
    ) -> None:
        self._local = local
        self._placement = placement
        self._node = node
        self._between = between
        self._single = max(placement.sizes) == 1  # all nodes must take the same way
        self.stretch_bytes = STRETCH_BYTES
        self.rank = placement.ranks(node)[local.rank]
        self.size = placement.size
        self.nodes = len(placement.sizes)
        self.leader = _LEADER

    @property
    def home(self) -> SharedMemory:
        """The communicator of the node."""
        return self._local

    @property
    def interrupts(self) -> contextlib.AbstractContextManager[None]:
        """A context in which Ctrl-C waits."""
        return self._local.interrupts

    def attend(self, done: Callable[[], bool]) -> None:
        """Wait for the end of an exchange of GPUs; leaders watch the other nodes, too."""
        if self._between is None:
            self._local.attend(done)
        else:
            self._local.attend(done, self._between.check)

    def fail_exchange(self) -> None:
        self._local.fail_exchange()
        if self._between is not None:
            self._between.fail_exchange()

    def sum_over_nodes(self, arrays: Arrays, fill: Fill, compress: str | None = None) -> None:
        """Add up what nodes share; see Communicator.

        In stretches: while the leaders send one, the others of the node fill the next.
        """
        between = self._between
        gate = None if between is None else functools.partial(between.agree_on, arrays)
        flat = [a.reshape(-1) for a in arrays]
        stretches = list(_stretches(flat, sys.maxsize if self._single else self.stretch_bytes))
        wire = _Wire(between, [flat[i][lo:hi] for i, lo, hi in stretches], compress)
        with contextlib.nullcontext() if between is None else between.interrupts:
            self._local.enter(None, gate)
            with wire:
                self._fill_and_send(stretches, fill, wire)

    def _fill_and_send(
        self, stretches: list[tuple[int, int, int]], fill: Fill, wire: _Wire
    ) -> None:
        failed: Exception | None = None
        for k in range(len(stretches) + 1):
            place, fillers = self._filler(k)
            if k < len(stretches) and fillers:
                i, lo, hi = stretches[k]
                mine = (lo + (hi - lo) * p // fillers for p in (place, place + 1))
                try:
                    fill(i, *mine)
                except Exception as exc:  # the others are on their way through all of it
                    failed = exc
            wire.send(k)
            self._local.barrier()
        if failed is not None:
            raise failed

    def _filler(self, k: int) -> tuple[int, int]:
        """This member's place among those that fill a stretch, and how many they are; 0: not it."""
        here, size = self._local.rank, self._local.size
        if k == 0 or size == 1:
            return here, size
        return here - 1, 0 if here == _LEADER else size - 1

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """An array in the node's arena."""
        return self._local.empty(shape, dtype)

    def expose(self, arrays: Arrays) -> list[list[np.ndarray]]:
        """Views of the arrays of the node's members."""
        return self._local.expose(arrays)

    @contextlib.contextmanager
    def without_master(self) -> Iterator[None]:
        """Run a command that the master takes no part in; see Communicator."""
        with contextlib.ExitStack() as stack:
            if self._between is not None:
                stack.enter_context(self._between.without_master())
            elif self._node == 0:  # the master's: elsewhere the leader refuses
                stack.enter_context(self._local.without_master())
            yield

    def barrier(self, members: Members = None) -> None:
        """Wait for all; see Communicator."""
        whole = self._whole(self._here(members))
        if whole is None or whole:
            self._local.enter(whole, self._gate)
        else:
            self._gate()

    def enter(self) -> None:
        """A barrier that all pass or nobody; see Communicator."""
        self._local.enter(None, self._gate)

    def _gate(self) -> None:
        """What a leader does when its node has come, and before it goes on."""
        if self._between is not None:
            self._between.agree()

    def _here(self, members: Members) -> tuple[int, ...]:
        """The places of members on this node."""
        return self._placement.local(self._node, members)

    def _whole(self, here: tuple[int, ...]) -> Members:
        """The same with the leader, if there are any; None: the whole node."""
        found = tuple(sorted({_LEADER, *here})) if here else ()
        return None if len(found) == self._local.size else found

    def _takes_part(self, members: Members) -> bool:
        return members is None or self.rank in members

    def _place(self, rank: int) -> int | None:
        """Where on this node a member is; None: elsewhere."""
        ranks = self._placement.ranks(self._node)
        return rank - ranks.start if rank in ranks else None

    def broadcast(
        self, arrays: Arrays | None, root: int, members: Members = None
    ) -> list[np.ndarray] | None:
        """The root's arrays; see Communicator."""
        whole = self._whole(self._here(members))
        source = self._place(root)
        found: Any = arrays
        if source is not None:
            found = self._local.broadcast(arrays, source, whole)
        if self._between is not None:
            found = self._between.broadcast(found, self._placement.node_of(root))
        if source is None:
            mine = found if self._between is not None else None
            found = self._local.broadcast(mine, _LEADER, whole)
        if self.rank == root:
            return list(arrays or ())
        return list(found) if found is not None and self._takes_part(members) else None

    def gather(
        self, arrays: Arrays, root: int, join: Join = "concatenate", members: Members = None
    ) -> list[np.ndarray] | None:
        """Everybody's arrays at the root; see Communicator."""
        here = self._here(members)
        whole = self._whole(here)
        parts = self._local.collect(arrays, _LEADER, whole)
        found: Any = None
        if self._between is not None:
            mine = parts or []
            if whole is not None and _LEADER not in here:
                mine = mine[1:]
            nodes = self._between.gather(mine, self._placement.node_of(root))
            found = None if nodes is None else [part for node in nodes for part in node]
        return self._joined_at(root, found, join, whole)

    def _joined_at(
        self, root: int, parts: Any, join: Join, whole: Members
    ) -> list[np.ndarray] | None:
        """The leader of the root's node has the parts; the root gets them joined."""
        place = self._place(root)
        if place is None:
            return None
        joined = None if parts is None else self._local.join(parts, join)
        if place == _LEADER:
            return joined
        found = self._local.broadcast(joined, _LEADER, whole)
        return found if self.rank == root else None

    def all_gather(self, arrays: Arrays, join: Join = "concatenate") -> list[np.ndarray]:
        """Everybody's arrays everywhere; see Communicator."""
        parts = self._local.collect(arrays, _LEADER)
        joined = None
        if self._between is not None:
            nodes = self._between.all_gather(parts)
            joined = self._local.join([part for node in nodes for part in node], join)
        found = self._local.broadcast(joined, _LEADER)
        assert found is not None
        return found

    def scatter(self, arrays: Arrays | None, root: int, edges: Sequence[int]) -> list[np.ndarray]:
        """Rows of the root's arrays; see Communicator."""
        source = self._place(root)
        found: Any = arrays
        if source is not None:
            found = self._local.broadcast(arrays, source)
        if self._between is not None:
            parts = None
            if source is not None:
                nodes = [self._placement.ranks(n) for n in range(len(self._placement.sizes))]
                parts = [[a[edges[r.start] : edges[r.stop]] for a in found] for r in nodes]
            found = self._between.scatter(parts, self._placement.node_of(root))
        ranks = self._placement.ranks(self._node)
        borders = [edges[r] - edges[ranks.start] for r in range(ranks.start, ranks.stop + 1)]
        given = found if self._between is not None else None
        return self._local.scatter(given, _LEADER, borders)

    def reduce(
        self,
        arrays: Arrays,
        op: Reduction,
        root: int,
        weights: Sequence[float] | None = None,
        members: Members = None,
    ) -> list[np.ndarray] | None:
        """Reduced values at the root; see Communicator."""
        found = self._reduced(arrays, op, weights, members)
        if self.rank == root:
            return found
        return None

    def _reduced(
        self,
        arrays: Arrays,
        op: Reduction,
        weights: Sequence[float] | None,
        members: Members,
    ) -> list[np.ndarray] | None:
        """Reduced values, fresh, in every member that takes part."""
        exact = [i for i, a in enumerate(arrays) if a.dtype.kind in "biu"]
        if op is not Reduction.AVG or not exact:
            return self._reduce_all(arrays, op, weights, members)
        # averages of integers: sums are exact, so that they are divided once
        ranks = list(range(self.size)) if members is None else list(members)
        given = [1.0] * len(ranks) if weights is None else list(weights)
        mine = given[ranks.index(self.rank)] if self.rank in ranks else 0.0
        sums = [arrays[i].astype(np.float64) * mine for i in exact]
        found = self._reduce_all(sums, Reduction.SUM, None, members)
        rest = [a for i, a in enumerate(arrays) if i not in exact]
        others = self._reduce_all(rest, op, weights, members) if rest else []
        if found is None or others is None:
            return None
        averages, floats = iter([total / sum(given) for total in found]), iter(others)
        return [next(averages if i in exact else floats) for i in range(len(arrays))]

    def _reduce_all(
        self,
        arrays: Arrays,
        op: Reduction,
        weights: Sequence[float] | None,
        members: Members,
    ) -> list[np.ndarray] | None:
        here = self._here(members)
        whole = self._whole(here)
        total = None
        if here:
            mine = self._weights(weights, members, here)
            total = self._local.reduce(arrays, op, here[0], mine, here)
            if here[0] != _LEADER:  # the leader is none of the members
                total = self._local.broadcast(total, here[0], whole)
        if self._between is not None:
            total = self._between.reduce(total, op, self._node_weights(weights, members))
        found = self._local.broadcast(total, _LEADER, whole) if here else None
        return found if self._takes_part(members) else None

    def _weights(
        self, weights: Sequence[float] | None, members: Members, here: Sequence[int]
    ) -> list[float] | None:
        """Of the members on this node."""
        if weights is None:
            return None
        ranks = list(range(self.size)) if members is None else list(members)
        first = self._placement.ranks(self._node).start
        found = [weights[ranks.index(first + place)] for place in here]
        return found if any(found) else None  # the node itself is then weighted with 0

    def _node_weights(self, weights: Sequence[float] | None, members: Members) -> list[float]:
        ranks = list(range(self.size)) if members is None else list(members)
        found = [0.0] * len(self._placement.sizes)
        for i, rank in enumerate(ranks):
            found[self._placement.node_of(rank)] += 1.0 if weights is None else weights[i]
        return found

    def all_reduce(
        self,
        arrays: Arrays,
        op: Reduction,
        weights: Sequence[float] | None = None,
        members: Members = None,
        starting: Callable[[], None] | None = None,
    ) -> None:
        """Reduced values in place; see Communicator."""
        if members is None and self._between is not None and self._single:
            given = None if weights is None else self._node_weights(weights, None)
            whole = [a if a.flags.c_contiguous else np.ascontiguousarray(a) for a in arrays]
            self._between.all_reduce(whole, op, given, starting)
            for array, total in zip(arrays, whole, strict=True):
                if total is not array:
                    array[...] = total
            return
        if members is None and op in _SUMS and self._large(arrays):
            self._sum_all(arrays, op, weights, starting)
            return
        found = self._reduced(arrays, op, weights, members)
        # all have the values now: from here on only a death can stop one from writing them
        self.barrier(members)
        if found is None:
            return
        if starting is not None:
            starting()
        for array, total in zip(arrays, found, strict=True):
            rounded = array.dtype.kind in "iu" and total.dtype != array.dtype
            array[...] = np.rint(total) if rounded else total

    def _large(self, arrays: Arrays) -> bool:
        exact = any(a.dtype.kind not in "fc" or a.dtype == np.float16 for a in arrays)
        return not exact and sum([a.nbytes for a in arrays]) > self.stretch_bytes

    def _sum_all(
        self,
        arrays: Arrays,
        op: Reduction,
        weights: Sequence[float] | None,
        starting: Callable[[], None] | None,
    ) -> None:
        """Large sums and means of floats, stretch by stretch."""
        leads = self._local.rank == _LEADER
        made = [self.empty(a.shape, a.dtype) for a in arrays] if leads else []
        parts, totals = self._local.show(arrays, made, _LEADER)
        first = self._placement.ranks(self._node).start
        given = [1.0] * self.size if weights is None else list(weights)
        counts = shares(given) if op is Reduction.AVG else [1.0] * self.size
        mine = counts[first : first + self._local.size]

        def fill(i: int, lo: int, hi: int) -> None:
            out = totals[i].reshape(-1)[lo:hi]
            reduce_into(out, [p[i].reshape(-1)[lo:hi] for p in parts], Reduction.SUM, None)

        def weigh(i: int, lo: int, hi: int) -> None:
            out = totals[i].reshape(-1)[lo:hi]
            if not any(mine):
                out[...] = 0
                return
            reduce_into(out, [p[i].reshape(-1)[lo:hi] for p in parts], Reduction.AVG, mine)
            np.multiply(out, out.dtype.type(sum(mine)), out=out)

        self.sum_over_nodes(totals, fill if op is Reduction.SUM else weigh)
        self.barrier()  # from here on only a death can stop a member from writing
        if starting is not None:
            starting()
        for array, total in zip(arrays, totals, strict=True):
            array[...] = total
        self._local.barrier()  # the leader's totals are freed with its last view

    def reduce_scatter(
        self,
        arrays: Arrays,
        op: Reduction,
        edges: Sequence[int],
        weights: Sequence[float] | None = None,
    ) -> list[np.ndarray]:
        """This member's rows of the reduced values; see Communicator."""
        found = self._reduced(arrays, op, weights, None)
        assert found is not None
        return [np.array(a[edges[self.rank] : edges[self.rank + 1]]) for a in found]


class _Wire:
    """A leader's transfers of one stretch after the other; in other members, nothing.

    The leaders of other nodes are on their way to all of them: so they are all made, even where
    this node has failed in between, and then what they bring counts for nothing.
    """

    def __init__(
        self, between: Between | None, stretches: list[np.ndarray], compress: str | None
    ) -> None:
        self._between = between
        self._compress = compress
        self._left = iter(stretches)
        self._sent = 0

    def __enter__(self) -> None:
        """All have agreed to come."""

    def __exit__(self, *exc: object) -> None:
        """Send what is left."""
        if self._between is not None:
            for stretch in self._left:
                self._between.add(stretch, self._compress)

    def send(self, upto: int) -> None:
        """Send all stretches before this one."""
        while self._between is not None and self._sent < upto:
            self._sent += 1
            self._between.add(next(self._left), self._compress)


def _stretches(flat: Sequence[np.ndarray], nbytes: int) -> Iterator[tuple[int, int, int]]:
    """Each stretch: of which array, from which element to which."""
    for i, array in enumerate(flat):
        step = max(1, nbytes // array.itemsize)
        for lo in range(0, array.size, step):
            yield i, lo, min(lo + step, array.size)
