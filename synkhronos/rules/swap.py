"""Swap: members in random pairs exchange what they have trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, override

import numpy as np

from synkhronos._checks import check_integer
from synkhronos.rules._base import RoundRule, Vector, Vectors


@dataclass(frozen=True)
class Swap(RoundRule):
    """After each period, random pairs of members exchange parameters and the optimizer's states.

    So each model sees the rows of all members. The centre, which the variables hold, is the mean of
    the members, weighted by rows; no member goes on from it.

    Parameters
    ----------
    period : int, at least 1
    seed : int, not negative
        The pairs of a meeting follow from the seed and the number of the meeting.

    Notes
    -----
    Im et al., `arXiv:1612.04021 <https://arxiv.org/abs/1612.04021>`_, for the discriminators of
    generative adversarial networks. With an odd number of members one of them keeps its own.

    Cost of a meeting: as `Average`.

    Examples
    --------
    >>> from synkhronos import rules
    >>> rules.Swap(period=5, seed=1).partners(0, 4)
    [2, 3, 0, 1]
    """

    swaps: ClassVar[bool] = True
    period: int = 1
    seed: int = 0

    def _check(self) -> None:
        check_integer(*self._given("period"), 1)
        check_integer(*self._given("seed"), 0)

    @override
    def partners(self, number: int, members: int) -> list[int]:
        """For each rank, the rank whose values it gets in a meeting; the same in all members."""
        bits = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(number,)))
        order = np.argsort(bits.random_raw(members), kind="stable").tolist()
        found = list(range(members))
        for a, b in zip(order[::2], order[1::2], strict=False):
            found[a], found[b] = b, a
        return found

    @override
    def meeting(
        self, members: Vectors, centre: Vector, outer: Vectors, mean: Vector, count: int
    ) -> None:
        centre[...] = mean
