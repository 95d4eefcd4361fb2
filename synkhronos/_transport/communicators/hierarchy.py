"""The communicator of several nodes: shared memory on each node, MPI between the nodes' leaders.

The leader is the first member of its node. It takes part in its node's exchanges even where
`members` does not name it, since it sends and receives for the node.
"""

# These rules hold here:
#
# * An exchange goes up and down: the members of each node, their leaders, the members again. So an
#   array crosses the network once for each node, and not once for each member.
# * Before leaders transfer anything they agree that all will come, and before sums also that their
#   arrays are alike. Once they have agreed, a leader enters all of these transfers, or declares the
#   transfer failed, which ends the group.
# * The way of an exchange follows from what all nodes know alike: placement, members named, shapes
#   and dtypes. A choice by anything local would leave other nodes in a transfer.
# * Values are combined in the order of ranks within a node, and then in the order of nodes. All
#   members get the same bits; a group of one node may get others, since it groups sums otherwise.
# * Averages of integers are exact sums, divided once.
# * `all_reduce` overwrites the caller's arrays only after all leaders have agreed, and where nodes
#   have several members after a barrier behind the last transfer. `starting` announces it.

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from synkhronos._backends.reduction_loops import reduce_into
from synkhronos._host.arena import Arena
from synkhronos._plan.transfers import Plan, Swap, Transfer, run
from synkhronos._proofs.reductions import Reduction, normalized, rounded
from synkhronos._transport.channels.placement import Placement
from synkhronos._transport.communicators.between_nodes import BetweenNodes
from synkhronos._transport.communicators.communicator import (
    Arrays,
    Communicator,
    Fill,
    Join,
    Members,
    Weights,
)
from synkhronos._transport.communicators.half_precision import Rounding
from synkhronos._transport.communicators.shared_memory import SharedMemory
from synkhronos._transport.communicators.summing_process import SummingProcess
from synkhronos._transport.communicators.sums import BackgroundSums, Sums

_LEADER = 0  # its rank on the node
SEGMENT_BYTES = 1 << 22  # of large sums: leaders send one while their nodes fill the next

_SUMS = (Reduction.SUM, Reduction.AVG)


