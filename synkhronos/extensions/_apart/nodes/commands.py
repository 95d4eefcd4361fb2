"""The commands of nodes that train apart: install, and a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from synkhronos._engine.commands.base import Command
from synkhronos._engine.member import Member
from synkhronos._proofs.reductions import Reduction, accumulator
from synkhronos._transport.communicators.communicator import Communicator
from synkhronos.extensions._apart.free.allocation import allocated, like, new_page
from synkhronos.extensions._apart.free.free_member import Assignment
from synkhronos.extensions._apart.free.pages import Page
from synkhronos.extensions._apart.meeting import Vectors, chunk
from synkhronos.extensions._apart.nodes.centre import NodeCentre
from synkhronos.extensions._apart.nodes.node_training import (
    FreeTraining,
    NodeTraining,
    SynchronousTraining,
)
from synkhronos.extensions._apart.nodes.team import Team
from synkhronos.extensions._apart.recipe import (
    PARAMETER,
    STATE,
    STATISTIC,
    LocalArrays,
    LocalRecipe,
)
from synkhronos.extensions._step.flat import Arrays
from synkhronos.extensions._step.install import Install, scalars
from synkhronos.rules._base import FreeRule, RoundRule


@dataclass(frozen=True)
class InstallNodes(Install):
    """As `InstallFree`, and a centre between the nodes."""

    inside: FreeRule | None  # with its numbers for the members of a node

    def allocate(self, recipe: LocalRecipe, member: Member) -> NodeCentre:
        """Allocate what the members of a node need, and in its leader the centre."""
        comm = member.communicator
        inside: NodeTraining
        if self.inside is None:
            inside = _together(recipe, member)
        else:
            inside = FreeTraining(allocated(self.inside, recipe, member))
        arrays, values = inside.arrays, inside.first
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
        kept = [
            c if kind in (PARAMETER, STATISTIC) else v
            for c, v, kind in zip(centre, values, arrays.kinds, strict=True)
        ]
        views = arrays.views(kept) | arrays.outer_views(kept, outer)
        entries = [(member.variables.of(v), view) for v, view in views.items()]
        return NodeCentre(inside, _vectors(inside, centre, outer, totals, comm), entries)


def _together(recipe: LocalRecipe, member: Member) -> SynchronousTraining:
    """Values of the node, and each member's gradients, which the others read."""
    comm, arrays = member.communicator, LocalArrays(recipe)
    home = comm.home
    gradients, page = arrays.gradients(comm), new_page(comm)
    leads = home.rank == comm.leader
    first, states = (arrays.empty(comm) if leads else [] for _ in range(2))
    for vector in (*gradients, *first, *states):
        vector[...] = 0
    exposed = comm.expose([*page, *gradients, *first, *states])
    n = len(page) + len(gradients)
    lent = exposed[comm.leader][n:]
    first, states = lent[: len(arrays.kinds)], lent[len(arrays.kinds) :]
    kinds = zip(arrays.kinds, first, states, strict=True)
    values = [state if kind is STATE else f for kind, f, state in kinds]
    leaves = scalars(member, Arrays(recipe.flat).leaf_dtypes)
    each = [e[len(page) : n] for e in exposed]
    team = Team(recipe, arrays, each, values, first, leaves, comm)
    return SynchronousTraining(team, arrays, [Page(e[0], e[1], home.size) for e in exposed])


def _total_of(v: np.ndarray, comm: Communicator) -> np.ndarray:
    found = comm.empty(v.shape, accumulator(v.dtype, Reduction.AVG))
    found[...] = 0
    return found


def _vectors(
    inside: NodeTraining,
    centre: Sequence[np.ndarray],
    outer: Sequence[np.ndarray],
    totals: Sequence[np.ndarray],
    comm: Communicator,
) -> list[Vectors]:
    """The node's vectors of parameters and statistics, as `inside` has their places."""
    kinds = inside.arrays.kinds
    parameters = [i for i, kind in enumerate(kinds) if kind is PARAMETER]
    statistics = [i for i, kind in enumerate(kinds) if kind is STATISTIC]
    found: list[Vectors] = []
    for i, places in zip((*parameters, *statistics), inside.places, strict=True):
        lo, hi = chunk(len(found), centre[i].size, comm.home.rank, comm.home.size)
        made = Vectors(kinds[i], places[:1], centre[i].reshape(-1), lo, hi)
        if kinds[i] is PARAMETER:
            made.outer = [o.reshape(-1) for o in outer[parameters.index(i) :: len(parameters)]]
        if totals:
            made.total = totals[i].reshape(-1)
        found.append(made)
    return found


@dataclass(frozen=True)
class NodeRound(Command):
    """A round: each node trains with its share of the batches, then all nodes meet."""

    number: int
    between: RoundRule  # with its numbers for the nodes
    assignment: Assignment
    # the batches of all nodes
    start: int
    stop: int
    begin: bool  # nodes go on from the centre, and members from the first states of the optimizer

    @property
    def pure(self) -> bool:  # type: ignore[override]
        """As the call is: changes in place cannot be undone."""
        return self.assignment.call.pure

    def run(self, member: Member) -> list[float]:
        """Returns this member's rows, and its loss over them."""
        work = replace(self.assignment, begin=self.start, count=self.stop - self.start)
        centre = member.installed.of(NodeCentre, self.number)
        return centre.round(member, self.between, work, self.begin)

    def answer(
        self, member: Member, own: list[float], reports: dict[int, Any]
    ) -> tuple[int, float]:
        """The rows of all members, and their loss over these."""
        given = [own, *reports.values()]
        return int(sum(g[0] for g in given)), sum(g[1] for g in given)
