"""How many items a batch has: a pure plan, from the seconds that items take.

A pool takes some milliseconds for a batch. Batches of a second make that less than 3 % of the time,
and what is lost with a worker is little. The last batches are short, so that workers end together.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable

BATCH_SECONDS = 1.0
AHEAD = 2  # batches of a slot that are submitted: one runs while the next one is on its way
_REMEMBERED = 64  # items


def batch_size(seconds: float, left: int, slots: int) -> int:
    """The number of items of the next batch.

    Parameters
    ----------
    seconds : float
        That an item takes.
    left : int
        Items that no batch has.
    slots : int
        Batches that run at the same time.

    Examples
    --------
    >>> batch_size(0.05, 1000, 2), batch_size(0.05, 30, 2), batch_size(60.0, 1000, 2)
    (20, 8, 1)
    """
    wanted = math.ceil(BATCH_SECONDS / seconds) if seconds > 0 else left
    return max(1, min(wanted, math.ceil(left / (AHEAD * slots))))


class Pace:
    """The seconds that items take now: the median of the latest ones.

    The first item of a process is compiled, and takes much longer than the others.
    """

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_REMEMBERED)

    def note(self, seconds: Iterable[float]) -> None:
        """Take note of items that have ended."""
        self._latest.extend(seconds)

    @property
    def seconds(self) -> float:
        """Of an item; as long as a batch, before any has ended."""
        return statistics.median(self._latest) if self._latest else BATCH_SECONDS
