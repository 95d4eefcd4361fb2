"""Nodes: one rule in each node, another one between the nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self, override

from synkhronos._checks import shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos.rules._base import FreeRule, RoundRule, Rule, Way, way_of


@dataclass(frozen=True)
class Nodes(Rule):
    """The members of a node train by one rule; the nodes' centres meet by another.

    Each node trains until its members have made ``between.period`` steps on average; with
    ``inside=None`` these are steps of all members of the node together. Then the nodes meet: to
    `between`, a node is one member, weighted by its rows. All members go on from their node's
    centre, with the optimizer's states that they have.

    Parameters
    ----------
    inside : FreeRule, optional
        Not `GoSGD`, which has no centre, nor `Downpour` with ``centre=``. None: the members of a
        node make synchronous steps, as without a rule.
    between : RoundRule
        Not `Swap`.

    Notes
    -----
    A node as one worker: Langer et al., `arXiv:1712.05878 <https://arxiv.org/abs/1712.05878>`_.

    Cost of a meeting: each node's centre is sent once and received once, by one transfer of MPI.

    Examples
    --------
    >>> from synkhronos import rules
    >>> str(rules.Nodes(inside=rules.EASGD(period=5), between=rules.DiLoCo(period=100)))
    'Nodes(inside=EASGD(period=5), between=DiLoCo(period=100))'
    """

    inside: FreeRule | None
    between: RoundRule

    @property
    @override
    def way(self) -> Way:
        return "nodes"

    def _check(self) -> None:
        if way_of(self.between) != "meets":
            raise InputTypeError(
                f"rules.Nodes: between={shown(self.between)} is not a round rule, such as "
                "DiLoCo(period=100)"
            )
        if self.between.swaps:
            raise InputError("rules.Nodes: nodes do not swap: use Average, SlowMo, DiLoCo or EASGD")
        inside = self.inside
        if inside is None:
            return
        if way_of(inside) not in ("turns", "gossip", "races"):
            raise InputTypeError(f"rules.Nodes: inside={shown(inside)} is not a free rule, or None")
        if inside.way == "gossip":
            raise InputError("rules.Nodes: GoSGD has no centre of a node: use another rule inside")
        if inside.centre is not None:
            raise InputError(
                f"rules.Nodes: inside={inside} has an optimizer at each node's centre, which "
                "between= moves too: leave centre= out, and use SlowMo or DiLoCo between nodes"
            )

    def for_nodes(self, members: int, nodes: int) -> Self:
        """The rule for these numbers of members on a node and of nodes."""
        inside = None if self.inside is None else self.inside.for_members(members)
        return replace(self, inside=inside, between=self.between.for_members(nodes))
