"""Steps in an order, and what appends some of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.scalar as ps

from synkhronos._compiling.direct.arrays import Shape, View, new_array
from synkhronos._compiling.direct.steps import Map, Step, Whole
from synkhronos._compiling.direct.unfit import UnfitError


class Program:
    """Steps in an order.

    Attributes
    ----------
    steps : list of Step
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def append(self, step: Step) -> None:
        """Append a step, unless it is for no element."""
        if math.prod(step.space):
            self.steps.append(step)

    def copied(self, source: View, into: View) -> None:
        """Copy elements, as numbers of the other's dtype."""
        kind = ps.get_scalar_type(into.dtype)
        self.append(Map(into.shape, [source.broadcast(into.shape)], ps.Cast(kind), [into]))

    def by(self, op: Any, *given: View) -> View:
        """A function of numbers for each element of arrays."""
        shape = np.broadcast_shapes(*[view.shape for view in given])
        found = new_array(shape, "float64")
        self.append(Map(shape, [view.broadcast(shape) for view in given], op, [found]))
        return found

    def whole(
        self,
        write: Callable[..., Any],
        given: Sequence[View],
        shapes: Sequence[Shape],
        batch: Shape = (),
    ) -> list[View]:
        """Arrays of these shapes that an operation on whole arrays writes."""
        if any(view.dtype != "float64" for view in given):
            raise UnfitError(f"matrices of {given[0].dtype}")
        if not all(math.prod(view.shape) for view in given):
            raise UnfitError("a matrix of nothing")
        into = [new_array((*batch, *shape), "float64") for shape in shapes]
        self.append(Whole(into[0].shape, list(given), write, into, batch))
        return into
