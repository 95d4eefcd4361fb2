"""The numba code of a `CovarianceGradient`."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import get_cython_function_address
from pytensor.link.numba.dispatch.basic import numba_njit

from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.pytensor import PYTENSOR

VERSION = 1  # part of the key of cached machine code: change it whenever the code changes

# Up to this length loops take less time than LAPACK, whose threads wait for each other
_FEW = 128
_LETTERS = {"float32": "s", "float64": "d"}


@numba_njit(boundscheck=False)
def _add_rows(out: np.ndarray, weights: np.ndarray, rows: np.ndarray, first: int, end: int) -> None:
    """Add weights[k] * rows[k] for k from first to end; the rows are of a lower triangle.

    Four rows at a time: each element of `out` is read and written a quarter as often.
    """
    fours = end - (end - first) % 4
    for k in range(first, fours, 4):
        a, b, c, d = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
        p, q, r, s = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        for j in range(min(out.size, k + 4)):
            out[j] += p * a[j] + q * b[j] + r * c[j] + s * d[j]
    for k in range(fours, end):
        a, p = rows[k], weights[k]
        for j in range(min(out.size, k + 1)):
            out[j] += p * a[j]


@numba_njit(boundscheck=False, error_model="numpy")
def _inverse_by_loops(factor: np.ndarray, out: np.ndarray) -> None:
    """Write the lower triangle of inv(L L') in place of zeros: inv(L), then its square."""
    n = out.shape[0]
    for i in range(n):
        row, scale = out[i], 1 / factor[i, i]
        _add_rows(row[:i], factor[i], out, 0, i)
        for j in range(i):
            row[j] *= -scale
        row[i] = scale
    for i in range(n):
        row, scale = out[i, : i + 1], out[i, i]
        for j in range(i + 1):
            row[j] *= scale
        _add_rows(row, out[:, i], out, i + 1, n)


def _inverse_by_lapack(dtype: np.dtype) -> Any:
    """As `_inverse_by_loops`; the same function if PyTensor does not call LAPACK as is known."""
    name = f"{_LETTERS[dtype.name]}potri"
    unique = f"scipy.lapack.{name}"
    integer, numbers = types.CPointer(types.int32), types.CPointer(numba.from_dtype(dtype))
    kind = types.FunctionType(types.void(integer, integer, numbers, integer, integer))
    with optional_gain():
        pointed_at = PYTENSOR.get("_call_cached_ptr")

        @numba_njit
        def address() -> Any:
            with numba.objmode(found=types.intp):
                found = get_cython_function_address("scipy.linalg.cython_lapack", name)
            return found

        @numba_njit
        def inverse(factor: np.ndarray, out: np.ndarray) -> None:
            n = out.shape[0]
            for i in range(n):
                out[i, : i + 1] = factor[i, : i + 1]
            # rows of the lower triangle are columns of the upper one of the transpose
            upper, length = np.full(1, ord("U"), np.int32), np.full(1, n, np.int32)
            failed = np.zeros(1, np.int32)
            potri = pointed_at(address, kind, unique)
            potri(upper.ctypes, length.ctypes, out.ctypes, length.ctypes, failed.ctypes)
            if failed[0] != 0:
                out[:] = np.nan

        return inverse
    return _inverse_by_loops


def covariance_gradient(dtype: np.dtype) -> Any:
    """A function of numba: (factor, scale, rows, weights) -> the gradient."""
    by_lapack = _inverse_by_lapack(dtype)

    @numba_njit(boundscheck=False)
    def gradient(
        factor: np.ndarray, scale: np.ndarray, rows: np.ndarray, weights: np.ndarray
    ) -> np.ndarray:
        n, count = factor.shape[0], rows.shape[0]
        if factor.shape[1] != n or rows.shape[1] != n or weights.size != count:
            raise ValueError("a factor, rows and weights have lengths that do not fit")
        found = np.zeros((n, n), dtype)
        if n <= _FEW:
            _inverse_by_loops(factor, found)
        else:
            by_lapack(factor, found)
        times = scale.item()
        for i in range(n):
            out = found[i]
            for j in range(i + 1):
                out[j] *= times
            for k in range(count):
                row = rows[k]
                by = weights[k] * row[i]
                for j in range(i + 1):
                    out[j] += by * row[j]
            for j in range(i):
                out[j] *= 2
        return found

    return gradient
