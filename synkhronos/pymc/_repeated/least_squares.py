"""Least squares of many rows: the solution, and what is left, as a triangular matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

_BLOCK = 1 << 18  # numbers of a design that are made at a time
_EPS = float(np.finfo(np.float64).eps)
_WEAK = 1e-4  # of the largest singular value: a solution of smaller ones loses its digits


@dataclass(frozen=True)
class LeastSquares:
    """The sum of squares of ``y - X @ b`` as that of ``rest - root @ (joined @ b - centre)``."""

    # adds the coefficients of columns that are sums of others to those of the others: an intercept
    # to the effects of all groups. Their columns of `root` are 0 then. Without it large
    # coefficients that cancel would lose the digits of what they leave
    joined: np.ndarray
    centre: np.ndarray  # the solution but for weak directions, 0 where columns of `root` are
    root: np.ndarray  # r of a QR of X, and a row of zeros
    # what the centre leaves, its rounding or a weak direction, and the root of the smallest sum of
    # squares
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

    Returns
    -------
    LeastSquares
        NaN if X has a number that is not finite, or that overflows.

    Notes
    -----
    A QR of the rows and y gives R and the solution. A second pass computes the residuals of the
    rounded solution, with which the sum of squares is exact to the digits of y. Then the value near
    the solution does not suffer from the difference of two large sums, as X'X would. Directions in
    which X nearly vanishes, as those of a smooth basis, are left out of the solution, which would
    be huge there: what they leave is that of the first pass.

    Source: Golub and Van Loan, Matrix Computations, 4th edition, 5.3 and 5.5. Cost: 4 n p^2
    operations, and 2 MB for a block.
    """
    blocks = list(_blocks(len(y), width))
    triangle = np.zeros((0, width + 1))
    for begin, end in blocks:
        rows = np.column_stack([design(begin, end), y[begin:end]])
        triangle = np.linalg.qr(np.vstack([triangle, rows]), mode="r")
    triangle = np.vstack([triangle, np.zeros((width + 1 - len(triangle), width + 1))])
    if not np.isfinite(triangle[:, :width]).all():
        root = np.full((width + 1, width), np.nan)
        return LeastSquares(np.eye(width), np.zeros(width), root, np.full(width + 1, np.nan))
    joined = _joined(triangle[:width, :width])
    kept = joined.any(axis=1)
    root, turned = np.where(kept, triangle[:width, :width], 0.0), triangle[:width, width]
    scales = _lengths(root)
    units, lengths, turns = np.linalg.svd((root / scales)[:, kept], full_matrices=False)
    count = np.count_nonzero(lengths > _WEAK * lengths.max(initial=0.0))
    units, weak = units[:, :count], units[:, count:]
    solved = np.zeros((count, width))
    solved[:, kept] = turns[:count] / lengths[:count, None] / scales[kept]
    centre = solved.T @ (units.T @ turned)
    slopes, squares = np.zeros(width, np.longdouble), np.longdouble(0)
    for begin, end in blocks:
        rows = design(begin, end).astype(np.longdouble)
        left = y[begin:end] - rows @ centre  # sums of the rows' own digits, where little is left
        slopes += left @ rows
        squares += left @ left
    rest = units @ (solved @ slopes.astype(np.float64)) + weak @ (weak.T @ (turned - root @ centre))
    smallest = np.sqrt(np.maximum(squares - np.sum(rest.astype(np.longdouble) ** 2), 0.0))
    return LeastSquares(
        joined,
        centre,
        np.vstack([root, np.zeros((1, width))]),
        np.append(rest, smallest).astype(np.float64),
    )


def _blocks(rows: int, width: int) -> Iterator[tuple[int, int]]:
    size = max(4 * (width + 1), _BLOCK // (width + 1))
    return ((begin, min(begin + size, rows)) for begin in range(0, rows, size))


def _joined(root: np.ndarray) -> np.ndarray:
    """The columns that are sums of others, as coefficients that are added to those of the others.

    Columns that depend least on those that are kept come first, as in a QR with pivots. Without a
    gap between these and the rest, as in a smooth basis, no column is a sum.
    """
    width, scales = len(root), _lengths(root)
    left = root / scales
    kept: list[int] = []
    least = 1.0
    for _ in range(width):
        norms = np.linalg.norm(left, axis=0)
        best = int(np.argmax(norms))
        if norms[best] <= 8 * width * _EPS:
            break
        least = norms[best]
        kept.append(best)
        direction = left[:, best] / norms[best]
        for _ in range(2):  # once more, for what rounding leaves
            left = left - np.outer(direction, direction @ left)
        left[:, best] = 0.0
    if len(kept) == width or least <= _WEAK:
        return np.eye(width)
    units, *_ = np.linalg.lstsq(root[:, kept] / scales[kept], root / scales, rcond=None)
    rounding = 8 * width * _EPS / least  # larger for columns that nearly depend on one another
    units[np.abs(units) <= rounding] = 0.0  # of columns of the same length
    weights = units * (scales / scales[kept, None])
    whole = np.round(weights)
    near = np.abs(weights - whole) <= rounding * np.abs(whole)
    found = np.zeros((width, width))
    found[kept] = np.where(near, whole, weights)
    return found


def _lengths(columns: np.ndarray) -> np.ndarray:
    """The length of each column, by which it is divided: numpy drops what is relatively small."""
    found: np.ndarray = np.linalg.norm(columns, axis=0)
    return np.where(found > 0, found, 1.0)
