"""A member's own parameters and states between two meetings, and the centre of its node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._backends.reduction_loops import reduce_block, reduce_into
from synkhronos._engine.commands.call import Call, Part, as_float, compute_call
from synkhronos._engine.member import Member
from synkhronos._engine.variables import Entry
from synkhronos._plan.reductions import Reduction, accumulator, normalized, rounded
from synkhronos._plan.rows import edges
from synkhronos._transport.communicators.communicator import Communicator
from synkhronos._transport.communicators.solo import Solo
from synkhronos.extensions._apart.recipe import (
    KINDS,
    PARAMETER,
    STATE,
    LocalArrays,
    LocalRecipe,
)
from synkhronos.extensions._step.layout import ALIGN
from synkhronos.extensions._step.update import FlatUpdate, Inputs
from synkhronos.rules._base import RoundRule
from synkhronos.rules.swap import Swap

_BLOCK = 1 << 14  # elements; 64 KB of float32 of some members stay in a core's cache
_ALONE_BELOW = 1 << 12  # elements below which one member treats a vector


@dataclass
class Vectors:
    """One vector of all members of a node, flat.

    Attributes
    ----------
    own : list of vector
        Each member's.
    centre : vector
    outer : list of vector
    first : vector or None
        The values that a meeting sets states back to.
    total : vector or None
        On several nodes: the mean over all members.
    lo, hi : int
        The chunk that this member treats in a meeting.
    """

    kind: str
    own: list[np.ndarray]
    centre: np.ndarray
    lo: int
    hi: int
    outer: list[np.ndarray] = field(default_factory=list)
    first: np.ndarray | None = None
    total: np.ndarray | None = None


class Local:
    """What a member keeps of a training function whose members train apart.

    The values of its parameters, states and statistics are its own vectors, in the host's memory.

    Attributes
    ----------
    entries : list of (Entry, array)
        Parameters, states, statistics and the rule's outer variables, and their views of the
        node's centre.
    leaves : list of array
        The scalars of the optimizer's rule, which the master sets.
    steps : int
        Steps of the group so far. It counts up when all members have come to change their values.
    meetings : int
        Meetings so far. It counts up when all members have written the centre.
    """

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
        self.steps = self.meetings = 0
        self._recipe = recipe
        self._vectors = vectors
        self._update = FlatUpdate(recipe.flat, 0, [gradients], arrays.of_update(own), [])
        self._views = arrays.views(own)
        # the value of each variable, in a list whose element may be replaced
        self._held: dict[Any, list[Any]] = {v: [view] for v, view in self._views.items()}
        self._own = own
        self._alone = Solo()
        partition = recipe.flat.partition
        self._places = [
            partition.leaves.index(shared) if shared in partition.leaves else None
            for shared, _ in partition.states
        ]
        self._states: list[np.ndarray] = []  # 0-d ones of the whole rule, such as a count of steps
        self._rows = [0.0] * size  # that each member has used since the last meeting
        self._shown: list[tuple[list[Any], np.ndarray, list[Any]]] = []

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
        self, call: Call, member: Member, ready: Callable[[], None] | None = None
    ) -> tuple[Part, Sequence[Any]]:
        """Compute the outputs of a call from this member's own values; see `compute_call`."""
        try:
            for storage, _, own in self._shown:
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

    def _keep_statistic(self, variable: SharedVariable, value: Any) -> None:
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
        rows = normalized(self._rows if any(self._rows) else [1.0] * comm.size)
        meeting = _Meeting(rule, rows, publish, comm)
        treated = [v for v in self._vectors if meeting.treats(v)]
        self._bring([kind for kind in KINDS if meeting.reads(kind)])
        swapped = self._swapped(comm, rule, number)
        meeting.add_up([v for v in treated if meeting.averages(v)])
        states = meeting.states(self._states, self._first_states())
        comm.enter()
        member.in_place = [entry for entry, _ in self.entries]
        for vectors in treated:
            for lo in range(vectors.lo, vectors.hi, _BLOCK):
                meeting.treat(vectors, lo, min(lo + _BLOCK, vectors.hi))
        comm.barrier()  # of all nodes: if one fails here, the centre is torn everywhere
        if states is not None:
            self._keep_states(member, states, meeting.spreads)
        for own, value in zip(self._swapped_values(), swapped or (), strict=False):
            own[...] = value
        self._take([kind for kind in KINDS if meeting.changes(kind)])
        self.meetings += 1
        member.in_place = ()
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
        """What members swap: parameters and states."""
        count = len(self._own) - len(self._recipe.statistics)
        return [*self._own[:count], *self._states]

    def _swapped(
        self, comm: Communicator, rule: RoundRule | None, number: int
    ) -> list[np.ndarray] | None:
        """The values of the member that this one swaps with; None if it keeps its own."""
        if not isinstance(rule, Swap):
            return None
        found = None
        for rank, partner in enumerate(rule.partners(number, comm.size)):
            if rank != partner:
                given = self._swapped_values() if comm.rank == partner else None
                pair = (min(rank, partner), max(rank, partner))
                got = comm.broadcast(given, partner, pair)
                found = got if comm.rank == rank else found
        return found


