"""The state of a training function with a free rule, in a member."""

from __future__ import annotations

from typing import Any

import numpy as np

from synkhronos._engine.member import Member
from synkhronos.extensions._apart.free.centre import Version
from synkhronos.extensions._apart.free.free_member import Assignment, FreeMember, Shared
from synkhronos.extensions._apart.free.gossiper import Gossiper
from synkhronos.extensions._apart.free.hogwild_member import HogwildMember
from synkhronos.extensions._apart.free.pages import clear_pages
from synkhronos.extensions._apart.free.turn_taker import TurnTaker
from synkhronos.extensions._apart.member_values import MemberValues
from synkhronos.extensions._apart.recipe import PARAMETER, STATISTIC, LocalArrays
from synkhronos.extensions._step.install import MemberState
from synkhronos.rules._base import FreeRule, Way

# How a member takes part in a run, by the way of the rule.
FREE_MEMBERS: dict[Way, type[FreeMember]] = {
    "turns": TurnTaker,
    "gossip": Gossiper,
    "races": HogwildMember,
}


class FreeState(MemberState):
    """The state of a training function with a free rule, in a member."""

    joined = ()  # members have the variables' values in a run only

    def __init__(
        self,
        rule: FreeRule,
        local: MemberValues,
        shared: Shared,
        versions: tuple[Version, Version],
        arrays: LocalArrays,
        values: list[np.ndarray],
        settings: list[np.ndarray],
    ) -> None:
        self.rule = rule
        self.settings = settings  # as `leaves`, for the optimizer at the centre
        self.arrays = arrays
        self._at_centre = None if shared.optimizer is None else shared.optimizer.recipe
        self.lent = values  # the leader's arrays of the first values, and of the optimizer's states
        self.local = local
        self.leaves = local.leaves
        self.shared = shared
        self.versions = versions
        # where the master puts the first values of the variables that members have, too
        self.views = arrays.views(values)
        # `views`, and those of the states of the optimizer at the centre
        self.first = self.views | self._states(versions[0])

    def compile(self) -> None:
        """Compile what steps and exchanges call, which would take time in a turn."""
        self.local.compile()
        if self.shared.optimizer is not None:
            self.shared.optimizer.compile()
        kind = FREE_MEMBERS[self.rule.way]
        for dtype in {v.dtype for v in (*self.shared.w, *self.shared.statistics)}:
            kind.compile_exchange(self.rule, dtype)

    @property
    def torn(self) -> bool:
        """Whether a copy of the centre need not be of one version."""
        return FREE_MEMBERS[self.rule.way].at_centre

    def clear(self) -> None:
        """In the leader: set all words and the rule's vectors to zero, and states as at first."""
        clear_pages(self.shared.pages)
        self.shared.numbers[0] = 0
        for version in self.versions:
            version.counts[...] = 0
            for _, *beside in version.vectors:
                for vector in beside:
                    vector[...] = 0
        self._fill()

    def _fill(self) -> None:
        """Give the optimizer at the centre states that are possible between two parameters, too."""
        if self._at_centre is None:
            return
        for k, variables in enumerate(reversed(self._at_centre.states), 1):
            some = variables[0].get_value(borrow=True).ravel()[:1]
            for vectors in self.versions[0].vectors:
                vectors[-k][...] = some if some.size else 0

    def _states(self, version: Version) -> dict[object, np.ndarray]:
        """The states of the optimizer at the centre: views of a version, 0-d ones as float64."""
        recipe = self._at_centre
        if recipe is None:
            return {}
        kinds = zip(self.lent, self.arrays.kinds, strict=True)
        shapes = [v.shape for v, kind in kinds if kind is PARAMETER]
        columns = list(zip(*version.vectors, strict=True))
        states = [
            vector.reshape(shape)
            for column in columns[len(columns) - len(recipe.states) :]
            for vector, shape in zip(column, shapes, strict=True)
        ]
        found: dict[Any, np.ndarray] = dict(self.arrays.outer_views(self.lent, states))
        return found | {v: version.scalars[k : k + 1] for k, v in enumerate(recipe.scalars)}

    def values(self, version: Version) -> dict[Any, np.ndarray]:
        """The values of parameters and statistics in a copy of the centre."""
        parameters, statistics = iter(version.vectors), iter(version.statistics)
        vectors = []
        for kind, like in zip(self.arrays.kinds, self.lent, strict=True):
            if kind is PARAMETER:
                vectors.append(next(parameters)[0].reshape(like.shape))
            else:
                vectors.append(next(statistics).reshape(like.shape) if kind is STATISTIC else like)
        views = self.arrays.views(vectors)
        states = self._states(version)
        if self._at_centre is not None:
            for v in self._at_centre.scalars:
                states[v] = states[v].astype(v.type.dtype).reshape(())
        return {v: views[v] for v in self.arrays.trained()} | states

    def participant(self, member: Member, assignment: Assignment) -> FreeMember:
        """This member in a run."""
        kind = FREE_MEMBERS[self.rule.way]
        return kind(member, self.local, self.rule, self.shared, assignment)
