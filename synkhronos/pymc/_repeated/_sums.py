"""Sums over the rows of each group, in more digits than those of the numbers."""

from __future__ import annotations

import numpy as np

from synkhronos.pymc._repeated._distinct import Kinds


class GroupSums:
    """Sums arrays over the rows of each kind.

    Attributes
    ----------
    counts : array of float, (groups,)
        The number of rows of each group.
    """

    def __init__(self, kinds: Kinds) -> None:
        self._of = kinds.of
        self._order = np.argsort(kinds.of, kind="stable")
        self._starts = np.concatenate([[0], np.cumsum(kinds.counts)[:-1]]).astype(np.intp)
        self.counts = kinds.counts.astype(np.float64)

    def exact(self, rows: np.ndarray) -> np.ndarray:
        """The sum of each group as long doubles, which have 64 bits on x86."""
        return np.add.reduceat(rows[self._order].astype(np.longdouble), self._starts, axis=0)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The sum of each group."""
        return self.exact(rows).astype(np.float64)

    def centred(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The mean of each group, what its rounding leaves, and the root of the sum of squares."""
        counts = self.counts.reshape(-1, *[1] * (rows.ndim - 1))
        exact = self.exact(rows) / counts
        mean = exact.astype(np.float64)
        left = (exact - mean).astype(np.float64)
        squares = self.exact((rows - exact[self._of]) ** 2)
        return mean, left, np.sqrt(squares).astype(np.float64)