class _Meeting:
    """How a meeting treats the vectors.

    Attributes
    ----------
    spreads : bool
        Whether members go on from the states that the meeting gives the variables.
    """

    def __init__(
        self, rule: RoundRule | None, rows: list[float], publish: bool, comm: Communicator
    ) -> None:
        self._rule = rule
        self._policy = "keep" if rule is None else rule.policy
        self._swaps = isinstance(rule, Swap)
        self.spreads = self._policy != "keep"
        self._rows = rows
        by_rows = rule is None or rule.by_rows
        self._weights = rows if by_rows else [1.0 / comm.size] * comm.size
        self._publish = publish
        self._comm = comm
        first = comm.rank - comm.home.rank
        self._here = slice(first, first + comm.home.size)
        self._scratch: dict[np.dtype, np.ndarray] = {}

    def treats(self, v: Vectors) -> bool:
        """Whether the meeting changes such vectors."""
        if v.kind is STATE:
            return self._publish or self.spreads
        return self._rule is not None

    def reads(self, kind: str) -> bool:
        """Whether the meeting reads the members' vectors of a kind."""
        if kind is STATE:
            averaged = self._policy == "average" or (self._publish and self._policy == "keep")
            return averaged or self._swaps
        return self._rule is not None

    def changes(self, kind: str) -> bool:
        """Whether members go on from other values of a kind."""
        return self.spreads or self._swaps if kind is STATE else self._rule is not None

    def averages(self, v: Vectors) -> bool:
        """Whether it needs the members' mean of such vectors."""
        return v.kind is not STATE or self._policy != "reset"

    def _weights_of(self, v: Vectors) -> list[float]:
        return self._weights if v.kind is PARAMETER else self._rows

    def add_up(self, averaged: list[Vectors]) -> None:
        """On several nodes: the means of these vectors."""
        if self._comm.nodes == 1:
            return

        def fill(i: int, lo: int, hi: int) -> None:
            weights = self._weights_of(averaged[i])[self._here]
            total = averaged[i].total
            assert total is not None
            if hi > lo and any(weights):
                parts = [own[lo:hi] for own in averaged[i].own]
                reduce_into(total[lo:hi], parts, Reduction.AVG, weights)
                total[lo:hi] *= sum(weights)
            else:
                total[lo:hi] = 0

        totals = [v.total for v in averaged if v.total is not None]
        self._comm.sum_over_nodes(totals, fill)

    def states(self, own: list[np.ndarray], first: list[np.ndarray]) -> list[np.ndarray] | None:
        """The 0-d states after the meeting; None: each member keeps its own."""
        if not own or not (self.spreads or self._publish):
            return None
        if self._policy == "reset":
            return first
        mine = np.array([float(state) for state in own])
        self._comm.all_reduce([mine], Reduction.AVG, self._rows)
        return list(mine)

    def treat(self, v: Vectors, lo: int, hi: int) -> None:
        """Change elements lo to hi in all members of the node, and in the centre."""
        own = [vector[lo:hi] for vector in v.own]
        centre = v.centre[lo:hi]
        if v.kind is PARAMETER:
            assert self._rule is not None
            outer = [vector[lo:hi] for vector in v.outer]
            self._rule.meeting(own, centre, outer, self._mean(v, own, lo, hi), self._comm.size)
            return
        centre[...] = self._mean(v, own, lo, hi) if v.first is None else v.first[lo:hi]
        for vector in own if self.spreads or v.kind is not STATE else ():
            vector[...] = centre

    def _mean(self, v: Vectors, own: list[np.ndarray], lo: int, hi: int) -> np.ndarray:
        if v.total is not None:
            return rounded(v.total[lo:hi], v.centre.dtype)
        dtype = v.centre.dtype
        if accumulator(dtype, Reduction.AVG) != dtype:
            return reduce_block(own, Reduction.AVG, self._weights_of(v), None)
        buffer = self._scratch.get(dtype)
        if buffer is None:
            buffer = self._scratch[dtype] = np.empty(_BLOCK, dtype)
        return reduce_block(own, Reduction.AVG, self._weights_of(v), buffer[: hi - lo])


def chunk(number: int, size: int, rank: int, members: int) -> tuple[int, int]:
    """The elements of a vector that a member of the node treats; a short one goes to one member.

    >>> [chunk(0, 10_000, rank, 2) for rank in (0, 1)], chunk(1, 100, 0, 2), chunk(1, 100, 1, 2)
    ([(0, 4992), (4992, 10000)], (0, 0), (0, 100))
    """
    if size < _ALONE_BELOW:
        return (0, size) if rank == number % members else (0, 0)
    borders = edges(size // ALIGN, members)
    end = size if rank == members - 1 else borders[rank + 1] * ALIGN
    return borders[rank] * ALIGN, end
