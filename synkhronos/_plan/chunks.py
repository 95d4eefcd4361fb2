"""Cuts flat vectors into chunks that are sent while the rest of the vectors is still computed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

LEAST_BYTES = 1 << 17  # of what is sent at once: each chunk costs about 0.1 ms of a core
MOST_BYTES = 1 << 18  # the sum of a chunk comes back only when all of it has arrived


class Range(NamedTuple):
    """Elements `lo` to `hi` of a vector."""

    vector: int
    lo: int
    hi: int


class Chunk(NamedTuple):
    """A range that is whole once `after` values have been computed."""

    vector: int
    lo: int
    hi: int
    after: int

    def share(self, node: int, nodes: int) -> tuple[int, int]:
        """The elements that a node adds up for all.

        >>> [Chunk(0, 10, 17, 1).share(node, 2) for node in range(2)]
        [(10, 13), (13, 17)]
        """
        length = self.hi - self.lo
        return self.lo + length * node // nodes, self.lo + length * (node + 1) // nodes


def chunks(
    # the places of each value, in the order in which they are computed
    values: Sequence[Sequence[Range]],
    itemsizes: Sequence[int],  # bytes of an element of each vector
    # bytes of a chunk. A smaller one is sent only where no value follows that lies beside it
    least: int = LEAST_BYTES,
    most: int = MOST_BYTES,
) -> list[Chunk]:
    """The chunks of values that are computed one after the other.

    >>> values = [[Range(0, 6, 9)], [Range(0, 4, 6)], [Range(1, 0, 1)], [Range(0, 0, 4)]]
    >>> [tuple(chunk) for chunk in chunks(values, [8, 4], 40, 48)]
    [(0, 4, 9, 2), (0, 0, 4, 4), (1, 0, 1, 4)]
    """
    found: list[Chunk] = []
    waiting: list[Range] = []
    for number, ranges in enumerate(values, 1):
        waiting += ranges
        nbytes = sum((r.hi - r.lo) * itemsizes[r.vector] for r in waiting)
        if nbytes < least and number < len(values):
            continue
        for vector, lo, hi in _joined(waiting):
            pieces = max(1, -(-(hi - lo) * itemsizes[vector] // most))
            cuts = [lo + (hi - lo) * k // pieces for k in range(pieces + 1)]
            found += [Chunk(vector, a, b, number) for a, b in itertools.pairwise(cuts)]
        waiting = []
    return found


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """The same elements in as few ranges as possible."""
    found: list[Range] = []
    for each in sorted(ranges):
        last = found[-1] if found else None
        if last is not None and (last.vector, last.hi) == (each.vector, each.lo):
            found[-1] = Range(last.vector, last.lo, each.hi)
        else:
            found.append(each)
    return found
