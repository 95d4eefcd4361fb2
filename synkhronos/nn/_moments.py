"""Mean and variance over the rows of all members, for batch normalisation, with their gradient.

Each member computes mean and variance of its part; these are combined exactly (Chan, Golub and
LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979).

The gradient through them is exact for losses that are means over rows. The gradient of such a loss
is the members' mean, weighted by rows. The gradient with respect to the statistics is the same
weighted mean, so `Mean` is its own gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable

from synkhronos._engine.graph_collectives import CollectiveOp, mean_over_members

_numbers = itertools.count(1)


class _Numbered(CollectiveOp):
    """A collective operation with a number of its own, so that equal ones are not merged."""

    def __init__(self) -> None:
        self.number = next(_numbers)


class Mean(_Numbered):
    """The mean of the members' values, weighted by their rows; it is its own gradient."""

    __props__ = ("number",)

    def make_node(self, *inputs: Any) -> Apply:
        [values] = map(pt.as_tensor, inputs)
        return Apply(self, [values], [values.type()])

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> list[Any]:
        return list(shapes)

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        output_storage[0][0] = np.array(mean_over_members(self.number, inputs[0]))

    def pullback(
        self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]
    ) -> list[Variable]:
        """Differentiate; right for losses that are averaged over members in the same way."""
        gradient: Any = Mean()(cotangents[0])
        return [gradient]


class Moments(_Numbered):
    """values, running mean, running variance -> mean, variance, and the next running values.

    Mean and variance are taken over all axes except the last one.

    Parameters
    ----------
    momentum : float
        The weight of the batch's values in the next running values.
    """

    __props__ = ("number", "momentum")

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum

    def update_map(self) -> dict[int, int]:
        """By output: the input whose new value it is. pytensor-ml finds states by this method."""
        return {2: 1, 3: 2}

    def make_node(self, *inputs: Any) -> Apply:
        given = [pt.as_tensor(v) for v in inputs]
        kind = pt.TensorType(given[0].dtype, (given[0].type.shape[-1],))
        return Apply(self, given, [kind(), kind(), given[1].type(), given[2].type()])

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> list[Any]:
        channels = (shapes[0][-1],)
        return [channels, channels, shapes[1], shapes[2]]

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        """Compute the sums in float64."""
        values, *running = inputs
        axes = tuple(range(values.ndim - 1))
        mean = values.mean(axes, dtype=np.float64)
        variance = values.var(axes, dtype=np.float64)
        found = combined(self.number, np.stack([mean, variance])).astype(values.dtype)
        new = [*found, *self.run_on(found, running)]
        for storage, value in zip(output_storage, new, strict=True):
            storage[0] = np.array(value)

    def run_on(self, found: Any, running: Sequence[Any]) -> list[Any]:
        m = self.momentum
        return [
            (m * new + (1 - m) * old).astype(old.dtype)
            for new, old in zip(found, running, strict=True)
        ]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """The running values have no gradient, and none goes through them."""
        return [[True, True, False, False], [False] * 4, [False] * 4]

    def pullback(
        self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]
    ) -> list[Variable]:
        """Differentiate through mean and variance."""
        values, mean = inputs[0], outputs[0]
        sent = [
            pt.zeros_like(mean) if isinstance(c.type, DisconnectedType) else c
            for c in cotangents[:2]
        ]
        met: Any = Mean()(pt.stack(sent))
        by_mean, by_variance = met[0], met[1]
        count = (values.size // values.shape[-1]).astype(values.dtype)
        gradient = (by_mean + 2 * (values - mean) * by_variance) / count
        return [gradient.astype(values.dtype), disconnected_type(), disconnected_type()]


def combined(number: int, moments: np.ndarray) -> np.ndarray:
    """Mean and variance of all rows, from those of this member's rows; shape (2, channels)."""
    mean, variance = moments.astype(np.float64)
    means, squares = mean_over_members(number, np.stack([mean, variance + mean**2]))
    # float64 is precise enough for a difference of squares; rounding may put it below zero
    return np.stack([means, np.maximum(squares - means**2, 0)]).astype(moments.dtype)
