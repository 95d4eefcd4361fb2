"""Nodes that train by a free rule, and meet by a round rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from synkhronos._engine.commands.base import Command
from synkhronos._engine.commands.clocks import Clocks
from synkhronos._engine.member import Member
from synkhronos._engine.variables import Entry
from synkhronos._plan.reductions import Reduction, accumulator, rounded
from synkhronos._plan.rows import edges
from synkhronos._transport.communicators.communicator import Communicator
from synkhronos.extensions._apart.free.commands import Free, Installation, like
from synkhronos.extensions._apart.free.pages import LOSS, LOSS_ROWS, ROWS
from synkhronos.extensions._apart.free.participant import Assignment
from synkhronos.extensions._apart.nodes.team import Team
from synkhronos.extensions._apart.own_values import chunk
from synkhronos.extensions._apart.recipe import PARAMETER, STATISTIC, LocalArrays
from synkhronos.extensions._step.commands import unpacked
from synkhronos.rules._base import FreeRule, RoundRule
from synkhronos.rules.nodes import Nodes

_BLOCK = 1 << 14  # elements


@dataclass
class NodeVector:
    """One vector of a node and of the centre between the nodes, flat.

    Attributes
    ----------
    versions : tuple of vector
        The node's centre: the first one is where a round begins.
    centre : vector
    outer : list of vector
    total : vector or None
        On several nodes: the nodes' mean.
    lo, hi : int
        The chunk that this member treats.
    """

    kind: str
    versions: tuple[np.ndarray, np.ndarray]
    centre: np.ndarray
    lo: int
    hi: int
    outer: list[np.ndarray] = field(default_factory=list)
    total: np.ndarray | None = None


class NodeCentre:
    """What a member keeps of a training function whose nodes meet.

    Attributes
    ----------
    entries : list of (Entry, array)
        The variables and their views of the centre.
    leaves : list of array
        The scalars of the optimizer's rule, which the master sets.
    """

    def __init__(
        self,
        free: Free,
        vectors: list[NodeVector],
        entries: list[tuple[Entry, np.ndarray]],
    ) -> None:
        self.entries = entries
        self.leaves = free.leaves
        self._free = free
        self._vectors = vectors
        free.local.bind(entries)

    def round(self, member: Member, order: NodeRound) -> list[float]:
        """Train, then meet the other nodes; returns this member's rows, and its loss over them."""
        free, comm = self._free, member.communicator
        home = comm.home
        if home.rank == comm.leader:
            free.clear()
            if order.begin:
                for v in self._vectors:
                    v.versions[0][...] = v.centre
        home.barrier()
        free.local.begin(states=order.begin)
        home.barrier()  # a step may change what another member begins with
        first = comm.rank - home.rank
        borders = edges(order.stop - order.start, comm.size)
        begin, end = (order.start + borders[first + k] for k in (0, home.size))
        assignment = replace(order.assignment, begin=begin, count=end - begin)
        self._train(member, order.inside, assignment)
        home.barrier()
        self._meet(member, order.between)
        mine = free.shared.pages[home.rank]
        rows, finite = float(mine.words[ROWS]), mine.reals[LOSS_ROWS]
        return [rows, mine.reals[LOSS] * (rows / finite) if finite else rows and math.nan]

    def _train(self, member: Member, rule: FreeRule | None, work: Assignment) -> None:
        """Train without the other nodes."""
        free = self._free

        def stopped() -> bool:
            return member.size > 1 and member.stopping

        if rule is None:
            assert isinstance(free.local, Team)
            page = free.shared.pages[member.communicator.home.rank]
            free.local.train(member, work, page, stopped)
            return
        participant = free.participant(member, rule, work)
        participant.arrive()
        try:
            while participant.step(stopped):
                pass
            participant.rest()
        except BaseException:
            participant.withdraw()
            raise
        finally:
            free.local.hide()
        home = member.communicator.home
        home.barrier()
        if home.rank == member.communicator.leader:
            participant.conclude()

    def _meet(self, member: Member, rule: RoundRule) -> None:
        comm, pages = member.communicator, self._free.shared.pages
        now = self._free.shared.centre.number % 2
        here = float(sum(page.words[ROWS] for page in pages))
        everywhere = np.array([here / comm.home.size])  # each member of the node brings its share
        comm.all_reduce([everywhere], Reduction.SUM)
        by_rows = here / everywhere[0] if everywhere[0] else 1 / comm.nodes
        weights = {STATISTIC: by_rows, PARAMETER: by_rows if rule.by_rows else 1 / comm.nodes}
        self._add_up(comm, now, weights)
        with member.uninterrupted():
            comm.enter()
            member.in_place = [entry for entry, _ in self.entries]
            for v in self._vectors:
                for lo in range(v.lo, v.hi, _BLOCK):
                    self._treat(v, rule, now, slice(lo, min(lo + _BLOCK, v.hi)), comm.nodes)
            comm.home.barrier()
            member.in_place = ()

    def _add_up(self, comm: Communicator, now: int, weights: dict[str, float]) -> None:
        """On several nodes: the means of the nodes' centres."""
        totals = [v.total for v in self._vectors if v.total is not None]

        def fill(i: int, lo: int, hi: int) -> None:
            v = self._vectors[i]
            totals[i][lo:hi] = v.versions[now][lo:hi] * totals[i].dtype.type(weights[v.kind])

        comm.sum_over_nodes(totals, fill)

    @staticmethod
    def _treat(v: NodeVector, rule: RoundRule, now: int, piece: slice, nodes: int) -> None:
        node, centre = v.versions[now][piece], v.centre[piece]
        mean = node if v.total is None else rounded(v.total[piece], centre.dtype)
        if v.kind is PARAMETER:
            rule.meeting([node], centre, [o[piece] for o in v.outer], np.array(mean), nodes)
        else:
            centre[...] = mean
            node[...] = centre
        if now:
            v.versions[0][piece] = node


