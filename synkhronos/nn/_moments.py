"""Mean and variance over the rows of all members, for batch normalisation, with their gradient.

Each member computes mean and variance of its part; these are combined exactly (Chan, Golub and
LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979).

The gradient through them is exact for losses that are means over rows. The gradient of such a loss
is the members' mean, weighted by rows. The gradient with respect to the statistics is the same
weighted mean (see `synkhronos.ops`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import OutputStorageType

from synkhronos._compiling.graph_types import Arrays, Inputs
from synkhronos._engine.graph_collectives import FIRST_TOKEN, CollectiveOp
from synkhronos._engine.graph_exchanges import mean_over_members
from synkhronos.ops import all_reduce
from synkhronos.ops._collectives import Shape


class Moments(CollectiveOp):
    """values, running mean, running variance -> mean, variance, and the next running values.

    Mean and variance are taken over all axes except the last one.
    """

    __props__ = ("momentum",)

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum  # the weight of the batch's values in the next running values

    def update_map(self) -> dict[int, int]:
        """By output: the input whose new value it is. pytensor-ml finds states by this method."""
        return {2: 1, 3: 2}

    def make_node(self, *inputs: Variable) -> Apply:
        given = [pt.as_tensor(v) for v in inputs[:3]]
        token = inputs[3] if len(inputs) > 3 else FIRST_TOKEN
        kind = pt.TensorType(given[0].dtype, (given[0].type.shape[-1],))
        found = [kind(), kind(), given[1].type(), given[2].type(), token.type()]
        return Apply(self, [*given, token], found)

    def infer_shape(self, node: Apply, shapes: Sequence[Shape]) -> list[Shape]:
        channels = (shapes[0][-1],)
        return [channels, channels, shapes[1], shapes[2], ()]

    def perform(self, node: Apply, inputs: Arrays, output_storage: OutputStorageType) -> None:
        """Compute the sums in float64."""
        values, *running, token = inputs
        axes = tuple(range(values.ndim - 1))
        mean = values.mean(axes, dtype=np.float64)
        variance = values.var(axes, dtype=np.float64)
        found = combined(np.stack([mean, variance])).astype(values.dtype)
        new = [*found, *self.run_on(found, running)]
        for storage, value in zip(output_storage, new, strict=False):
            storage[0] = np.array(value)
        output_storage[-1][0] = token

    def run_on(self, found: Any, running: Sequence[object]) -> list[object]:
        m = self.momentum
        return [
            (m * new + (1 - m) * old).astype(old.dtype)
            for new, old in zip(found, running, strict=True)
        ]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """The running values have no gradient, and none goes through them."""
        return [[True, True, False, False, False], *([False] * 5 for _ in range(3))]

    def pullback(self, inputs: Inputs, outputs: Inputs, cotangents: Inputs) -> list[Variable]:
        """Differentiate through mean and variance."""
        values, mean = inputs[0], outputs[0]
        sent = [
            pt.zeros_like(mean) if isinstance(c.type, DisconnectedType) else c
            for c in cotangents[:2]
        ]
        met = all_reduce(pt.stack(sent), "avg")
        by_mean, by_variance = met[0], met[1]
        count = (values.size // values.shape[-1]).astype(values.dtype)
        gradient = (by_mean + 2 * (values - mean) * by_variance) / count
        return [gradient.astype(values.dtype), *(disconnected_type() for _ in range(3))]


def combined(moments: np.ndarray) -> np.ndarray:
    """Mean and variance of all rows, from those of this member's rows; shape (2, channels)."""
    mean, variance = moments.astype(np.float64)
    means, squares = mean_over_members(np.stack([mean, variance + mean**2]))
    # float64 is precise enough for a difference of squares; rounding may put it below zero
    return np.stack([means, np.maximum(squares - means**2, 0)]).astype(moments.dtype)
