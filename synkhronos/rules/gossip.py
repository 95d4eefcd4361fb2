"""GoSGD: members send their parameters to random others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, override

import numpy as np

from synkhronos._checks import check_integer, check_number
from synkhronos._compiling.loops import elementwise
from synkhronos.rules._base import FreeRule, Vector, Way


@dataclass(frozen=True)
class GoSGD(FreeRule):
    """Gossip: after a step, with a small probability, a member sends its parameters to another.

    Each member has a weight a, at first 1 / members. It sends its parameters with half of its
    weight, and keeps the other half. Before a step it merges what has arrived: with (b, x), w' =
    (a w + b x) / (a + b) and a' = a + b. The sum of all weights stays 1.

    Parameters
    ----------
    probability : float, 0 to 1
    seed : int, not negative

    Notes
    -----
    Blot et al., `arXiv:1611.09726 <https://arxiv.org/abs/1611.09726>`_. The weights are those of
    push-sum: Kempe, Dobra and Gehrke, "Gossip-based computation of aggregate information" (2003).

    Cost of a message: one copy of the parameters by the sender, one pass of the receiver.

    Examples
    --------
    >>> from synkhronos import rules
    >>> choose = rules.GoSGD(probability=0.5, seed=1).chooser(rank=0)
    >>> [choose([1, 2]) for _ in range(4)]
    [None, None, 1, 1]
    """

    numbers: ClassVar[tuple[str, ...]] = ("probability",)
    probability: float = 0.01
    seed: int = 0

    @property
    @override
    def way(self) -> Way:
        return "gossip"

    def _check(self) -> None:
        check_number(*self._given("probability"), 0, 1)
        check_integer(*self._given("seed"), 0)

    def chooser(self, rank: int) -> Callable[..., int | None]:
        """A function that says, after each step, to which of the others a member sends; or None.

        Its arguments are the others, and another probability. The answer follows from the seed,
        the rank, and how often it has been called.
        """
        bits = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(rank,)))

        def choose(others: Sequence[int], probability: float = self.probability) -> int | None:
            first, second = (int(n) for n in bits.random_raw(2))
            if not others or first >= probability * 2.0**64:
                return None
            return others[second % len(others)]

        return choose

    def merge(self, w: Vector, weight: float, sent: Vector, sent_weight: float) -> None:
        """Change a member's parameters by what has arrived; the new weight is the sum of both."""
        total = weight + sent_weight
        _mix(w, sent, weight / total, sent_weight / total)


@elementwise
def _mix(w: Vector, sent: Vector, mine: float, theirs: float) -> None:
    for i in range(w.size):
        w[i] = mine * w[i] + theirs * sent[i]
