"""Rules that move a centre by the mean of the members: Average, SlowMo, DiLoCo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, override

from synkhronos._checks import check_integer, check_number, check_word
from synkhronos.rules._base import STATES, RoundRule, Vector, Vectors


@dataclass(frozen=True)
class Average(RoundRule):
    """Local SGD: members train apart, and after each period all take their mean.

    The mean is weighted by the rows that each member has used since the last meeting.

    Parameters
    ----------
    period : int, at least 1
        Steps between two meetings.
    warmup : int
        The first steps, which are synchronous (post-local SGD).
    state : {"keep", "average", "reset"}
        The fate of the optimizer's states at a meeting: each member keeps its own, all take
        the mean, or all begin with the first ones again.

    Notes
    -----
    Local SGD: Stich, `arXiv:1805.09767 <https://arxiv.org/abs/1805.09767>`_. Post-local SGD: Lin et
    al., `arXiv:1808.07217 <https://arxiv.org/abs/1808.07217>`_.

    Cost of a meeting: every member's parameters are read once and written once; two waits.

    Examples
    --------
    >>> from synkhronos import rules
    >>> str(rules.Average(period=10, warmup=100))
    'Average(period=10, warmup=100)'
    """

    period: int = 1
    warmup: int = 0
    state: str = "keep"

    def _check(self) -> None:
        check_integer(*self._given("period"), 1)
        check_integer(*self._given("warmup"), 0)
        check_word(*self._given("state"), STATES)

    @override
    def move(self, centre: Vector, outer: Vectors, mean: Vector) -> None:
        centre[...] = mean


@dataclass(frozen=True)
class SlowMo(RoundRule):
    """Slow momentum: the centre moves by a momentum of the members' mean displacement.

    With D = centre - mean: u' = momentum u + D; centre' = centre - lr u'. All members go on from
    the new centre.

    Parameters
    ----------
    period : int, at least 1
    momentum : float, 0 to 1
    lr : float
        1 without momentum is `Average`.
    state : {"keep", "average", "reset"}
        As for `Average`.

    Notes
    -----
    Wang et al., `arXiv:1910.00643 <https://arxiv.org/abs/1910.00643>`_, algorithm 1, where u is
    divided by the inner learning rate, which is taken as constant here. It is also block-wise
    model-update filtering with classical block momentum (Chen and Huo, ICASSP 2016).

    Cost of a meeting: as `Average`, and one more vector a node.

    Examples
    --------
    >>> from synkhronos import rules
    >>> str(rules.SlowMo(momentum=0.6))
    'SlowMo(momentum=0.6)'
    """

    outer: ClassVar[tuple[str, ...]] = ("momentum",)
    numbers: ClassVar[tuple[str, ...]] = ("momentum", "lr")
    period: int = 48
    momentum: float = 0.5
    lr: float = 1.0
    state: str = "keep"

    def _check(self) -> None:
        check_integer(*self._given("period"), 1)
        check_number(*self._given("momentum"), 0, 1)
        check_number(*self._given("lr"), 0)
        check_word(*self._given("state"), STATES)

    @override
    def move(self, centre: Vector, outer: Vectors, mean: Vector) -> None:
        [u] = outer
        u *= self.momentum
        u += centre - mean
        centre -= self.lr * u


@dataclass(frozen=True)
class DiLoCo(RoundRule):
    """Nesterov momentum on the mean displacement of members that train apart for long.

    With D = centre - mean: u' = momentum u + D; centre' = centre - lr (D + momentum u'). All
    members go on from the new centre, with their own states.

    Parameters
    ----------
    period : int, at least 1
    lr : float
    momentum : float, 0 to 1
    state : {"keep", "average", "reset"}
        As for `Average`.

    Notes
    -----
    Douillard et al., `arXiv:2311.08105 <https://arxiv.org/abs/2311.08105>`_, algorithm 1, with the
    paper's outer optimizer. The paper's inner optimizer is AdamW.

    Cost of a meeting: as `Average`, and one more vector a node.

    Examples
    --------
    >>> from synkhronos import rules
    >>> str(rules.DiLoCo(period=100))
    'DiLoCo(period=100)'
    """

    outer: ClassVar[tuple[str, ...]] = ("momentum",)
    numbers: ClassVar[tuple[str, ...]] = ("lr", "momentum")
    period: int = 500
    lr: float = 0.7
    momentum: float = 0.9
    state: str = "keep"

    def _check(self) -> None:
        check_integer(*self._given("period"), 1)
        check_number(*self._given("lr"), 0)
        check_number(*self._given("momentum"), 0, 1)
        check_word(*self._given("state"), STATES)

    @override
    def move(self, centre: Vector, outer: Vectors, mean: Vector) -> None:
        [u] = outer
        displacement = centre - mean
        u *= self.momentum
        u += displacement
        displacement += self.momentum * u
        centre -= self.lr * displacement
