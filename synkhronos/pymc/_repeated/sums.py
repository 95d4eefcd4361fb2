"""Sums over the rows of each group, with one rounding."""

from __future__ import annotations

import numpy as np

from synkhronos.pymc._repeated.distinct import Kinds

_LARGEST = 1022  # exponent, so that nothing overflows


class GroupSums:
    """Sums arrays over the rows of each kind.

    Numbers are cut in pieces whose bits end at the same place for a group, so that the sums of the
    first two are exact. The third has what is left, 64 bits or more below the largest number. So a
    sum is rounded once.

    Source: Rump, Ogita and Oishi, Accurate floating-point summation I, SIAM J. Sci. Comput. 31
    (2008), algorithm 3.3.
    """

    def __init__(self, kinds: Kinds) -> None:
        self._of = kinds.of
        self._order = np.argsort(kinds.of, kind="stable")
        self._starts = (np.cumsum(kinds.counts) - kinds.counts).astype(np.intp)
        self._repeats = kinds.counts
        self.counts = kinds.counts.astype(np.float64)  # the number of rows of each group

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The sum of each group."""
        left = rows[self._order].astype(np.float64)
        with np.errstate(over="ignore"):
            total: np.ndarray = np.add.reduceat(left, self._starts, axis=0)
        if not np.isfinite(total).all():  # infinities say that a row is outside of the support
            left = np.where(np.isfinite(left), left, 0.0)
        sums = []
        for _ in range(2):
            piece = self._piece(left)
            sums.append(np.add.reduceat(piece, self._starts, axis=0))
            left = left - piece
        small = sums[1] + np.add.reduceat(left, self._starts, axis=0)
        return np.where(np.isfinite(total), sums[0] + small, total)

    def centred(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The mean of each group, what its rounding leaves, and the root of the sum of squares."""
        counts = self.counts.reshape(-1, *[1] * (rows.ndim - 1))
        mean = self.of(rows) / counts
        distance = rows - mean[self._of]
        left = self.of(distance) / counts
        return mean, left, np.sqrt(self.of((distance - left[self._of]) ** 2))

    def _piece(self, rows: np.ndarray) -> np.ndarray:
        """The leading bits of numbers, so few that sums of them are exact."""
        _, exponents = np.frexp(np.maximum.reduceat(np.abs(rows), self._starts, axis=0))
        bits = np.ceil(np.log2(self.counts + 2)).astype(int)
        above = exponents + bits.reshape(-1, *[1] * (rows.ndim - 1))
        large = np.ldexp(1.0, np.minimum(above, _LARGEST))
        large = np.repeat(large, self._repeats, axis=0)
        found: np.ndarray = (large + rows) - large
        return found
