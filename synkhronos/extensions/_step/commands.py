"""The commands of training: install an update, join variables, make a step in one round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._engine.commands.base import (
    COMPUTE,
    COPY,
    REDUCE,
    SCATTER,
    UPDATE,
    WAIT,
    Command,
    Stopwatch,
)
from synkhronos._engine.commands.call import (
    ExtendedCall,
    Part,
    as_float,
    compute_call,
    contribute_call,
)
from synkhronos._engine.commands.collectives import Collective
from synkhronos._engine.member import Member
from synkhronos._engine.variables import Entry
from synkhronos._errors import InputError
from synkhronos._plan.reductions import Reduction
from synkhronos.extensions._step.flat import Arrays, FlatRecipe
from synkhronos.extensions._step.install import Install, Kept, scalars
from synkhronos.extensions._step.update import FlatUpdate, Inputs


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
        gradients = arrays.gradients(comm)
        sparse = recipe.sparse is not None
        adds_up = comm.nodes > 1 or sparse
        totals = arrays.gradients(comm) if leads and adds_up else []
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
        update.leaves = scalars(member, arrays.leaf_dtypes)
        update.entries = [(member.variables.of(v), view) for v, view in update.views.items()]
        for vector in gradients:
            vector[...] = 0
        return update


@dataclass(frozen=True)
class MakeNodeShared(Collective):
    """Make variables node-shared: one array in all members of a node.

    Attributes
    ----------
    update : int
        The number of the update whose arrays the variables take.
    compared : tuple of int
        Variables whose values may differ between members; unequal values raise InputError.
    """

    update: int
    compared: tuple[int, ...]

    def act(self, member: Member) -> None:
        """The master writes its values; the others compare theirs and take the array."""
        comm = member.communicator
        joined = member.installed.of(Kept, self.update).joined
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
            member.join(entry, views[entry.number])
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


def has_nan(value: Any) -> bool:
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


@dataclass(frozen=True)
class Step(ExtendedCall):
    """A training step in one round: gradients, their reduction, the update of all chunks.

    Attributes
    ----------
    call : Call
        It computes outputs, and gradients as extra outputs.
    update : int
    average : bool
        Whether the gradient over all rows is the mean, weighted by rows, or the sum.
    partials : tuple of (int, bool)
        The call's first extra outputs are partial values of the loss. For each: the leaf that its
        reduced value replaces, and whether it is averaged or summed.
    """

    update: int
    average: bool
    partials: tuple[tuple[int, bool], ...]

    def run(self, member: Member) -> Any:
        """Compute gradients, publish them, update this member's chunks."""
        update = member.installed.of(FlatUpdate, self.update)
        clock = member.clocks[self.update].mine
        clock.start(counted=not self.call.first and member.replicas[self.update].used)
        for entry, view in update.entries:
            if entry.storage[0] is not view:  # after a failed command; the value is the same
                entry.storage[0] = view
        part, outputs = compute_call(self.call, member, lambda: clock.lap(SCATTER))
        n = len(self.call.outputs)
        k = n + len(self.partials)
        rows = part.variant.rows
        clock.lap(COMPUTE)
        flat = update.publish(outputs[k:] if rows else None)
        clock.lap(COPY)
        with member.uninterrupted():
            leaves = self.with_partials(member, update.leaves, part, outputs[n:k])
            given = Inputs(flat, weights_of(part, member.size, self.average), leaves)
            self._update(member, update, given, clock)
        found = contribute_call(self.call, member, part, outputs[:n] if rows else [])
        clock.stop(REDUCE, part.rows if rows else 0)
        return found

    def _update(self, member: Member, update: FlatUpdate, given: Inputs, clock: Stopwatch) -> None:
        comm = member.communicator
        if update.recipe.partition.levels or update.adds_up:  # all must have published
            comm.home.barrier()
            clock.lap(WAIT)
        given = update.add_up(comm, given)
        scalars, states = update.scalars(comm, given)
        clock.lap(REDUCE)
        comm.enter()
        clock.lap(WAIT)
        member.in_place = [entry for entry, _ in update.entries]
        update.apply(given, scalars)
        clock.lap(UPDATE)
        comm.home.barrier()
        if member.rank == member.master:
            for (shared, _), value in zip(update.recipe.partition.states, states, strict=True):
                shared.container.storage[0] = np.asarray(value)
        member.in_place = ()
        clock.lap(WAIT)

    def with_partials(
        self, member: Member, given: list[np.ndarray], part: Part, values: Sequence[Any]
    ) -> list[np.ndarray]:
        """The rule's scalars, and the reduced partial values of the loss."""
        leaves = list(given)
        if self.partials:
            mine = np.zeros(len(self.partials))
            if part.variant.rows:
                weights = [
                    weights_of(part, member.size, avg)[member.rank] for _, avg in self.partials
                ]
                mine[:] = [as_float(v) * s for v, s in zip(values, weights, strict=True)]
            member.communicator.all_reduce([mine], Reduction.SUM)
            for (leaf, _), value in zip(self.partials, mine, strict=True):
                leaves[leaf] = np.array(value, leaves[leaf].dtype)
        return leaves

    def answer(self, member: Member, own: Any, reports: dict[int, Any]) -> list[Any]:
        """The call's answer."""
        return self.call.answer(member, own, reports)


def weights_of(part: Part, size: int, average: bool) -> list[float]:
    """The weight of each member's value in the value over all rows."""
    found = [0.0] * size
    for rank, weight in zip(part.participants, part.fractions, strict=True):
        found[rank] = weight if average else 1.0
    return found
