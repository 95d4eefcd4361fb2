"""A meeting of members, or of nodes: how a round rule changes their vectors and the centre's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from synkhronos._backends.reduction_loops import reduce_block, reduce_into
from synkhronos._plan.rows import edges
from synkhronos._proofs.reductions import Reduction, accumulator, normalized, rounded
from synkhronos._transport.communicators.communicator import Communicator
from synkhronos.extensions._apart.recipe import PARAMETER, STATE
from synkhronos.extensions._step.layout import ALIGN
from synkhronos.rules._base import RoundRule

_BLOCK = 1 << 14  # elements; 64 KB of float32 of some members stay in a core's cache
_ALONE_BELOW = 1 << 12  # elements below which one member treats a vector


@dataclass
class Vectors:
    """One vector of those on this node who meet, flat: of its members, or of the node."""

    kind: str
    own: list[np.ndarray]  # of each of them
    centre: np.ndarray
    # the chunk that this member treats in a meeting
    lo: int
    hi: int
    outer: list[np.ndarray] = field(default_factory=list)
    first: np.ndarray | None = None  # the values that a meeting sets states back to
    total: np.ndarray | None = None  # on several nodes: the mean over all who meet


def first_vectors(kinds: Sequence[str], first: Sequence[np.ndarray]) -> list[Vectors]:
    """The vectors from which members begin, where no meeting treats them."""
    return [Vectors(k, [], f.reshape(-1), 0, 0) for k, f in zip(kinds, first, strict=True)]


class Meeting:
    """How a meeting treats the vectors of those who meet: of members, or of nodes."""

    def __init__(
        self,
        rule: RoundRule | None,
        rows: list[float],  # that each of those who meet has used since the last meeting
        here: slice,
        publish: bool,
        comm: Communicator,
    ) -> None:
        self._rule = rule  # None: only states are averaged, if `publish`
        self._policy = "keep" if rule is None else rule.policy
        # whether members go on from the values of others
        self.swaps = rule is not None and rule.swaps
        # whether members go on from the states that the meeting gives the variables
        self.spreads = self._policy != "keep"
        equal = [1.0 / len(rows)] * len(rows)
        self._rows = normalized(rows) if any(rows) else equal
        self._weights = self._rows if rule is None or rule.by_rows else equal
        self._here = here  # those of them on this node
        # whether variables of the optimizer's states get the mean of all states
        self._publish = publish
        self._comm = comm
        self._scratch: dict[np.dtype, np.ndarray] = {}

    def treats(self, v: Vectors) -> bool:
        """Whether the meeting changes such vectors."""
        if v.kind is STATE:
            return self._publish or self.spreads
        return self._rule is not None

    def reads(self, kind: str) -> bool:
        """Whether the meeting reads the members' vectors of a kind."""
        if kind is STATE:
            averaged = self._policy == "average" or (self._publish and self._policy == "keep")
            return averaged or self.swaps
        return self._rule is not None

    def changes(self, kind: str) -> bool:
        """Whether members go on from other values of a kind."""
        return self.spreads or self.swaps if kind is STATE else self._rule is not None

    def averages(self, v: Vectors) -> bool:
        """Whether it needs the members' mean of such vectors."""
        return v.kind is not STATE or self._policy != "reset"

    def _weights_of(self, v: Vectors) -> list[float]:
        """Of those on this node."""
        return (self._weights if v.kind is PARAMETER else self._rows)[self._here]

    def add_up(self, averaged: list[Vectors]) -> None:
        """On several nodes: the means of these vectors."""
        if self._comm.nodes == 1:
            return

        def fill(i: int, lo: int, hi: int) -> None:
            weights = self._weights_of(averaged[i])
            total = averaged[i].total
            assert total is not None
            if hi > lo and any(weights):
                parts = [own[lo:hi] for own in averaged[i].own]
                reduce_into(total[lo:hi], parts, Reduction.AVG, weights)
                # this node's share of the mean over all nodes
                total[lo:hi] *= sum(weights)
            else:
                total[lo:hi] = 0

        totals = [v.total for v in averaged if v.total is not None]
        self._comm.sum_over_nodes(totals, fill)

    def states(self, own: list[np.ndarray], first: list[np.ndarray]) -> list[np.ndarray] | None:
        """The 0-d states after the meeting; None: each member keeps its own."""
        if not own or not (self.spreads or self._publish):
            return None
        if self._policy == "reset":
            return first
        mine = np.array([float(state) for state in own])
        self._comm.all_reduce([mine], Reduction.AVG, self._rows)
        return list(mine)

    def change(self, treated: list[Vectors]) -> None:
        """Change this member's chunk of these vectors, in all who meet and in the centre."""
        for v in treated:
            for lo in range(v.lo, v.hi, _BLOCK):
                self.treat(v, lo, min(lo + _BLOCK, v.hi))

    def treat(self, v: Vectors, lo: int, hi: int) -> None:
        """Change elements lo to hi."""
        own = [vector[lo:hi] for vector in v.own]
        centre = v.centre[lo:hi]
        if v.kind is PARAMETER:
            assert self._rule is not None
            outer = [vector[lo:hi] for vector in v.outer]
            self._rule.meeting(own, centre, outer, self._mean(v, own, lo, hi), len(self._rows))
            return
        centre[...] = self._mean(v, own, lo, hi) if v.first is None else v.first[lo:hi]
        for vector in own if self.spreads or v.kind is not STATE else ():
            vector[...] = centre

    def _mean(self, v: Vectors, own: list[np.ndarray], lo: int, hi: int) -> np.ndarray:
        if v.total is not None:
            return rounded(v.total[lo:hi], v.centre.dtype)
        dtype = v.centre.dtype
        if accumulator(dtype, Reduction.AVG) != dtype:
            return reduce_block(own, Reduction.AVG, self._weights_of(v), None)
        buffer = self._scratch.get(dtype)
        if buffer is None:
            buffer = self._scratch[dtype] = np.empty(_BLOCK, dtype)
        return reduce_block(own, Reduction.AVG, self._weights_of(v), buffer[: hi - lo])


def chunk(number: int, size: int, rank: int, members: int) -> tuple[int, int]:
    """The elements of a vector that a member of the node treats; a short one goes to one member.

    >>> [chunk(0, 10_000, rank, 2) for rank in (0, 1)], chunk(1, 100, 0, 2), chunk(1, 100, 1, 2)
    ([(0, 4992), (4992, 10000)], (0, 0), (0, 100))
    """
    if size < _ALONE_BELOW:
        return (0, size) if rank == number % members else (0, 0)
    borders = edges(size // ALIGN, members)
    end = size if rank == members - 1 else borders[rank + 1] * ALIGN
    return borders[rank] * ALIGN, end
