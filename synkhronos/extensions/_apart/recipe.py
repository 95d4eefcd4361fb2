"""The recipe of members that train apart, and the vectors that hold their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._transport.communicators.communicator import Communicator
from synkhronos.extensions._apart.centre_optimizer import ElementwiseRecipe
from synkhronos.extensions._step.flat import Arrays, FlatRecipe
from synkhronos.extensions._step.resident_recipe import ResidentRecipe

KINDS = PARAMETER, STATE, STATISTIC = "parameter", "state", "statistic"


@dataclass(frozen=True)
class LocalRecipe:
    """Everything that a member needs to train apart."""

    flat: FlatRecipe  # the update of one member alone
    params: tuple[SharedVariable, ...]
    # what steps change beside parameters and states, such as running means
    statistics: tuple[SharedVariable, ...]
    # the rule's vectors beside the centre; of each, a variable for every parameter
    outer: tuple[tuple[SharedVariable, ...], ...]
    # the states' first values, if meetings set them back to these
    first: Mapping[SharedVariable, np.ndarray]
    # the optimizer at the centre; its states are `outer`
    at_centre: ElementwiseRecipe | None = None
    # the same update in the memory in which JAX computes, if values stay there between meetings
    resident: ResidentRecipe | None = None

    def shape(self, variable: SharedVariable) -> tuple[int, ...]:
        """The shape of a parameter, state or statistic."""
        return self.flat.shapes[variable]


class LocalArrays:
    """The vectors of a recipe: flat ones of many variables, then those of one variable each."""

    def __init__(self, recipe: LocalRecipe) -> None:
        self._recipe = recipe
        self._flat = Arrays(recipe.flat)
        units = recipe.flat.partition.units
        loose = [v for unit in units for v in unit.loose]
        # what each vector holds: PARAMETER, STATE or STATISTIC
        self.kinds = [
            PARAMETER if role == 0 else STATE
            for roles in self._flat.roles
            for role in range(len(roles))
        ]
        self.kinds += [PARAMETER if v in recipe.params else STATE for v in loose]
        self.kinds += [STATISTIC] * len(recipe.statistics)

    def trained(self) -> list[SharedVariable]:
        """The parameters and statistics."""
        return [*self._recipe.params, *self._recipe.statistics]

    def empty(self, comm: Communicator) -> list[np.ndarray]:
        """Allocate one array for each vector."""
        statistics = [comm.empty(self._recipe.shape(v), _dtype(v)) for v in self._recipe.statistics]
        return [*self._flat.values(comm), *statistics]

    def gradients(self, comm: Communicator) -> list[np.ndarray]:
        """Allocate the gradients of this member."""
        return self._flat.gradients(comm.empty)

    def of_update(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Those of the values that the optimizer's update writes."""
        return list(values[: len(values) - len(self._recipe.statistics)])

    def like_parameters(self, comm: Communicator, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Allocate, for each of the rule's outer vectors, arrays like those of the parameters."""
        alike = [v for v, kind in zip(values, self.kinds, strict=True) if kind is PARAMETER]
        return [comm.empty(v.shape, v.dtype) for _ in self._recipe.outer for v in alike]

    def views(self, values: Sequence[np.ndarray]) -> dict[SharedVariable, np.ndarray]:
        """The view of each parameter, state and statistic in such values."""
        _, found = self._flat.sorted(self.of_update(values))
        statistics = values[len(values) - len(self._recipe.statistics) :]
        return found | dict(zip(self._recipe.statistics, statistics, strict=True))

    def outer_views(
        self, values: Sequence[np.ndarray], vectors: Sequence[np.ndarray]
    ) -> dict[SharedVariable, np.ndarray]:
        """The view of each outer variable, given the centre's values and the outer vectors."""
        found: dict[SharedVariable, np.ndarray] = {}
        given = iter(vectors)
        for variables in self._recipe.outer:
            mixed = [
                next(given) if kind is PARAMETER else v
                for v, kind in zip(values, self.kinds, strict=True)
            ]
            places = self.views(mixed)
            found |= {u: places[p] for u, p in zip(variables, self._recipe.params, strict=True)}
        return found


def _dtype(variable: SharedVariable) -> np.dtype[Any]:
    kind: Any = variable.type
    return np.dtype(kind.dtype)
