"""The gradient of normal log-densities by the covariance, from its Cholesky factor.

PyTensor leads it through the factor: it solves two triangles for each column of a matrix, and
multiplies two matrices. One inverse of the covariance is enough.
"""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph


class CovarianceGradient(OpFromGraph):
    """L, c, rows a, weights w -> c inv(L L') + sum of w a a', as a gradient by the lower triangle.

    Of a symmetric matrix, of which both triangles are made, only the lower one is read. Modes other
    than NUMBA have PyTensor's operations.
    """

    @classmethod
    def of(cls, factor: Any, scale: Any, rows: Any, weights: Any) -> Any:
        """The gradient, of the dtype of the factor."""
        dtype = factor.type.dtype
        given = [factor, *[v.astype(dtype) for v in (scale, rows, weights)]]
        places: Any = [v.type() for v in given]
        chol, times, vectors, by = places
        identity = pt.eye(chol.shape[0], dtype=dtype)
        inverse = pt.linalg.cho_solve((chol, True), identity, b_ndim=2)
        found = times * inverse + pt.dot((by[:, None] * vectors).T, vectors)
        return cls(places, [pt.tril(found) + pt.tril(found, -1)])(*given)
