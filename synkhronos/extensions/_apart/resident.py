"""Members that train apart on GPUs: between two meetings their values stay where JAX computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._backends import jax as jax_backend
from synkhronos._engine.commands.call import Call, Part
from synkhronos._engine.member import Member
from synkhronos._engine.variables import Entry
from synkhronos.extensions._apart.member_values import MemberValues
from synkhronos.extensions._apart.recipe import PARAMETER, STATE, STATISTIC
from synkhronos.extensions._step.resident import Resident


class ResidentOwnValues(MemberValues):
    """The same, with the values of parameters, states and statistics in arrays of JAX.

    Meetings treat this member's own vectors, in the host's memory. Values that a meeting reads are
    copied there first. The next step copies those that it has changed to JAX's memory.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        recipe = self._recipe.resident
        assert recipe is not None
        self._kinds = {
            v: PARAMETER if v in self._recipe.params else STATE for v in self._views
        } | dict.fromkeys(self._recipe.statistics, STATISTIC)
        self._counts = [shared for shared, _ in self._recipe.flat.partition.states]
        self._held |= {v: [None] for v in self._counts}
        entries = [
            Entry(functools.partial(_same, v), number, self._held[v])
            for number, (v, _) in enumerate(recipe.updates)
        ]
        self._resident = Resident(recipe, entries, self.leaves, {})

    def compile(self) -> None:
        """Compile what a step calls."""
        self._resident.compile()

    def computed(
        self, call: Call, member: Member, ready: Callable[[Part], None] | None = None
    ) -> tuple[Part, Sequence[Any]]:
        """Compute the outputs of a call, from values that are all in JAX's memory."""
        self._resident.own()
        copies = []
        for variable in self._recipe.statistics:
            held = self._held[variable]
            if not jax_backend.is_held(held[0]):
                held[0] = jax_backend.held(held[0])
                copies.append(held[0])
        jax_backend.ready(copies)
        return super().computed(call, member, ready)

    def begin(self, states: bool) -> None:
        """Take the centre's values; the optimizer's states only if `states`."""
        super().begin(states)
        self._take((PARAMETER, STATISTIC))

    def begin_states(self) -> None:
        """Take the centre's values of the optimizer's states."""
        super().begin_states()
        self._take((STATE,))

    def _updated(
        self, gradients: Sequence[object], factor: float, leaves: list[np.ndarray]
    ) -> Callable[[], None]:
        flat = self._resident.flat(gradients, factor)
        return lambda: self._resident.apply(flat, leaves)

    def _keep_statistic(self, variable: SharedVariable, value: object) -> None:
        self._held[variable][0] = jax_backend.rounded(value, self._views[variable].dtype)

    def _copied(self) -> Callable[[], None]:
        """Copy JAX's arrays, which steps overwrite; they leave the host's vectors as they are."""
        values = [
            (held, held[0] if isinstance(held[0], np.ndarray) else jax_backend.held(held[0]))
            for held in self._held.values()
        ]

        def put_back() -> None:
            for held, value in values:
                held[0] = value

        return put_back

    def _bring(self, kinds: Sequence[str]) -> None:
        for variable, view in self._views.items():
            value = self._held[variable][0]
            if self._kinds[variable] in kinds and value is not view:
                view[...] = np.asarray(value)
        if STATE in kinds:
            self._states = [np.array(self._held[v][0]) for v in self._counts]

    def _take(self, kinds: Sequence[str]) -> None:
        for variable, view in self._views.items():
            if self._kinds[variable] in kinds:
                self._held[variable][0] = view
        if STATE in kinds:
            for variable, value in zip(self._counts, self._states, strict=True):
                kind: Any = variable.type
                self._held[variable][0] = np.asarray(value, kind.dtype)


def _same(variable: SharedVariable) -> SharedVariable:
    return variable
