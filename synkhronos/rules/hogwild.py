"""Hogwild: all members change one copy of the parameters, without waiting for one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import override

from synkhronos.rules._base import FreeRule, Way


@dataclass(frozen=True)
class Hogwild(FreeRule):
    """Each member computes gradients at the centre, and changes it in place, element by element.

    Nothing keeps two members from changing an element at the same time, in which case one of the
    changes is lost. So runs are never equal to the last bit, and points are not of one version.
    The optimizer must work element by element; each member has states of its own. A step whose loss
    is not finite is dropped.

    Notes
    -----
    Niu et al., `arXiv:1106.5730 <https://arxiv.org/abs/1106.5730>`_.

    Cost: no vector beside the one that all members have in common.

    Examples
    --------
    >>> from synkhronos import rules
    >>> str(rules.Hogwild())
    'Hogwild()'
    """

    @property
    @override
    def way(self) -> Way:
        return "races"
