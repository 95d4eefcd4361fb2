"""The commands of members that train apart: install, begin at the centre, step, meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._engine.commands.base import COMPUTE, COPY, REDUCE, SCATTER, UPDATE, WAIT, Command
from synkhronos._engine.commands.call import Call, ExtendedCall, check_combinable, contribute_call
from synkhronos._engine.member import Member
from synkhronos._proofs.reductions import Reduction, accumulator
from synkhronos.extensions._apart.meeting import Vectors, chunk
from synkhronos.extensions._apart.member_values import MemberValues
from synkhronos.extensions._apart.recipe import PARAMETER, STATE, LocalArrays, LocalRecipe
from synkhronos.extensions._apart.resident import ResidentOwnValues
from synkhronos.extensions._step.flat import Arrays
from synkhronos.extensions._step.install import Install, scalars
from synkhronos.rules._base import RoundRule


@dataclass(frozen=True)
class InstallLocal(Install):
    """Give each member values of its own, and each node a centre."""

    def allocate(self, recipe: LocalRecipe, member: Member) -> MemberValues:
        """Allocate the member's vectors, and in the leader of a node those of the centre."""
        comm = member.communicator
        arrays = LocalArrays(recipe)
        own = arrays.empty(comm)
        gradients = [] if recipe.resident else arrays.gradients(comm)
        for vector in (*own, *gradients):
            vector[...] = 0
        lent = _lent(arrays, recipe, own, comm) if comm.home.rank == comm.leader else []
        exposed = comm.expose([*own, *lent])
        n = len(own)
        shared = exposed[comm.leader][n:]
        owns = [e[:n] for e in exposed]
        leaves = scalars(member, Arrays(recipe.flat).leaf_dtypes)
        vectors, views = _mapped(arrays, recipe, owns, shared, member)
        kind = ResidentOwnValues if recipe.resident else MemberValues
        local = kind(recipe, arrays, gradients, own, vectors, leaves, member.size)
        local.bind([(member.variables.of(v), view) for v, view in views.items()])
        return local


def _lent(
    arrays: LocalArrays, recipe: LocalRecipe, own: list[np.ndarray], comm: Any
) -> list[np.ndarray]:
    """The leader's memory for its node: centre, outer vectors, first states, means."""
    centre = arrays.empty(comm)
    outer = arrays.like_parameters(comm, own)
    first = []
    if recipe.first:
        first = arrays.empty(comm)
        for vector in first:  # between two parameters, too: they are updated together
            vector[...] = 0
        for variable, view in arrays.views(first).items():
            if variable in recipe.first:
                view[...] = recipe.first[variable]
    means = []
    if comm.nodes > 1:
        means = [comm.empty(v.shape, accumulator(v.dtype, Reduction.AVG)) for v in own]
    for vector in (*centre, *outer, *means):
        vector[...] = 0
    return [*centre, *outer, *first, *means]


def _mapped(
    arrays: LocalArrays,
    recipe: LocalRecipe,
    owns: list[list[np.ndarray]],
    shared: list[np.ndarray],
    member: Member,
) -> tuple[list[Vectors], dict[Any, np.ndarray]]:
    """The vectors of all members and of the centre, and the views of the variables."""
    n = len(arrays.kinds)
    parameters = [i for i, kind in enumerate(arrays.kinds) if kind is PARAMETER]
    k = n + len(parameters) * len(recipe.outer)
    centre, outer, rest = shared[:n], shared[n:k], shared[k:]
    first = [rest.pop(0) for _ in range(n)] if recipe.first else []
    home = member.communicator.home
    vectors = []
    for i, kind in enumerate(arrays.kinds):
        lo, hi = chunk(i, centre[i].size, home.rank, home.size)
        found = Vectors(kind, [own[i].reshape(-1) for own in owns], centre[i].reshape(-1), lo, hi)
        if kind is PARAMETER:
            at = parameters.index(i)
            found.outer = [o.reshape(-1) for o in outer[at :: len(parameters)]]
        if kind is STATE and first:
            found.first = first[i].reshape(-1)
        if rest:
            found.total = rest[i].reshape(-1)
        vectors.append(found)
    return vectors, arrays.views(centre) | arrays.outer_views(centre, outer)