class Hierarchy(Communicator):
    """Moves arrays between the members of several nodes."""

    def __init__(
        self, within: SharedMemory, placement: Placement, node: int, between: BetweenNodes | None
    ) -> None:
        self._within = within  # the node's communicator
        self._placement = placement
        self._node = node  # this node's number
        self._between = between  # None in members that are not a leader
        self._single = max(placement.sizes) == 1  # the same in all nodes, which must act alike
        self._beside: Arena | None = None
        self._processes: weakref.WeakSet[SummingProcess] = weakref.WeakSet()
        self.segment_bytes = SEGMENT_BYTES
        self.rank = placement.ranks(node)[within.rank]
        self.size = placement.size
        self.nodes = len(placement.sizes)
        self.leader = _LEADER

    @property
    def home(self) -> SharedMemory:
        return self._within

    @property
    def interrupts(self) -> contextlib.AbstractContextManager[None]:
        return self._within.interrupts

    def wait_for_gpu(self, done: Callable[[], bool]) -> None:
        """See Communicator; leaders watch the other nodes, too."""
        if self._between is None:
            self._within.wait_for_gpu(done)
        else:
            self._within.wait_for_gpu(done, self._between.check)

    def fail_exchange(self) -> None:
        self._within.fail_exchange()
        if self._between is not None:
            self._between.fail_exchange()

    @property
    def node(self) -> int:
        return self._node

    def run_between_nodes[R](self, plan: Plan[R]) -> R:
        """See Communicator; each transfer is one or two agreements and a transfer of MPI."""
        assert self._between is not None
        return run(plan, functools.partial(_answer, self._between))

    def sum_over_nodes(self, arrays: Arrays, fill: Fill, rounding: Rounding | None = None) -> None:
        """See Communicator. While the leaders send a segment, the others fill the next one."""
        between = self._between
        before_release = None if between is None else functools.partial(between.agree_on, arrays)
        flat = [a.reshape(-1) for a in arrays]
        segments = list(_segments(flat, sys.maxsize if self._single else self.segment_bytes))
        pipeline = _Pipeline(between, [flat[i][lo:hi] for i, lo, hi in segments], rounding)
        with contextlib.nullcontext() if between is None else between.interrupts:
            self._within.enter(None, before_release)
            with pipeline:
                self._fill_and_send(segments, fill, pipeline)

    def _fill_and_send(
        self, segments: list[tuple[int, int, int]], fill: Fill, pipeline: _Pipeline
    ) -> None:
        failed: Exception | None = None
        for k in range(len(segments) + 1):
            # filled while the leader sends the one before; it helps to fill only the first
            place, fillers = self._filler(k)
            if k < len(segments) and fillers:
                i, lo, hi = segments[k]
                mine = (lo + (hi - lo) * p // fillers for p in (place, place + 1))
                try:
                    fill(i, *mine)
                except Exception as exc:  # the others go through all segments
                    failed = exc
            pipeline.send(k)
            self._within.barrier()
        if failed is not None:
            raise failed

    def _filler(self, k: int) -> tuple[int, int]:
        """This member's place among those that fill a segment, and their number (0: not it)."""
        here, size = self._within.rank, self._within.size
        if k == 0 or size == 1:
            return here, size
        return here - 1, 0 if here == _LEADER else size - 1

    def mappable(self) -> Arena:
        arena = self._within.shared.arena
        if arena.fd is not None:
            return arena
        if self._beside is None:  # a lone member's arena is private, which is faster
            self._beside = Arena(1)
        return self._beside

    def start_sums(self, sums: Sums, cores: Sequence[int]) -> BackgroundSums | None:
        between = self._between
        if between is None:
            return None
        made = SummingProcess(self._within.shared, between, self.rank, sums, self.mappable(), cores)
        self._processes.add(made)
        made.start()
        return made

    def close(self) -> None:
        for process in list(self._processes):
            process.close()
        if self._beside is not None:
            self._beside.close_fd()

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        return self._within.empty(shape, dtype)

    def expose(self, arrays: Arrays) -> list[list[np.ndarray]]:
        return self._within.expose(arrays)

    @contextlib.contextmanager
    def without_master(self) -> Iterator[None]:
        """Run a command that the master takes no part in; see Communicator."""
        with contextlib.ExitStack() as stack:
            if self._between is not None:
                stack.enter_context(self._between.without_master())
            elif self._node == 0:  # the master's: elsewhere the leader refuses
                stack.enter_context(self._within.without_master())
            yield

    def barrier(self, members: Members = None) -> None:
        with_leader = self._with_leader(self._here(members))
        if with_leader is None or with_leader:
            self._within.enter(with_leader, self._agree)
        else:
            self._agree()

    def enter(self) -> None:
        self._within.enter(None, self._agree)

    def _agree(self) -> None:
        """In a leader, whose node has come: wait until all leaders are here."""
        if self._between is not None:
            self._between.agree()

    def _here(self, members: Members) -> tuple[int, ...]:
        """The ranks within this node of the members that are on it."""
        return self._placement.within(self._node, members)

    def _with_leader(self, here: tuple[int, ...]) -> Members:
        """The ranks within the node, and the leader's if there are any; None for the whole node."""
        found = tuple(sorted({_LEADER, *here})) if here else ()
        return None if len(found) == self._within.size else found

    def _takes_part(self, members: Members) -> bool:
        return members is None or self.rank in members

    def _place(self, rank: int) -> int | None:
        """A member's rank on this node; None if it is on another."""
        ranks = self._placement.ranks(self._node)
        return rank - ranks.start if rank in ranks else None

    def broadcast(
        self, arrays: Arrays | None, root: int, members: Members = None
    ) -> list[np.ndarray] | None:
        with_leader = self._with_leader(self._here(members))
        source = self._place(root)
        found: Any = arrays
        if source is not None:
            found = self._within.broadcast(arrays, source, with_leader)
        if self._between is not None:
            found = self._between.broadcast(found, self._placement.node_of(root))
        if source is None:
            mine = found if self._between is not None else None
            found = self._within.broadcast(mine, _LEADER, with_leader)
        if self.rank == root:
            return list(arrays or ())
        return list(found) if found is not None and self._takes_part(members) else None

    def gather(
        self, arrays: Arrays, root: int, join: Join = "concatenate", members: Members = None
    ) -> list[np.ndarray] | None:
        here = self._here(members)
        with_leader = self._with_leader(here)
        parts = self._within.collect(arrays, _LEADER, with_leader)
        found: Any = None
        if self._between is not None:
            mine = parts or []
            if with_leader is not None and _LEADER not in here:
                mine = mine[1:]
            nodes = self._between.gather(mine, self._placement.node_of(root))
            found = None if nodes is None else [part for node in nodes for part in node]
        return self._joined_at(root, found, join, with_leader)

    def _joined_at(
        self, root: int, parts: Any, join: Join, with_leader: Members
    ) -> list[np.ndarray] | None:
        """Join the parts, which the leader of the root's node has, and give them to the root."""
        place = self._place(root)
        if place is None:
            return None
        joined = None if parts is None else self._within.join(parts, join)
        if place == _LEADER:
            return joined
        found = self._within.broadcast(joined, _LEADER, with_leader)
        return found if self.rank == root else None

    def all_gather(self, arrays: Arrays, join: Join = "concatenate") -> list[np.ndarray]:
        parts = self._within.collect(arrays, _LEADER)
        joined = None
        if self._between is not None:
            nodes = self._between.all_gather(parts)
            joined = self._within.join([part for node in nodes for part in node], join)
        found = self._within.broadcast(joined, _LEADER)
        assert found is not None
        return found

    def scatter(self, arrays: Arrays | None, root: int, edges: Sequence[int]) -> list[np.ndarray]:
        source = self._place(root)
        found: Any = arrays
        if source is not None:
            found = self._within.broadcast(arrays, source)
        if self._between is not None:
            parts = None
            if source is not None:
                nodes = [self._placement.ranks(n) for n in range(len(self._placement.sizes))]
                parts = [[a[edges[r.start] : edges[r.stop]] for a in found] for r in nodes]
            found = self._between.scatter(parts, self._placement.node_of(root))
        ranks = self._placement.ranks(self._node)
        borders = [edges[r] - edges[ranks.start] for r in range(ranks.start, ranks.stop + 1)]
        given = found if self._between is not None else None
        return self._within.scatter(given, _LEADER, borders)

    def reduce(
        self,
        arrays: Arrays,
        op: Reduction,
        root: int,
        weights: Weights = None,
        members: Members = None,
    ) -> list[np.ndarray] | None:
        found = self._reduced(arrays, op, weights, members)
        if self.rank == root:
            return found
        return None

    def _reduced(
        self, arrays: Arrays, op: Reduction, weights: Weights, members: Members
    ) -> list[np.ndarray] | None:
        """Fresh arrays of the reduced values, in every member that takes part."""
        exact = [i for i, a in enumerate(arrays) if a.dtype.kind in "biu"]
        if op is not Reduction.AVG or not exact:
            return self._reduce_all(arrays, op, weights, members)
        # averages of integers: their sums are exact, and divided once
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
        self, arrays: Arrays, op: Reduction, weights: Weights, members: Members
    ) -> list[np.ndarray] | None:
        here = self._here(members)
        with_leader = self._with_leader(here)
        total = None
        if here:
            mine = self._weights(weights, members, here)
            total = self._within.reduce(arrays, op, here[0], mine, here)
            if here[0] != _LEADER:  # the leader does not take part
                total = self._within.broadcast(total, here[0], with_leader)
        if self._between is not None:
            total = self._between.reduce(total, op, self._node_weights(weights, members))
        found = self._within.broadcast(total, _LEADER, with_leader) if here else None
        return found if self._takes_part(members) else None

    def _weights(
        self, weights: Weights, members: Members, here: Sequence[int]
    ) -> list[float] | None:
        """The weights of the members on this node."""
        if weights is None:
            return None
        ranks = list(range(self.size)) if members is None else list(members)
        first = self._placement.ranks(self._node).start
        found = [weights[ranks.index(first + place)] for place in here]
        return found if any(found) else None  # the weight of the node is 0 then

    def _node_weights(self, weights: Weights, members: Members) -> list[float]:
        ranks = list(range(self.size)) if members is None else list(members)
        found = [0.0] * len(self._placement.sizes)
        for i, rank in enumerate(ranks):
            found[self._placement.node_of(rank)] += 1.0 if weights is None else weights[i]
        return found

    def all_reduce(
        self,
        arrays: Arrays,
        op: Reduction,
        weights: Weights = None,
        members: Members = None,
        starting: Callable[[], None] | None = None,
    ) -> None:
        if members is None and self._between is not None and self._single:
            given = None if weights is None else self._node_weights(weights, None)
            contiguous = [a if a.flags.c_contiguous else np.ascontiguousarray(a) for a in arrays]
            self._between.all_reduce(contiguous, op, given, starting)
            for array, total in zip(arrays, contiguous, strict=True):
                if total is not array:
                    array[...] = total
            return
        if members is None and op in _SUMS and self._large(arrays):
            self._sum_all(arrays, op, weights, starting)
            return
        found = self._reduced(arrays, op, weights, members)
        # after this barrier all have the values, and only a death keeps a member from writing them
        self.barrier(members)
        if found is None:
            return
        if starting is not None:
            starting()
        for array, total in zip(arrays, found, strict=True):
            array[...] = rounded(total, array.dtype)

    def _large(self, arrays: Arrays) -> bool:
        exact = any(a.dtype.kind not in "fc" or a.dtype == np.float16 for a in arrays)
        return not exact and sum([a.nbytes for a in arrays]) > self.segment_bytes

    def _sum_all(
        self, arrays: Arrays, op: Reduction, weights: Weights, starting: Callable[[], None] | None
    ) -> None:
        """Sums and means of large arrays of floats, segment by segment."""
        leads = self._within.rank == _LEADER
        made = [self.empty(a.shape, a.dtype) for a in arrays] if leads else []
        parts, totals = self._within.show(arrays, made, _LEADER)
        first = self._placement.ranks(self._node).start
        given = [1.0] * self.size if weights is None else list(weights)
        counts = normalized(given) if op is Reduction.AVG else [1.0] * self.size
        mine = counts[first : first + self._within.size]

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
        self.barrier()  # after it only a death keeps a member from writing
        if starting is not None:
            starting()
        for array, total in zip(arrays, totals, strict=True):
            array[...] = total
        self._within.barrier()  # until then others read the leader's totals

    def reduce_scatter(
        self, arrays: Arrays, op: Reduction, edges: Sequence[int], weights: Weights = None
    ) -> list[np.ndarray]:
        found = self._reduced(arrays, op, weights, None)
        assert found is not None
        return [np.array(a[edges[self.rank] : edges[self.rank + 1]]) for a in found]


