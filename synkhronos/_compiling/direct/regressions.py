"""Sums of squares of a regression, which a triangle of the data and its coefficients give."""

from __future__ import annotations

import numpy as np
import pytensor.scalar as ps

from synkhronos._compiling.direct.arrays import View, array_of, new_array
from synkhronos._compiling.direct.products import product
from synkhronos._compiling.direct.program import Program
from synkhronos._compiling.direct.steps import Gather
from synkhronos._compiling.direct.unfit import UnfitError
from synkhronos._compiling.lean.quadratics import HEAD, OUTSIDE, SMALLEST

_MOST_COEFFICIENTS = 48


def squares_of_rows(program: Program, coefficients: View, scale: View, numbers: View) -> list[View]:
    """The results of a `SquaresOfRows`: its value, and the gradient by the coefficients."""
    [width], by = coefficients.shape, program.by
    if width > _MOST_COEFFICIENTS:
        raise UnfitError(f"squares of rows with {width} coefficients")
    ends = np.cumsum([HEAD, width, width, width * (width + 1) // 2]).tolist()
    parts = zip([0, *ends], [*ends, numbers.shape[0]], strict=True)
    head, centre, rest, upper, flat = (numbers.part([slice(*ends)]) for ends in parts)
    joined = flat.reshaped((width, width))
    assert joined is not None
    # the triangle as a matrix, whose other elements are any of them times 0
    above = np.triu(np.ones((width, width)))
    places = (np.cumsum(above).reshape(width, width) - 1).astype(np.int64)
    chosen = new_array(places.shape, "float64")
    program.append(Gather(places.shape, [array_of(places)], upper, (0,), (), chosen))
    root = by(ps.mul, chosen, array_of(above))
    left = by(ps.sub, product(program, joined, coefficients), centre)
    left = by(ps.sub, rest, product(program, root, left))
    distance = by(ps.true_div, left, scale)
    smallest = by(ps.true_div, head.part([SMALLEST]), scale)
    squares = by(ps.add, product(program, distance, distance), by(ps.sqr, smallest))
    half = by(ps.mul, squares, array_of(np.array(-0.5)))
    slope = product(program, joined.moved([1, 0]), product(program, root.moved([1, 0]), distance))
    return [
        by(ps.sub, half, head.part([OUTSIDE])),
        by(ps.true_div, slope, scale),
    ]
