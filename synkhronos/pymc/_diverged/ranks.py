"""Whether divergences are where a quantity is small or large, or by chance.

Divergences gather where the posterior is too curved for the step size, such as the neck of a
funnel: Betancourt and Girolami (2013, arXiv:1312.0906), and Betancourt (2017, arXiv:1701.02434).

The position of a quantity is its rank among all draws, from 0 to 1. A monotone transformation
changes no rank. So the ranks of a scale are those of its logarithm, which is what NUTS moves.
The mean rank at divergences is the statistic of Mann and Whitney: the probability that a quantity
is larger at a divergence than elsewhere. It is about 1/2 if divergences have nothing to do with it.

Draws are correlated along a chain, and divergences come in runs. So the means that chance gives
are those of the same divergences at other times: all rotations of them along the draws, which
keep both correlations. Of each rotation the largest deviation of all quantities counts, as in the
permutation tests of Westfall and Young (1993). So no more is found by chance in a model of many
variables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LEAST_DEVIATION = 0.1  # of a mean rank from 1/2: a smaller one explains little
MOST_CHANCE = 0.05


@dataclass(frozen=True)
class Ranks:
    """The ranks of a quantity, of all draws and at divergences."""

    draws: np.ndarray
    divergences: np.ndarray

    @staticmethod
    def of(draws: np.ndarray, divergences: np.ndarray) -> Ranks:
        """The ranks of values among those of all draws; of equal ones, their mean.

        >>> Ranks.of(np.array([3.0, 1.0, 2.0, 2.0]), np.array([2.0])).divergences
        array([0.5])
        """
        ordered = np.sort(draws)

        def ranked(values: np.ndarray) -> np.ndarray:
            below, upto = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
            return (below + upto) / (2 * len(ordered))

        return Ranks(ranked(draws), ranked(divergences))


class Rotations:
    """The largest deviations of mean ranks from 1/2, if divergences came at other times."""

    def __init__(self, diverging: np.ndarray) -> None:
        self._draws, self._count = len(diverging), diverging.sum()
        self._spectrum = np.conj(np.fft.rfft(diverging))
        self._most = np.zeros(self._draws)

    def add(self, ranks: Ranks) -> float:
        """Note the deviations of a quantity; returns its mean rank at divergences."""
        spectrum = np.fft.rfft(ranks.draws - 0.5) * self._spectrum
        sums = np.fft.irfft(spectrum, self._draws)
        np.maximum(self._most, abs(sums) / self._count, out=self._most)
        return float(ranks.divergences.mean())

    def chance(self, mean: float) -> float:
        """The share of rotations in which some mean rank deviates as much from 1/2."""
        return float(np.mean(self._most >= abs(mean - 0.5) - 1e-9))
