"""Which member is on which node: ranks are counted node by node."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """Members by node.

    >>> p = Placement((2, 1, 3))
    >>> p.size, p.node_of(2), p.ranks(2), p.local(2, (0, 3, 5)), p.first
    (6, 1, range(3, 6), (0, 2), (0, 2, 3))
    """

    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """All members."""
        return sum(self.sizes)

    @property
    def first(self) -> tuple[int, ...]:
        """The first rank of each node."""
        return tuple(itertools.accumulate((0, *self.sizes[:-1])))

    def node_of(self, rank: int) -> int:
        """The node of a member."""
        return bisect.bisect_right(self.first, rank) - 1

    def ranks(self, node: int) -> range:
        """The members of a node."""
        return range(self.first[node], self.first[node] + self.sizes[node])

    def local(self, node: int, members: Iterable[int] | None) -> tuple[int, ...]:
        """Those of the members that are on a node, by their places in it; None: all members."""
        ranks = self.ranks(node)
        if members is None:
            return tuple(range(len(ranks)))
        return tuple(m - ranks.start for m in members if m in ranks)