@dataclass(frozen=True)
class InstallNodes(Command):
    """As `InstallFree`, and a centre between the nodes."""

    recipe: bytes
    rule: Nodes
    number: int

    def run(self, member: Member) -> None:
        """Allocate and map the arrays; the master compiles first."""
        comm = member.communicator
        recipe = unpacked(self.recipe, member)
        made = Installation(self.rule.inside, recipe, member)
        free, arrays = made.free(), made.arrays
        values = free.lent
        lent: list[np.ndarray] = []
        if comm.home.rank == comm.leader:
            lent = [like(v, comm) for v in values] + arrays.like_parameters(comm, values)
            for vector in lent:
                vector[...] = 0
            if comm.nodes > 1:
                lent += [_total_of(v, comm) for v in values]
        shared = comm.expose(lent)[comm.leader]
        n, rest = len(values), len(values) * (comm.nodes > 1)
        centre, outer = shared[:n], shared[n : len(shared) - rest]
        totals = shared[len(shared) - rest :]
        vectors = _vectors(arrays, free, centre, outer, totals, comm)
        kept = [
            c if kind in (PARAMETER, STATISTIC) else v
            for c, v, kind in zip(centre, values, arrays.kinds, strict=True)
        ]
        views = arrays.views(kept) | arrays.outer_views(kept, outer)
        entries = [(member.variables.of(v), view) for v, view in views.items()]
        member.clocks[self.number] = Clocks(member)
        member.updates[self.number] = NodeCentre(free, vectors, entries)


def _total_of(v: np.ndarray, comm: Communicator) -> np.ndarray:
    found = comm.empty(v.shape, accumulator(v.dtype, Reduction.AVG))
    found[...] = 0
    return found


def _vectors(
    arrays: LocalArrays,
    free: Free,
    centre: Sequence[np.ndarray],
    outer: Sequence[np.ndarray],
    totals: Sequence[np.ndarray],
    comm: Communicator,
) -> list[NodeVector]:
    parameters = [i for i, kind in enumerate(arrays.kinds) if kind is PARAMETER]
    statistics = [i for i, kind in enumerate(arrays.kinds) if kind is STATISTIC]
    found: list[NodeVector] = []
    for i in (*parameters, *statistics):
        kind, size = arrays.kinds[i], centre[i].size
        if kind is PARAMETER:
            at = parameters.index(i)
            a, b = (version.vectors[at][0] for version in free.versions)
        else:
            a, b = (version.statistics[statistics.index(i)] for version in free.versions)
        lo, hi = chunk(len(found), size, comm.home.rank, comm.home.size)
        made = NodeVector(kind, (a, b), centre[i].reshape(-1), lo, hi)
        if kind is PARAMETER:
            made.outer = [o.reshape(-1) for o in outer[at :: len(parameters)]]
        if totals:
            made.total = totals[i].reshape(-1)
        found.append(made)
    return found


@dataclass(frozen=True)
class NodeRound(Command):
    """A round: each node trains with its share of the batches, then all nodes meet.

    Attributes
    ----------
    number : int
    inside, between
        The rules, with their numbers for this group.
    assignment : Assignment
    start, stop : int
        The batches of all nodes.
    begin : bool
        Nodes go on from the centre, and members from the first states of the optimizer.
    """

    number: int
    inside: FreeRule | None
    between: RoundRule
    assignment: Assignment
    start: int
    stop: int
    begin: bool

    @property
    def pure(self) -> bool:  # type: ignore[override]
        """As the call is: changes in place cannot be undone."""
        return self.assignment.call.pure

    def run(self, member: Member) -> list[float]:
        """Returns this member's rows, and its loss over them."""
        centre: NodeCentre = member.updates[self.number]
        return centre.round(member, self)

    def answer(
        self, member: Member, own: list[float], reports: dict[int, Any]
    ) -> tuple[int, float]:
        """The rows of all members, and their loss over these."""
        given = [own, *reports.values()]
        return int(sum(g[0] for g in given)), sum(g[1] for g in given)
