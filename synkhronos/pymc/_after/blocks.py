"""Which draws are computed together: blocks, each of which one process computes and writes."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BYTES = 8 << 20  # of the results of a block


def block_length(sample_shape: Sequence[int], draw_bytes: int) -> int:
    """The number of draws of a block: neighbours along the last dimension of the draws.

    >>> block_length((4, 1000), 400_000), block_length((4, 10), 8), block_length((), 8)
    (20, 10, 1)
    """
    longest = sample_shape[-1] if sample_shape else 1
    return max(1, min(longest, _BYTES // max(1, draw_bytes)))


def blocks(sample_shape: Sequence[int], length: int) -> list[range]:
    """All blocks as ranges of draws, which are numbered over all dimensions; none spans chains.

    >>> blocks((2, 5), 3)
    [range(0, 3), range(3, 5), range(5, 8), range(8, 10)]
    """
    row = sample_shape[-1] if sample_shape else 1
    rows = math.prod(sample_shape[:-1])
    return [
        range(start + first, start + min(first + length, row))
        for start in range(0, rows * row, max(1, row))
        for first in range(0, row, length)
    ]


def share(of: Sequence[range], rank: int, size: int) -> Sequence[range]:
    """The blocks of one of several processes, spread over all draws so that all end together."""
    return of[rank::size]
