"""The variables of members that train apart, and the recipe of what each member gets of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._compiling.graph_types import ModeLike
from synkhronos.extensions._apart.centre_optimizer import ElementwiseRecipe
from synkhronos.extensions._apart.recipe import LocalRecipe
from synkhronos.extensions._step.flat import lay_out, shapes_of
from synkhronos.extensions._step.installed_step import InstalledStep
from synkhronos.rules._base import RoundRule


class OwnVariables:
    """Variables of which each member has a value of its own; they hold those of the centre.

    Parameters
    ----------
    planned : Planned
    statistics : sequence of SharedVariable
        What steps change beside parameters and states, such as running means.
    """

    def __init__(self, planned: InstalledStep, statistics: Sequence[SharedVariable]) -> None:
        self._planned = planned
        plan = planned.plan
        self.statistics = tuple(statistics)
        # parameters and states
        self.everything = [v for unit in plan.partition.units for v in unit.everything]
        # the parameters that steps change
        self.moved = tuple(p for p in plan.params if p in self.everything)
        # vectors beside the centre; of each, a variable for every parameter
        self.outer: tuple[tuple[SharedVariable, ...], ...] = ()
        # those of `planned`, and the statistics
        self.settings = list(dict.fromkeys([*planned.settings, *self.statistics]))

    @property
    def shared(self) -> list[SharedVariable]:
        """All that members have in common between two runs or meetings."""
        return [*self.everything, *self.statistics, *itertools.chain(*self.outer)]

    def add_outer(self, rule: RoundRule) -> list[SharedVariable]:
        """Make the variables of the rule's vectors beside the centre, which are saved with it."""
        kind = type(rule).__name__
        self.outer = tuple(
            tuple(
                pytensor.shared(
                    np.zeros_like(p.get_value(borrow=True)), name=f"{name} of {p.name} ({kind})"
                )
                for p in self.moved
            )
            for name in rule.outer
        )
        return list(itertools.chain(*self.outer))

    def recipe(
        self,
        first: Mapping[SharedVariable, np.ndarray] | None = None,
        at_centre: ElementwiseRecipe | None = None,
    ) -> LocalRecipe:
        """All that members need to train apart; the parameters are those of `LocalRecipe`."""
        plan = self._planned.plan
        function = plan.function.recipe
        shapes = shapes_of(plan.partition)
        shapes |= {v: v.get_value(borrow=True).shape for v in self.statistics}
        how: tuple[ModeLike, dict[str, object]] = function.mode, function.config
        flat = lay_out(plan.partition, shapes, 1, *how)
        resident = plan.rule.recipe(*how) if self._planned.resident else None
        values = self.moved, self.statistics, self.outer, first or {}
        return LocalRecipe(flat, *values, at_centre, resident)
