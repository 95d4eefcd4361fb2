"""GEM: members add gradients to a centre as far as its own momentum has not done so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, override

from synkhronos._checks import check_integer, check_number
from synkhronos._compiling.loops import elementwise
from synkhronos.rules._base import Turn, TurnRule, Vector, Vectors

_TINY = 1e-12
_MOST = 5.0  # of the factor of an element


@dataclass(frozen=True)
class GEM(TurnRule):
    """Gradient energy matching: a member's step is scaled by what others have done meanwhile.

    With u = lr (w - read), the member's displacement, element by element: m' = momentum m + u; z =
    centre - last; p = (kappa abs(m') - abs(z)) / abs(u), from 0 to 5; centre' = centre + p u; w' =
    read' = centre'; last' = centre.

    Parameters
    ----------
    period : int, at least 1
    lr : float
        Factor of the displacement. The optimizer has the learning rate.
    momentum : float, 0 to 1
    kappa : float
        How much energy the centre's moves get, relative to those of momentum SGD.

    Notes
    -----
    Hermans and Louppe, `arXiv:1805.08469 <https://arxiv.org/abs/1805.08469>`_. Members train by
    plain gradient descent, since the rule adds the momentum.

    Cost of an exchange: as `Downpour`, and two more vectors of the member.

    Examples
    --------
    >>> from synkhronos import rules
    >>> str(rules.GEM(kappa=1))
    'GEM(kappa=1)'
    """

    numbers: ClassVar[tuple[str, ...]] = ("lr", "momentum", "kappa")
    own: ClassVar[tuple[str, ...]] = ("read", "momentum", "last")
    period: int = 1
    lr: float = 1.0
    momentum: float = 0.9
    kappa: float = 2.0

    def _check(self) -> None:
        check_integer(*self._given("period"), 1)
        check_number(*self._given("lr"), 0)
        check_number(*self._given("momentum"), 0, 1)
        check_number(*self._given("kappa"), 0)

    @override
    def exchange(self, turn: Turn, w: Vector, own: Vectors, centre: Vectors, new: Vectors) -> None:
        read, m, last = own
        numbers = self.lr, self.momentum, self.kappa, _TINY, _MOST
        _match(w, read, m, last, centre[0], new[0], *numbers)


@elementwise
def _match(
    w: Vector,
    read: Vector,
    m: Vector,
    last: Vector,
    c: Vector,
    new: Vector,
    lr: float,
    momentum: float,
    kappa: float,
    tiny: float,
    most: float,
) -> None:
    least = tiny - tiny  # a zero of this dtype
    for i in range(w.size):
        u = lr * (w[i] - read[i])
        m[i] = momentum * m[i] + u
        share = (kappa * abs(m[i]) - abs(c[i] - last[i])) / (abs(u) + tiny)
        changed = c[i] + min(max(share, least), most) * u
        last[i] = c[i]
        new[i] = changed
        w[i] = changed
        read[i] = changed
