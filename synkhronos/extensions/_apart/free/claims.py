"""Which rows a member's next step uses: each batch of an epoch goes to one member."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._transport.shared_state.peers import Peers
from synkhronos.extensions._apart.free.pages import AT_WORK, CLAIMED, Page
from synkhronos.extensions._apart.free.turns import CLAIM_LOCK
from synkhronos.extensions._rows.batches import Batches


@dataclass(frozen=True)
class BatchOrder:
    """The batches of several epochs, by number."""

    state: dict[str, Any]  # of the Batches at first: it may be in the middle of an epoch
    # as for the Batches
    size: int
    last: object
    # batches of the first epoch, and of every other one
    first: int
    others: int
    total: int  # batches in all
    orders: Batches  # with the same orders

    @staticmethod
    def of(batches: Batches, epochs: int) -> BatchOrder:
        """The batches of this number of epochs; the first epoch may have begun."""
        state, others = batches.state(), len(batches)
        left = batches.n - state["row"]
        first = left // batches.size if batches.last == "drop" else -(-left // batches.size)
        total = first + (epochs - 1) * others
        alike = batches.alike()
        return BatchOrder(state, batches.size, batches.last, first, others, total, alike)

    def place(self, number: int) -> tuple[int, int]:
        """The epoch of a batch, and its row in the order of this epoch."""
        if number < self.first:
            return self.state["epoch"], self.state["row"] + number * self.size
        epoch, index = divmod(number - self.first, self.others)
        return self.state["epoch"] + 1 + epoch, index * self.size

    def after(self, number: int) -> dict[str, Any]:
        """The state of the Batches before this batch."""
        epoch, row = self.place(number)
        return {**self.state, "epoch": epoch, "row": row}


class RowsOfBatches:
    """The rows of batches by number; it keeps the order of one epoch."""

    def __init__(self, order: BatchOrder) -> None:
        self._order = order
        self._batches = order.orders
        self._epoch = -1
        self._rows = np.zeros(0, np.int64)

    def __getitem__(self, number: int) -> np.ndarray:
        epoch, row = self._order.place(number)
        if epoch != self._epoch:
            self._epoch, self._rows = epoch, self._batches.order(epoch)
        return self._rows[row : row + self._order.size]


class Claims:
    """The batches of one member.

    A member claims the next batch under a lock. The batch that a dead member has worked on is
    claimed by another. With `fixed`, member r takes every p-th batch from the r-th on, and nobody
    takes those of a dead member.
    """

    def __init__(self, pages: Sequence[Page], peers: Peers, total: int, fixed: bool) -> None:
        self._pages = pages
        self._peers = peers
        self._total = total
        self._fixed = fixed
        self._mine = pages[peers.rank]
        self._again: list[int] = []

    def next(self, stopped: Callable[[], bool]) -> int | None:
        """The number of the next batch; None after the last, or if the member shall stop."""
        words = self._mine.words
        if self._again:
            found = self._again.pop(0)
        elif self._fixed:
            found = self._following(self._peers.rank)
            if found < self._total:
                words[CLAIMED] = found + 1
        else:
            if not self._peers.lock(CLAIM_LOCK, stopped):
                return None
            try:
                self._peers.glance()
                return self._claim()
            finally:
                self._peers.unlock(CLAIM_LOCK)
        words[AT_WORK] = found + 1 if found < self._total else 0
        return found if found < self._total else None

    def reached(self) -> int:
        """The first batch that has not been claimed, and that a member will claim."""
        if not self._fixed:
            return max(page.words[CLAIMED] for page in self._pages)
        following = [self._following(r) for r in (self._peers.rank, *self._peers.others())]
        return min(self._total, *following)

    def _following(self, rank: int) -> int:
        """With fixed shares: the batch that a member claims next."""
        claimed = self._pages[rank].words[CLAIMED]
        return int(claimed - 1 + self._peers.size if claimed else rank)

    def _claim(self) -> int | None:
        words = self._mine.words
        for rank in self._peers.dead:
            lost = self._pages[rank].words[AT_WORK]
            if lost and all(page.taken_over[rank] != lost for page in self._pages):
                words[AT_WORK] = lost  # first, so that a death in between loses no batch
                words[CLAIMED] = max(words[CLAIMED], lost)
                self._mine.taken_over[rank] = lost
                return int(lost - 1)
        found = max(page.words[CLAIMED] for page in self._pages)
        if found >= self._total:
            words[AT_WORK] = 0
            return None
        words[AT_WORK] = found + 1
        words[CLAIMED] = found + 1
        return int(found)

    def again(self, numbers: Sequence[int]) -> None:
        """Use these batches again, since the steps with them are dropped."""
        self._again += numbers
