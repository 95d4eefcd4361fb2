"""A member's own parameters and states between two meetings, and the centre of its node."""

# These rules hold here:
#
# * Between two meetings a member writes only its own vectors, and reads no other's. In a meeting
#   each member writes its chunk of the vectors of all.
# * A step is prepared, which may fail, and then made, which counts it. So `steps` and `meetings`
#   say after any exception what has been done.
# * The variables show own values only inside of `computed`.
# * The order of a meeting: what can be copied or added up, `enter`, the writing, a barrier of all
#   nodes. Only then do members go on from the new values.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._engine.commands.call import Call, Part, as_float, compute_call
from synkhronos._engine.member import Member
from synkhronos._engine.variables import Entry
from synkhronos._proofs.reductions import rounded
from synkhronos._transport.communicators.communicator import Communicator
from synkhronos._transport.communicators.solo import Solo
from synkhronos.extensions._apart.meeting import Meeting, Vectors
from synkhronos.extensions._apart.recipe import KINDS, STATE, LocalArrays, LocalRecipe
from synkhronos.extensions._step.install import MemberState
from synkhronos.extensions._step.update import FlatUpdate, Inputs
from synkhronos.rules._base import RoundRule


class MemberValues(MemberState):
    """The state of a training function whose members train apart, in a member.

    The values of its parameters, states and statistics are its own vectors, in the host's memory.
    """

    # parameters, states, statistics and the rule's outer variables, and their views of the node's
    # centre
    entries: list[tuple[Entry, np.ndarray]]

    def __init__(
        self,
        recipe: LocalRecipe,
        arrays: LocalArrays,
        gradients: list[np.ndarray],
        own: list[np.ndarray],
        vectors: list[Vectors],
        leaves: list[np.ndarray],
        size: int,
    ) -> None:
        self.leaves = leaves
        self.steps = 0  # of the group so far; counted when all have come to change their values
        self.meetings = 0  # so far; counted when all members have written the centre
        self._recipe = recipe
        self._vectors = vectors
        self._update = FlatUpdate(recipe.flat, 0, [gradients], arrays.of_update(own), [])
        self._views = arrays.views(own)
        # the value of each variable, in a list whose element may be replaced
        self._held: dict[object, list[object]] = {v: [view] for v, view in self._views.items()}
        self._own = own
        self._alone = Solo()
        partition = recipe.flat.partition
        self._places = [
            partition.leaves.index(shared) if shared in partition.leaves else None
            for shared, _ in partition.states
        ]
        self._states: list[np.ndarray] = []  # 0-d ones of the whole rule, such as a count of steps
        self._rows = [0.0] * size  # that each member has used since the last meeting
        self._shown: list[tuple[list[object], np.ndarray, list[object]]] = []

    @property
    def joined(self) -> Sequence[tuple[Entry, np.ndarray]]:
        """The same as `entries`."""
        return self.entries

    def compile(self) -> None:
        """Compile what a step calls."""
        self._update.compile()

    def bind(self, entries: list[tuple[Entry, np.ndarray]]) -> None:
        """Know the variables as this member does."""
        self.entries = entries
        self._shown = [
            (entry.storage, view, self._held[variable])
            for entry, view in entries
            if (variable := entry.variable) in self._held
        ]

    def computed(
        self, call: Call, member: Member, ready: Callable[[Part], None] | None = None
    ) -> tuple[Part, Sequence[Any]]:
        """Compute the outputs of a call from this member's own values; see `compute_call`."""
        try:
            for storage, _, own in self._shown:
                # only while it computes: between two steps everybody sees the centre
                storage[0] = own[0]
            return compute_call(call, member, ready)
        finally:
            self.hide()

    def hide(self) -> None:
        """See to it that the variables hold the centre's values, not this member's own.

        Ctrl-C may interrupt this; a second call completes it.
        """
        for storage, centre, own in self._shown:
            if storage[0] is own[0]:
                storage[0] = centre

    def begin(self, states: bool) -> None:
        """Take the centre's values; the optimizer's states only if `states`."""
        for v, own in zip(self._vectors, self._own, strict=True):
            if v.kind is not STATE:
                own.reshape(-1)[...] = v.centre
        if states:
            self.begin_states()
        self._rows = [0.0] * len(self._rows)

    def begin_states(self) -> None:
        """Take the centre's values of the optimizer's states."""
        for v, own in zip(self._vectors, self._own, strict=True):
            if v.kind is STATE:
                own.reshape(-1)[...] = v.centre
        self._states = [
            np.zeros(()) if at is None else np.array(self.leaves[at]) for at in self._places
        ]

    def step(
        self,
        part: Part,
        outputs: Sequence[np.ndarray],
        partials: Sequence[tuple[int, bool]],
        average: bool,
    ) -> Callable[[], None]:
        """Prepare a step from gradients; returns the function that makes it.

        `outputs` are the partial values of the loss, the gradients, and the statistics' new values.
        """
        weights = part.weights or (1.0,) * len(self._rows)
        if not part.variant.rows:
            return lambda: self._count(weights)
        n, m = len(partials), len(self._recipe.statistics)
        gradients = outputs[n : len(outputs) - m]
        statistics = outputs[len(outputs) - m :]
        # a sum over a part of the rows stands for the sum over all
        factor = sum(weights) / part.rows if part.rows else 1.0
        leaves = self._leaves_of_step()
        for (leaf, averaged), value in zip(partials, outputs, strict=False):
            whole = as_float(value) * (1.0 if averaged else factor)
            leaves[leaf] = np.array(whole, leaves[leaf].dtype)
        # what can fail is done here, before all have come
        update = self._updated(gradients, 1.0 if average else factor, leaves)

        def make() -> None:
            self._count(weights)
            update()
            for variable, value in zip(self._recipe.statistics, statistics, strict=True):
                self._keep_statistic(variable, value)

        return make

    def _updated(
        self, gradients: Sequence[Any], factor: float, leaves: list[np.ndarray]
    ) -> Callable[[], None]:
        """Prepare the update from gradients times a factor; returns the function that makes it."""
        if factor != 1.0:
            gradients = [np.asarray(g) * np.asarray(factor, g.dtype) for g in gradients]
        given = Inputs(self._update.publish(gradients), [1.0], leaves)
        scalars, states = self._update.scalars(self._alone, given)

        def update() -> None:
            self._update.apply(given, scalars)
            self._states = [np.asarray(state) for state in states]

        return update

    def _keep_statistic(self, variable: SharedVariable, value: object) -> None:
        own = self._views[variable]
        own[...] = rounded(np.asarray(value), own.dtype)

    def _leaves_of_step(self) -> list[np.ndarray]:
        """The master's scalars, and this member's own where the rule changes them."""
        found = list(self.leaves)
        for at, state in zip(self._places, self._states, strict=True):
            if at is not None:
                found[at] = state
        return found

    def _count(self, weights: Sequence[float]) -> None:
        self.steps += 1
        self._rows = [a + b for a, b in zip(self._rows, weights, strict=True)]

    def saved(self) -> Callable[[], None]:
        """Copy this member's own values; returns the function that restores them."""
        put_back = self._copied()
        states, rows, steps = self._states, self._rows, self.steps

        def restore() -> None:
            put_back()
            self._states, self._rows, self.steps = states, rows, steps

        return restore

    def _copied(self) -> Callable[[], None]:
        """Copy what steps change in place; returns the function that puts it back."""
        values = [np.array(own) for own in self._own]

        def put_back() -> None:
            for own, value in zip(self._own, values, strict=True):
                own[...] = value

        return put_back

    def meet(self, member: Member, rule: RoundRule | None, number: int, publish: bool) -> None:
        """Meet all other members.

        `publish`: the variables of the optimizer's states get the mean of the members' states,
        even if each member keeps its own. Without a rule, nothing else happens.
        """
        comm = member.communicator
        first = comm.rank - comm.home.rank
        here = slice(first, first + comm.home.size)
        meeting = Meeting(rule, self._rows, here, publish, comm)
        treated = [v for v in self._vectors if meeting.treats(v)]
        self._bring([kind for kind in KINDS if meeting.reads(kind)])
        # copied before anybody writes
        swapped = self._swapped(comm, rule, number) if meeting.swaps else None
        meeting.add_up([v for v in treated if meeting.averages(v)])
        states = meeting.states(self._states, self._first_states())
        # until here a failure changes nothing; from here on the centre is torn by one
        comm.enter()
        member.changes.in_place = [entry for entry, _ in self.entries]
        meeting.change(treated)
        comm.barrier()  # of all nodes: if one fails here, the centre is torn everywhere
        if states is not None:
            self._keep_states(member, states, meeting.spreads)
        for own, value in zip(self._swapped_values(), swapped or (), strict=False):
            own[...] = value
        self._take([kind for kind in KINDS if meeting.changes(kind)])
        self.meetings += 1
        member.changes.in_place = ()
        self._rows = [0.0] * len(self._rows)

    def _bring(self, kinds: Sequence[str]) -> None:
        """Bring the values of these kinds into this member's own vectors; they are there."""

    def _take(self, kinds: Sequence[str]) -> None:
        """Go on from this member's own vectors of these kinds, which a meeting has changed."""

    def _first_states(self) -> list[np.ndarray]:
        return [
            self._recipe.first[shared]
            for shared, _ in self._recipe.flat.partition.states
            if shared in self._recipe.first
        ]

    def _keep_states(self, member: Member, values: list[np.ndarray], own: bool) -> None:
        for i, (shared, _) in enumerate(self._recipe.flat.partition.states):
            value = rounded(np.asarray(values[i]), np.dtype(shared.type.dtype))
            if own:
                self._states[i] = np.array(value)
            if member.rank == member.master:
                shared.container.storage[0] = np.array(value)

    def _swapped_values(self) -> list[np.ndarray]:
        """The vectors that members swap: parameters and states."""
        count = len(self._own) - len(self._recipe.statistics)
        return [*self._own[:count], *self._states]

    def _swapped(
        self, comm: Communicator, rule: RoundRule | None, number: int
    ) -> list[np.ndarray] | None:
        """The values of the member that this one swaps with; None if it keeps its own."""
        assert rule is not None
        found = None
        # pair by pair, in one order: all members count the same exchanges
        for rank, partner in enumerate(rule.partners(number, comm.size)):
            if rank != partner:
                given = self._swapped_values() if comm.rank == partner else None
                pair = (min(rank, partner), max(rank, partner))
                got = comm.broadcast(given, partner, pair)
                found = got if comm.rank == rank else found
        return found
