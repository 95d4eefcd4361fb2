"""The recipe of an update of parameters in each GPU's own memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable

from synkhronos._compiling.graph_types import ModeLike
from synkhronos._proofs.reductions import Reduction, accumulator


@dataclass(frozen=True)
class UpdateRule:
    """An update rule applied to reduced gradients."""

    places: tuple[Variable, ...]  # stand for the gradients over all rows, one for each parameter
    updates: tuple[tuple[SharedVariable, Variable], ...]
    params: tuple[SharedVariable, ...]
    leaves: tuple[Variable, ...] = ()  # 0-d variables that the graphs depend on

    def recipe(self, mode: ModeLike, config: dict[str, object]) -> ResidentRecipe:
        """The recipe for members whose parameters lie in GPU memory."""
        shapes = [tuple(np.shape(v.get_value(borrow=True))) for v in self.params]
        changed = [tuple(np.shape(v.get_value(borrow=True))) for v, _ in self.updates]
        return ResidentRecipe(
            self.places, self.updates, self.leaves, tuple(shapes), tuple(changed), mode, config
        )


@dataclass(frozen=True)
class ResidentRecipe:
    """Everything that a member needs to update parameters in its own memory."""

    # stand for the gradients over all rows, one for each parameter, of its type
    places: tuple[Variable, ...]
    # parameters and states, and their new values
    updates: tuple[tuple[SharedVariable, Variable], ...]
    leaves: tuple[Variable, ...]  # the rule's scalars
    of_places: tuple[tuple[int, ...], ...]  # the shapes of `places`
    shapes: tuple[tuple[int, ...], ...]  # the shapes of the updated variables
    mode: ModeLike
    config: dict[str, object]

    @property
    def dtypes(self) -> list[str]:
        """Of the flat gradients."""
        return list(dict.fromkeys(p.type.dtype for p in self.places))


def summed_in(dtype: str) -> str:
    """The dtype in which gradients of a dtype are summed."""
    return accumulator(np.dtype(dtype), Reduction.SUM).name
