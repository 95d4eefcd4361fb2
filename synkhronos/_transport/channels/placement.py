"""Which member is on which node; ranks are counted node by node."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """The number of members on each node.

    >>> p = Placement((2, 1, 3))
    >>> p.size, p.node_of(2), p.ranks(2), p.within(2, (0, 3, 5)), p.first
    (6, 1, range(3, 6), (0, 2), (0, 2, 3))
    """

    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def first(self) -> tuple[int, ...]:
        return tuple(itertools.accumulate((0, *self.sizes[:-1])))

    def node_of(self, rank: int) -> int:
        return bisect.bisect_right(self.first, rank) - 1

    def ranks(self, node: int) -> range:
        return range(self.first[node], self.first[node] + self.sizes[node])

    def within(self, node: int, members: Iterable[int] | None) -> tuple[int, ...]:
        """The ranks within a node of those members that are on it; None stands for all members."""
        ranks = self.ranks(node)
        if members is None:
            return tuple(range(len(ranks)))
        return tuple(m - ranks.start for m in members if m in ranks)
