"""Words that each member of a run writes, and all others read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from synkhronos._transport.shared_state.ordered_words import ordered

# First cache line: turns.
ASK = 0  # ticket of the turn that this member waits for; 0: none
DONE = 1  # latest version of the centre that it has committed
PRESENT = 2  # 1 while it takes part
ENDED = 3  # 1 once it takes in nothing more; FINAL once its values stay
CLOCK = 4  # steps, those among them that others have made in its absence; for a bound

# Second: rows.
CLAIMED = 8  # 1 more than the latest batch that it has claimed; 0: none
AT_WORK = 9  # 1 more than the batch that it works on; 0: none

# Third: what it has done.
STEPS = 16
ROWS = 17
EXCHANGES = 18
STALENESS = 19  # sum over the exchanges
STALEST = 20
WAITED = 21  # nanoseconds
LATEST = 22  # step: nanoseconds of the monotonic clock
REFUSED = 23  # exchanges
PUT_OFF = 24  # turns that another member held for too long

# Fourth: messages of gossip.
SENT = 32  # the latest message: its number times the members, plus the rank that it is for
SHOWN = 34  # latest request whose values it shows
REQUEST = 35  # in the master's page: number of the latest request to show values

FINAL = 2

WORDS = 40
# Then, for each rank: the latest message of that rank that this member has merged, and 1 more than
# the batch of that rank, now dead, that this member has taken over.

# In real numbers.
LOSS = 0  # sum over the rows of steps with a finite loss
LOSS_ROWS = 1
WEIGHT = 2  # GoSGD's weight of this member
SENT_WEIGHT = 3
SHOWN_WEIGHT = 4
REALS = 8


class Page:
    """One member's words."""

    def __init__(self, words: np.ndarray, reals: np.ndarray, members: int) -> None:
        self._arrays = words, reals
        view = memoryview(words)  # elements are read and written faster than an array's
        self.words = ordered(view)
        self.reals: Any = memoryview(reals)
        self.merged = ordered(view[WORDS : WORDS + members])
        self.taken_over = ordered(view[WORDS + members : WORDS + 2 * members])

    def clear(self) -> None:
        """Set all to zero."""
        for array in self._arrays:
            array[...] = 0


def clear_pages(pages: Sequence[Page]) -> None:
    """Set all words to zero, and the weights of all members to equal ones."""
    for page in pages:
        page.clear()
        page.reals[WEIGHT] = 1 / len(pages)


def length(members: int) -> int:
    """The number of words of a page."""
    return WORDS + 2 * members


def version_of(pages: Sequence[Page]) -> int:
    """The latest version of the centre."""
    return int(max(page.words[DONE] for page in pages))
