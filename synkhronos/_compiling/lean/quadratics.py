"""The sum of squares of a regression, from few numbers that are computed once of all of its rows.

A sum of squares of y - X b is that of rest - root (joined b - centre), with as many rows as b has
numbers, and of a number that no b makes smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.scalar import basic as ps

from synkhronos._compiling.graph_types import Inputs

# numbers before the arrays: the rows; half of the sum of squares outside of the support, 0 or
# infinity; whether `joined` changes nothing; and the root of the smallest sum of squares
ROWS, OUTSIDE, APART, SMALLEST, HEAD = range(5)


def packed(
    head: Sequence[float],
    joined: np.ndarray,
    centre: np.ndarray,
    root: np.ndarray,
    rest: np.ndarray,
) -> np.ndarray:
    """The numbers of a form as one vector, of `root` the upper triangle: each array takes time."""
    upper = root[np.triu_indices(len(centre))]
    return np.concatenate([head, centre, rest, upper, joined.ravel()])


def size_of(width: int) -> int:
    """How many numbers the form has, by its number of coefficients."""
    return HEAD + 2 * width + width * (width + 1) // 2 + width * width


class SquaresOfRows(Op):
    """Coefficients, scale, numbers -> minus half of the squares, the gradient by coefficients.

    Distances are divided by the scale before they are squared, as those of rows are. The second
    result has no derivatives.
    """

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        coefficients, scale, numbers = inputs
        given = [coefficients, pt.scalar_from_tensor(pt.as_tensor(scale)), numbers]
        return Apply(self, given, [ps.float64(), coefficients.type()])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        b, scale, numbers = inputs
        width = len(b)
        ends = np.cumsum([HEAD, width, width, width * (width + 1) // 2])
        head, centre, rest, upper, joined = np.split(numbers, ends)
        root, joined = np.zeros((width, width)), joined.reshape(width, width)
        root[np.triu_indices(width)] = upper
        with np.errstate(all="ignore"):
            distance = (rest - root @ (joined @ b - centre)) / scale
            squares = distance @ distance + np.square(head[SMALLEST] / scale)
            output_storage[0][0] = -0.5 * squares - head[OUTSIDE]
            output_storage[1][0] = joined.T @ (root.T @ distance) / scale

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> list[Any]:
        return [(), shapes[0]]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """The numbers are data."""
        return [[True, True], [True, True], [False, False]]

    def pullback(self, inputs: Inputs, outputs: Inputs, cotangents: Inputs) -> list[Variable]:
        """The gradients by the coefficients and the scale."""
        squares, slope = outputs
        by, *others = cotangents
        if not all(isinstance(v.type, DisconnectedType) for v in others):
            raise NotImplementedError("second derivatives are those of the rows")
        value, unit, times = (self._tensor(v) for v in (squares, inputs[1], by))
        by_scale = pt.scalar_from_tensor(-2 * times * value / unit)
        return [times * slope, by_scale, DisconnectedType()()]

    @staticmethod
    def _tensor(number: Variable) -> Any:
        return pt.tensor_from_scalar(number)
