"""What a member needs to update parameters that stay in its own GPU's memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from synkhronos._plan.reductions import Reduction, accumulator


@dataclass(frozen=True)
class Whole:
    """An update rule as it is, not taken apart.

    Attributes
    ----------
    places : tuple of Variable
        Stand for the gradients over all rows, one for each parameter.
    updates : tuple of (SharedVariable, Variable)
    params : tuple of SharedVariable
    leaves : tuple of Variable
        0-d variables that the graphs depend on.
    """

    places: tuple[Variable, ...]
    updates: tuple[tuple[SharedVariable, Variable], ...]
    params: tuple[SharedVariable, ...]
    leaves: tuple[Variable, ...] = ()

    def recipe(self, mode: Any, config: dict[str, Any]) -> ResidentRecipe:
        """What members need of it."""
        shapes = [tuple(np.shape(v.get_value(borrow=True))) for v in self.params]
        changed = [tuple(np.shape(v.get_value(borrow=True))) for v, _ in self.updates]
        return ResidentRecipe(
            self.places, self.updates, self.leaves, tuple(shapes), tuple(changed), mode, config
        )


@dataclass(frozen=True)
class ResidentRecipe:
    """All that a member needs to update parameters in its own memory.

    Attributes
    ----------
    places : tuple of Variable
        Stand for the gradients over all rows, one for each parameter, of its type.
    updates : tuple of (SharedVariable, Variable)
        Parameters and states, and their new values.
    leaves : tuple of Variable
        The rule's scalars.
    of_places : tuple of tuple
        Their shapes.
    shapes : tuple of tuple
        Of what is updated.
    """

    places: tuple[Variable, ...]
    updates: tuple[tuple[SharedVariable, Variable], ...]
    leaves: tuple[Variable, ...]
    of_places: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    mode: Any
    config: dict[str, Any]

    @property
    def dtypes(self) -> list[str]:
        """Of the flat gradients."""
        return list(dict.fromkeys(p.type.dtype for p in self.places))


def summed_in(dtype: str) -> str:
    """The dtype in which gradients of a dtype are summed."""
    return accumulator(np.dtype(dtype), Reduction.SUM).name
