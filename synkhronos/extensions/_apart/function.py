"""The base of training functions whose members train apart."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._api.data import Data
from synkhronos._checks import shown
from synkhronos._engine.group import Group
from synkhronos._errors import InputTypeError
from synkhronos.extensions._apart.recipe import LocalRecipe
from synkhronos.extensions._step.flat import lay_out, shapes_of
from synkhronos.extensions._step.function import TrainFunction, TrainPlan
from synkhronos.rules._base import RoundRule


class ApartFunction(TrainFunction):
    """A training function whose members have parameters and states of their own.

    Parameters
    ----------
    statistics : sequence of SharedVariable
        What steps change beside parameters and states, such as running means.
    """

    def __init__(self, group: Group, plan: TrainPlan, statistics: Sequence[SharedVariable]) -> None:
        super().__init__(group, plan)
        self._statistics = tuple(statistics)
        self._everything = [v for unit in plan.partition.units for v in unit.everything]
        self._moved = tuple(p for p in plan.params if p in self._everything)
        self._outer: tuple[tuple[SharedVariable, ...], ...] = ()
        named = {*self.settings}
        self.settings += [v for v in self._statistics if v not in named]

    def _add_outer(self, rule: RoundRule) -> None:
        """Make the variables of the rule's vectors beside the centre, which are saved with it."""
        kind = type(rule).__name__
        self._outer = tuple(
            tuple(
                pytensor.shared(
                    np.zeros_like(p.get_value(borrow=True)), name=f"{name} of {p.name} ({kind})"
                )
                for p in self._moved
            )
            for name in rule.outer
        )
        self.state += itertools.chain(*self._outer)

    @property
    def _resident(self) -> bool:
        """False: the variables hold the centre, which lies in the host's memory."""
        return False

    def _shared(self) -> list[SharedVariable]:
        return [*super()._shared(), *self._statistics, *itertools.chain(*self._outer)]

    def _local_recipe(self, first: Mapping[SharedVariable, np.ndarray]) -> LocalRecipe:
        """What members need to train apart; `first` as for `LocalRecipe`."""
        partition, recipe = self._plan.partition, self._function.plan.recipe
        shapes = shapes_of(partition)
        shapes |= {v: v.get_value(borrow=True).shape for v in self._statistics}
        how = recipe.mode, recipe.config
        flat = lay_out(partition, shapes, 1, *how)
        resident = self._plan.rule.recipe(*how) if super()._resident else None
        values = self._moved, self._statistics, self._outer, first
        return LocalRecipe(flat, *values, resident=resident)

    def _check_data(self, given: Sequence[Any], what: str) -> list[tuple[Any, Data]]:
        """The inputs with rows, and their Data; raise if one is anything else."""
        found = []
        plan = self._function.plan
        for variable, value, scattered in zip(plan.inputs, given, plan.scattered, strict=True):
            if not scattered:
                continue
            if not isinstance(value, Data):
                raise InputTypeError(
                    f"{self._function.what}: {what} takes Data for inputs with rows, found "
                    f"{shown(value)} for {variable}: make it with train.build_inputs"
                )
            found.append((variable, value))
        return found
