"""The centre of a run, in two versions, of which one is whole at any time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from synkhronos._transport.shared_state.ordered_words import IS_ORDERED
from synkhronos.extensions._apart.free.pages import DONE, Page, version_of

_TRIES = 3  # copies that others may overtake before a reader takes a turn


@dataclass
class Version:
    """The vectors of one version."""

    # for each vector of the parameters: it, the rule's vectors beside it, then the states of the
    # optimizer at the centre
    vectors: list[list[np.ndarray]]
    statistics: list[np.ndarray]
    counts: np.ndarray  # the rule's counts
    # the 0-d states of the optimizer at the centre
    scalars: np.ndarray = field(default_factory=lambda: np.zeros(0))


class Centre:
    """The two versions, in the memory of the master.

    Version n is in buffer n mod 2. A member writes the other buffer in its turn. Its word DONE then
    makes this one the current version, after all other writes.
    """

    def __init__(self, versions: tuple[Version, Version], pages: Sequence[Page], rank: int) -> None:
        self._versions = versions
        self._pages = pages
        self._mine = pages[rank].words

    @property
    def number(self) -> int:
        """The number of the current version."""
        return version_of(self._pages)

    def version(self, number: int) -> Version:
        """The vectors of the current version, or of the next one."""
        return self._versions[number % 2]

    def commit(self, number: int) -> None:
        """Make a version, which this member has written in its turn, the current one."""
        self._mine[DONE] = number

    def read(self, turn: Callable[[], bool], give: Callable[[], None]) -> tuple[int, Version]:
        """A copy of the current version, and its number.

        A copy that others may have written to meanwhile is made again, at last in a turn.
        """
        # where stores are seen in another order, a number is not proof enough for a whole centre
        for _ in range(_TRIES if IS_ORDERED else 0):
            number = self.number
            copy = _copied(self.version(number))
            if self.number == number:
                return number, copy
        while not turn():
            pass
        try:
            number = self.number
            return number, _copied(self.version(number))
        finally:
            give()

    def counts(self) -> list[float]:
        """The rule's counts in the current version."""
        while True:
            number = self.number
            found = self.version(number).counts.tolist()
            if self.number == number:
                return found


def _copied(version: Version) -> Version:
    return Version(
        [[np.array(v) for v in vectors] for vectors in version.vectors],
        [np.array(s) for s in version.statistics],
        np.array(version.counts),
        np.array(version.scalars),
    )
