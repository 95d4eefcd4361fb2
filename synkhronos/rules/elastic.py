"""EASGD: members and a centre attract each other, in turns or in meetings."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self, override

from synkhronos._checks import check_flag, check_integer, check_number, or_none
from synkhronos._compiling.loops import elementwise
from synkhronos._errors import InputError
from synkhronos.rules._base import RoundRule, Turn, TurnRule, Vector, Vectors, Way


@dataclass(frozen=True)
class EASGD(TurnRule, RoundRule):
    """Elastic averaging: after each period a member moves to the centre, and the centre to it.

    With d = alpha (w - centre): w' = w - d; centre' = centre + d. An exchange stands between two
    steps. With `meet`, all members exchange at once: centre' = centre + the sum of all d.

    Parameters
    ----------
    period : int, at least 1
    alpha : float, 0 to 1, optional
        Default: 0.9 divided by the number of members. With `meet` it must be less than
        2 / (members + 1), since training diverges where the loss is flat otherwise.
    meet : bool
        Whether members meet, or each exchanges in its own turn.

    Notes
    -----
    Zhang, Choromanska and LeCun, `arXiv:1412.6651 <https://arxiv.org/abs/1412.6651>`_, equations 5
    and 6, and algorithm 1. There the gradient is that of the parameters before the exchange.

    Cost of an exchange: the member's parameters and the centre are read and written once.

    Examples
    --------
    >>> from synkhronos import rules
    >>> str(rules.EASGD(period=10).for_members(4))
    'EASGD(alpha=0.225)'
    """

    numbers: ClassVar[tuple[str, ...]] = ("alpha",)
    by_rows: ClassVar[bool] = False
    period: int = 10
    alpha: float | None = None
    meet: bool = False

    def _check(self) -> None:
        check_integer(*self._given("period"), 1)
        or_none(check_number, *self._given("alpha"), 0, 1)
        check_flag(*self._given("meet"))

    @property
    @override
    def way(self) -> Way:
        return "meets" if self.meet else "turns"

    @property
    @override
    def interval(self) -> float:
        return math.inf if self.alpha == 0 else self.period

    @override
    def for_members(self, members: int) -> Self:
        alpha = 0.9 / members if self.alpha is None else self.alpha
        limit = 2 / (members + 1)
        if self.meet and alpha >= limit:
            raise InputError(
                f"EASGD(meet=True, alpha={alpha:g}) on {members} members diverges, the limit is "
                f"2/(members + 1) = {limit:.3g}: leave alpha out ({0.9 / members:.3g})"
            )
        return replace(self, alpha=alpha)

    @override
    def exchange(self, turn: Turn, w: Vector, own: Vectors, centre: Vectors, new: Vectors) -> None:
        _attract(w, centre[0], new[0], self.alpha)

    @override
    def meeting(
        self, members: Vectors, centre: Vector, outer: Vectors, mean: Vector, count: int
    ) -> None:
        for w in members:
            w -= self.alpha * (w - centre)
        assert self.alpha is not None
        centre += (count * self.alpha) * (mean - centre)


@elementwise
def _attract(w: Vector, c: Vector, new: Vector, alpha: float) -> None:
    for i in range(w.size):
        d = alpha * (w[i] - c[i])
        w[i] -= d
        new[i] = c[i] + d