class _Pipeline:
    """A leader's transfers of the segments, in order; does nothing in other members.

    The other leaders enter all of these transfers. So this leader does, too, even after a failure
    on its node; the results are not used then.
    """

    def __init__(
        self, between: BetweenNodes | None, segments: list[np.ndarray], rounding: Rounding | None
    ) -> None:
        self._between = between
        self._rounding = rounding
        self._left = enumerate(segments)
        self._sent = 0

    def __enter__(self) -> None:
        """Do nothing: all leaders have agreed to come."""

    def __exit__(self, *exc: object) -> None:
        """Send the segments that are left."""
        if self._between is not None:
            for number, segment in self._left:
                self._add(self._between, number, segment)

    def send(self, upto: int) -> None:
        """Send all segments before number `upto`."""
        while self._between is not None and self._sent < upto:
            self._sent += 1
            self._add(self._between, *next(self._left))

    def _add(self, between: BetweenNodes, number: int, segment: np.ndarray) -> None:
        between.add(segment, None if self._rounding is None else self._rounding.part(number))


def _answer(between: BetweenNodes, transfer: Transfer) -> list[np.ndarray]:
    if isinstance(transfer, Swap):
        return between.swap(transfer.parts)
    return between.all_gather(transfer.array)


def _segments(flat: Sequence[np.ndarray], nbytes: int) -> Iterator[tuple[int, int, int]]:
    """For each segment: the index of its array, its first element, and the end."""
    for i, array in enumerate(flat):
        step = max(1, nbytes // array.itemsize)
        for lo in range(0, array.size, step):
            yield i, lo, min(lo + step, array.size)
