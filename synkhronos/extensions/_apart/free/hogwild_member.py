"""Members of a run that change one copy of the parameters: Hogwild."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from synkhronos.extensions._apart.free.centre import Version
from synkhronos.extensions._apart.free.free_member import (
    MOST_NOT_FINITE,
    FreeMember,
    Watch,
    not_finite,
    total,
)
from synkhronos.extensions._apart.free.pages import EXCHANGES, REFUSED, STEPS


class HogwildMember(FreeMember):
    """A member that steps at the centre itself; its optimizer's states are its own."""

    at_centre = True
    _not_finite = 0  # steps in a row

    def _refuses(self, loss: float) -> bool:
        """A step whose loss is not finite would spoil the centre."""
        if math.isfinite(loss):
            self._not_finite = 0
            return False
        self._not_finite += 1
        self._words[REFUSED] += 1
        if self._not_finite >= MOST_NOT_FINITE:
            raise not_finite(self.peers.rank, "the loss was not finite")
        return True

    def _after_step(
        self, rows: int, stopped: Callable[[], bool], leaves: Callable[[], bool]
    ) -> None:
        self._words[EXCHANGES] += 1
        self.used = []

    def read(self, watch: Watch) -> tuple[int, Version]:
        """A copy of the centre, while others may change it."""
        number = total(self.shared.pages, STEPS)
        statistics = [np.array(s) for s in self.shared.statistics]
        return number, Version([[np.array(w)] for w in self.shared.w], statistics, np.zeros(0))
