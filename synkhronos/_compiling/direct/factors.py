"""Factors of matrices, and solutions by triangles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.solvers.psd import CholeskySolve
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular

from synkhronos._compiling.direct import matrices
from synkhronos._compiling.direct.arrays import Buffer, Shape, View
from synkhronos._compiling.direct.program import Program
from synkhronos._compiling.direct.unfit import UnfitError

_MOST_ROWS, _MOST_COLUMNS = 128, 512  # of matrices: LAPACK needs less time for more


class Factors:
    """Appends operations of linear algebra; the triangles among their results are used again.

    Parameters
    ----------
    program : Program
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._triangles: dict[Buffer, int] = {}  # upper ones with zeros beside them; their rows

    def of(self, op: Any, given: Sequence[View], batch: Shape) -> View:
        """The result of an operation of linear algebra, on the last axes of arrays."""
        [matrix, *others] = given
        n = matrix.shape[-1]
        if n > _MOST_ROWS:
            raise UnfitError(f"{op} of {n} rows")
        if isinstance(op, Cholesky):
            write = partial(matrices.factor, lower=op.lower)
            [rows] = self._program.whole(write, given, [(n, matrices.padded(n))], batch)
            self._triangles[rows.buffer] = n
            upper = rows.first(n)
            return upper.transposed if op.lower else upper
        if isinstance(op, SolveTriangular):
            return self._solved(matrix, others[0], batch, op.lower, op.unit_diagonal)
        if isinstance(op, CholeskySolve):
            factors = (matrix, matrix.transposed)
            first, second = factors if op.lower else factors[::-1]
            half = self._solved(first, others[0], batch, True, False, checked=False)
            return self._solved(second, half, batch, False, False, checked=False)
        raise UnfitError(f"{op}")

    def _solved(
        self,
        matrix: View,
        right: View,
        batch: Shape,
        lower: bool,
        unit: bool,
        checked: bool = True,
    ) -> View:
        """The solution of a triangle and a vector or matrix; NaN for a zero of the diagonal."""
        first, n = len(batch), matrix.shape[-1]
        *_, columns = right.shape
        is_matrix = len(right.shape) == first + 2
        if is_matrix and columns > 1:
            if columns > _MOST_COLUMNS:
                raise UnfitError(f"a solution of {columns} columns")
            solve = partial(matrices.solve_matrix, lower=lower, unit=unit, checked=checked)
            shape = n, matrices.padded(columns)
            [wide] = self._program.whole(solve, [matrix, right], [shape], batch)
            return wide.first(columns)
        vector = right.part([*[slice(None)] * (first + 1), 0]) if is_matrix else right
        rows = self._triangle(matrix, lower, batch)
        write = partial(matrices.solve_vector, lower=lower, unit=unit, checked=checked)
        [wide] = self._program.whole(write, [rows, vector], [(matrices.padded(n),)], batch)
        found = wide.first(n)
        return found.moved([*range(first + 1), "x"]) if is_matrix else found

    def _triangle(self, matrix: View, lower: bool, batch: Shape) -> View:
        """A triangle as the upper one of rows of whole registers."""
        upper, n = matrix.transposed if lower else matrix, matrix.shape[-1]
        width = matrices.padded(n)
        steps = (*upper.strides[:-2], upper.offset)
        if (
            self._triangles.get(upper.buffer) == n
            and upper.strides[-2:] == (width, 1)
            and not any(step % (n * width) for step in steps)
        ):
            return View(upper.buffer, (*batch, n, width), upper.strides, upper.offset)
        write = partial(matrices.triangle, lower=lower)
        return self._program.whole(write, [matrix], [(n, width)], batch)[0]

    def gradient(self, op: Any, given: Sequence[View]) -> View:
        """The gradient of a `CovarianceGradient`."""
        factor, _, rows, _ = given
        n, width = factor.shape[0], matrices.padded(factor.shape[0])
        if n > _MOST_ROWS:
            raise UnfitError(f"{op} of {n} rows")
        shapes = [(n, width), (n, width), (rows.shape[0], width)]
        out, *_ = self._program.whole(matrices.covariance_gradient, given, shapes)
        return out.first(n)
