"""Least squares of many rows: the solution, and what is left, as a triangular matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

_BLOCK = 1 << 18  # numbers of a design that are made at a time


@dataclass(frozen=True)
class LeastSquares:
    """The sum of squares of ``y - X @ b`` as that of ``rest - root @ (b - centre)``.

    Attributes
    ----------
    centre : array of float, (p,)
        The solution of smallest norm.
    root : array of float, (p + 1, p)
        R of a QR of X, and a row of zeros.
    rest : array of float, (p + 1,)
        What the rounding of the centre leaves, and the root of the smallest sum of squares.
    """

    centre: np.ndarray
    root: np.ndarray
    rest: np.ndarray


def least_squares(
    design: Callable[[int, int], np.ndarray], y: np.ndarray, width: int
) -> LeastSquares:
    """Solve least squares, block of rows by block.

    Parameters
    ----------
    design : callable
        ``design(begin, end) -> (rows, width)``: rows of X.
    y : array of float, (rows,)
    width : int

    Notes
    -----
    A QR of the rows and y gives R and the solution. A second pass computes the residuals of the
    rounded solution, with which the sum of squares is exact to the digits of y. Then the value near
    the solution does not suffer from the difference of two large sums, as X'X would.

    Source: Golub and Van Loan, Matrix Computations, 4th edition, 5.3 and 5.5. Cost: 4 n p^2
    operations, and 2 MB for a block.
    """
    blocks = list(_blocks(len(y), width))
    triangle = np.zeros((0, width + 1))
    for begin, end in blocks:
        rows = np.column_stack([design(begin, end), y[begin:end]])
        triangle = np.linalg.qr(np.vstack([triangle, rows]), mode="r")
    triangle = np.vstack([triangle, np.zeros((width + 1 - len(triangle), width + 1))])
    root = triangle[:width, :width]
    centre, *_ = np.linalg.lstsq(root, triangle[:width, width], rcond=None)
    slopes, squares = np.zeros(width, np.longdouble), np.longdouble(0)
    for begin, end in blocks:
        rows = design(begin, end).astype(np.longdouble)
        left = y[begin:end] - rows @ centre  # sums of the rows' own digits, where little is left
        slopes += left @ rows
        squares += left @ left
    rounding, *_ = np.linalg.lstsq(root.T, slopes.astype(np.float64), rcond=None)
    smallest = np.sqrt(np.maximum(squares - np.sum(rounding.astype(np.longdouble) ** 2), 0.0))
    return LeastSquares(
        centre,
        np.vstack([root, np.zeros((1, width))]),
        np.append(rounding, smallest).astype(np.float64),
    )


def _blocks(rows: int, width: int) -> Iterator[tuple[int, int]]:
    size = max(4 * (width + 1), _BLOCK // (width + 1))
    return ((begin, min(begin + size, rows)) for begin in range(0, rows, size))