@dataclass(frozen=True)
class Begin(Command):
    """Give each member the centre's values."""

    pure = True
    number: int
    states: bool  # whether the members also take the optimizer's states, or keep their own

    def run(self, member: Member) -> None:
        """Copy them."""
        member.installed.of(MemberValues, self.number).begin(self.states)


@dataclass(frozen=True)
class LocalStep(ExtendedCall):
    """A step of each member on its own values.

    The attributes are those of `Step`.
    """

    update: int
    average: bool
    partials: tuple[tuple[int, bool], ...]

    def run(self, member: Member) -> object:
        """Compute with own values; once all members have, change them."""
        local = member.installed.of(MemberValues, self.update)
        clock = member.measured.clocks[self.update].mine
        clock.start(counted=not self.call.first and member.replicas[self.update].used)
        part, outputs = local.computed(self.call, member, lambda _: clock.lap(SCATTER))
        clock.lap(COMPUTE)
        n = len(self.call.outputs)
        make = local.step(part, outputs[n:], self.partials, self.average)
        clock.lap(COPY)
        # before the update: an output that cannot be combined must change no value
        check_combinable(self.call, member, part, outputs)
        found = contribute_call(self.call, member, part, outputs[:n] if part.variant.rows else [])
        clock.lap(REDUCE)
        with member.uninterrupted():
            member.communicator.enter()
            clock.lap(WAIT)
            make()
        clock.stop(UPDATE, part.rows if part.variant.rows else 0)
        return found

    def answer(self, member: Member, own: Any, reports: dict[int, Any]) -> list[object]:
        """The call's answer."""
        return self.call.answer(member, own, reports)


@dataclass(frozen=True)
class LocalSteps(Command):
    """Several steps of each member in one command; all are made, or none."""

    calls: tuple[Call, ...]
    update: int
    average: bool
    partials: tuple[tuple[int, bool], ...]

    @property
    def pure(self) -> bool:  # type: ignore[override]
        """As the calls are."""
        return all([call.pure for call in self.calls])

    def run(self, member: Member) -> list[object]:
        """Make the steps, then wait for the others, or in each step to compare outputs' shapes."""
        local = member.installed.of(MemberValues, self.update)
        # one copy, in place of a wait for the others after each step
        restore = local.saved()
        try:
            found = [self._step(call, member, local) for call in self.calls]
            with member.uninterrupted():
                member.communicator.enter()
                # all have made their steps: from here on they stay
                restore = _nothing
        except BaseException:
            restore()
            raise
        return found

    def _step(self, call: Call, member: Member, local: MemberValues) -> object:
        part, outputs = local.computed(call, member)
        n = len(call.outputs)
        check_combinable(call, member, part, outputs)
        local.step(part, outputs[n:], self.partials, self.average)()
        return contribute_call(call, member, part, outputs[:n] if part.variant.rows else [])

    def answer(self, member: Member, own: Any, reports: dict[int, Any]) -> list[list[Any]]:
        """The answer of each call."""
        return [
            call.answer(member, own[i], {rank: report[i] for rank, report in reports.items()})
            for i, call in enumerate(self.calls)
        ]


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Meet(Command):
    """A meeting of all members."""

    pure = True
    number: int
    rule: RoundRule | None  # None: nothing happens but what `publish` says
    meeting: int  # the number of this meeting
    publish: bool  # whether variables of the optimizer's states get the mean of all members' states

    def run(self, member: Member) -> None:
        """Meet, and change the centre in place."""
        with member.uninterrupted():
            local = member.installed.of(MemberValues, self.number)
            local.meet(member, self.rule, self.meeting, self.publish)
