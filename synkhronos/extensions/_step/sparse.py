"""A member's part in the sum of the largest elements of the nodes' gradients; see `TopK`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytensor
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._errors import InputError
from synkhronos._plan.top_k import MOST, Sparse, largest, sum_of_largest
from synkhronos._plan.transfers import Gather, Plan
from synkhronos._transport.communicators.communicator import Communicator
from synkhronos.extensions._step.flat import FlatRecipe
from synkhronos.extensions._step.partition import Partition
from synkhronos.extensions.updates._slots import names_of

Sums = Callable[[int, int, int], np.ndarray | float]


class SparseSum:
    """The gradients of a node, what it sends of them, and what it keeps."""

    def __init__(
        self,
        recipe: FlatRecipe,
        rank: int,  # this member's, on its node
        node: int,  # its number
        accumulated: np.ndarray,
        totals: Sequence[np.ndarray],  # memory of the node for the step's gradient, by bucket
        residuals: Sequence[np.ndarray],  # by parameter, a row for each node
    ) -> None:
        assert recipe.sparse is not None
        # memory of the node, bucket after bucket, for the sum of gradient and residual
        self._accumulated = accumulated
        self._residuals = [r.reshape(len(r), -1) for r in residuals]
        self._node = node
        self._starts = np.cumsum([0, *(b.length for b in recipe.buckets)])
        by_bucket = [
            accumulated[a : a + len(t)] for a, t in zip(self._starts, totals, strict=False)
        ]
        self._totals = list(totals)
        self._chunks = []
        self._mine, self._every = [], []
        params = sorted(t.param for b in recipe.buckets for t in b.placements)
        own = {p: rows[node] for p, rows in zip(params, self._residuals, strict=True)}
        for i, (b, sums) in enumerate(zip(recipe.buckets, by_bucket, strict=True)):
            self._chunks.append((i, b.borders[rank], b.borders[rank + 1], sums))
            for lo, hi, t in b.pieces(rank):
                self._mine.append((sums[lo:hi], own[t.param][lo - t.start : hi - t.start]))
            for t in b.placements:
                self._every.append((sums[t.start : t.start + t.size], own[t.param]))
        self.count = recipe.sparse.count(sum(t.size for b in recipe.buckets for t in b.placements))

    def accumulate(self, summed: Sums) -> None:
        """Add this member's chunk of the node's gradient to the residual.

        ``summed(i, lo, hi)`` gives elements lo to hi of bucket i.
        """
        for i, lo, hi, sums in self._chunks:
            if hi > lo:
                self._totals[i][lo:hi] = 0
                sums[lo:hi] = summed(i, lo, hi)
        for piece, residual in self._mine:
            piece += residual

    def exchange(self, comm: Communicator) -> None:
        """In a leader, after all members have accumulated: exchange, and write the gradient."""
        sums, k = self._accumulated, self.count
        mine = None
        if np.isfinite(sums).all():
            numbers = largest(sums, k)
            mine = Sparse(numbers, sums[numbers])
        found = comm.run_between_nodes(sum_of_largest(mine, k, self._node, comm.nodes))
        # as a dense sum would be: NaN on all nodes. What was kept stays so
        if found is None or mine is None:
            for piece, residual in self._every:
                piece[...] = residual
            for total in self._totals:
                total[...] = np.nan
            return
        cuts = np.searchsorted(found.numbers, self._starts)
        for total, start, a, b in zip(self._totals, self._starts, cuts, cuts[1:], strict=False):
            total[found.numbers[a:b] - start] = found.values[a:b]
        # what has been added is kept no longer
        sums[np.intersect1d(mine.numbers, found.numbers, assume_unique=True)] = 0

    def keep(self) -> None:
        """Write this member's chunk of the new residual, in place."""
        for piece, residual in self._mine:
            residual[...] = piece

    def collect(self, comm: Communicator) -> None:
        """In a leader: write the residuals of all nodes to this node's memory."""
        for rows, found in zip(
            self._residuals,
            comm.run_between_nodes(_rows([rows[self._node] for rows in self._residuals])),
            strict=True,
        ):
            for node, row in enumerate(found):
                if node != self._node:
                    rows[node] = row


def _rows(mine: Sequence[np.ndarray]) -> Plan[list[list[np.ndarray]]]:
    found = []
    for row in mine:
        found.append((yield Gather(row)))
    return found


def residuals_of(
    params: Sequence[SharedVariable], partition: Partition, nodes: int
) -> tuple[SharedVariable, ...]:
    """A variable for the residuals of each parameter that a rule changes: a row for each node."""
    moved = sorted(p for unit in partition.units for p in unit.params)
    shapes = [params[i].get_value(borrow=True).shape for i in moved]
    if sum(int(np.prod(s, dtype=np.int64)) for s in shapes) >= MOST // 2:
        raise InputError(
            f"TopK: the parameters have {MOST // 2} elements or more, which are numbered by 32 "
            "bits: leave exchange= out, or use HalfPrecision"
        )
    names = names_of(params)
    return tuple(
        pytensor.shared(
            np.zeros((nodes, *shape), params[i].type.dtype), name=f"residual of {names[i]}"
        )
        for i, shape in zip(moved, shapes, strict=True)
    )
