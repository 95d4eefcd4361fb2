"""Commands around the steps of training: install an update, join variables, collect residuals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synkhronos._engine.commands.base import Command
from synkhronos._engine.commands.collectives import Collective
from synkhronos._engine.member import Member
from synkhronos._engine.variables import Entry
from synkhronos._errors import InputError
from synkhronos.extensions._step.flat import Arrays, FlatRecipe
from synkhronos.extensions._step.install import Install, MemberState, scalars
from synkhronos.extensions._step.overlap import Overlap
from synkhronos.extensions._step.update import FlatUpdate


@dataclass(frozen=True)
class InstallUpdate(Install):
    """Give each node one array of each parameter and state, and each member its gradients."""

    def allocate(self, recipe: FlatRecipe, member: Member) -> FlatUpdate:
        """Allocate the vectors; the leader of a node has those that its members share."""
        comm = member.communicator
        home = comm.home
        leads = home.rank == comm.leader
        recipe = recipe.for_node(home.size)
        arrays = Arrays(recipe)
        arena = comm.mappable() if recipe.order else None
        empty = comm.empty if arena is None else arena.empty
        gradients = arrays.gradients(empty)
        sparse = recipe.sparse is not None
        adds_up = comm.nodes > 1 or sparse
        totals = arrays.gradients(empty) if leads and adds_up else []
        accumulated = [arrays.accumulated(comm)] if leads and sparse else []
        values = arrays.values(comm) if leads else []
        exposed = comm.expose([*gradients, *totals, *accumulated, *values])
        n = len(gradients)
        k = n + n * adds_up
        shared = exposed[comm.leader]
        published = [e[:n] for e in exposed]
        sums = shared[k] if sparse else None
        given = published, shared[k + sparse :], shared[n:k], sums, comm.node
        update = FlatUpdate(recipe, home.rank, *given)
        if arena is not None:
            update.overlap = Overlap(recipe, member, arena, published, shared[n:k])
        update.leaves = scalars(member, arrays.leaf_dtypes)
        update.entries = [(member.variables.of(v), view) for v, view in update.views.items()]
        for vector in gradients:
            vector[...] = 0
        return update


@dataclass(frozen=True)
class LinkNodes(Command):
    """Connect the summing processes of all nodes, which add up while members compute.

    It is run before the first step, and after a step that has failed.
    """

    number: int

    def run(self, member: Member) -> None:
        """End the process of before, and start another one."""
        overlap = member.installed.of(FlatUpdate, self.number).overlap
        assert overlap is not None
        overlap.link(member)


@dataclass(frozen=True)
class MakeNodeShared(Collective):
    """Make variables node-shared: one array in all members of a node."""

    update: int  # the number of the update whose arrays the variables take
    # variables whose values may differ between members; unequal values raise InputError
    compared: tuple[int, ...]

    def act(self, member: Member) -> None:
        """The master writes its values; the others compare theirs and take the array."""
        comm = member.communicator
        joined = member.installed.of(MemberState, self.update).joined
        views = {entry.number: view for entry, view in joined if view is not None}
        mine = member.rank == member.master
        compared = [member.variables[n] for n in self.compared]
        for entry in compared:
            if not mine and entry.storage[0] is views[entry.number]:
                # for good: the array will be written, whether the values agree or not
                entry.storage[0] = np.array(entry.storage[0])
        entries = self.entries(member)
        values = None
        if comm.nodes > 1:
            values = comm.broadcast([member.array(e) for e in entries] if mine else None, 0)
        elif mine:
            values = [entry.storage[0] for entry in entries]
        comm.barrier()
        if comm.home.rank == comm.leader and values is not None:
            for entry, value in zip(entries, values, strict=True):
                views[entry.number][...] = value
        comm.barrier()
        equal = [
            np.array_equal(e.storage[0], views[e.number], equal_nan=has_nan(e.storage[0]))
            for e in compared
        ]
        check_votes(member, compared, equal)
        for entry in self.entries(member):
            member.changes.join(entry, views[entry.number])
        self.mark(member, differs=False)


def check_votes(member: Member, compared: list[Entry], equal: list[bool]) -> None:
    """Raise unless all members have found their values equal to the master's."""
    votes = member.communicator.all_gather([np.array(equal, bool)], "stack")[0]
    unequal = {
        e.label: np.flatnonzero(~votes[:, i]).tolist()
        for i, e in enumerate(compared)
        if not votes[:, i].all()
    }
    if unequal:
        raise InputError(
            f"a step needs one value of each parameter and state. Ranks with other values than "
            f"the master's: {unequal}. synk.broadcast gives all members the master's values, "
            "synk.all_reduce their mean"
        )


def has_nan(value: object) -> bool:
    """Whether a value may hold NaN."""
    return np.asarray(value).dtype.kind in "fc"


@dataclass(frozen=True)
class CollectResiduals(Command):
    """Give each node the residuals of all, which a checkpoint holds."""

    number: int

    def run(self, member: Member) -> None:
        """Leaders exchange them."""
        comm = member.communicator
        sparse = member.installed.of(FlatUpdate, self.number).sparse
        if sparse is not None and comm.home.rank == comm.leader:
            sparse.collect(comm)
        comm.barrier()
