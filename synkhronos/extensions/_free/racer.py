"""Members of a run that change one copy of the parameters: Hogwild."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from synkhronos.extensions._free.centre import Version
from synkhronos.extensions._free.pages import EXCHANGES, STEPS
from synkhronos.extensions._free.participant import Participant, total


class Racer(Participant):
    """A member that steps at the centre itself; its optimizer's states are its own."""

    def _after_step(self, rows: int, stopped: Callable[[], bool]) -> None:
        self._words[EXCHANGES] += 1
        self.used = []

    def read(self) -> tuple[int, Version]:
        """A copy of the centre, while others may change it."""
        number = total(self.shared.pages, STEPS)
        statistics = [np.array(s) for s in self.shared.statistics]
        return number, Version([[np.array(w)] for w in self.shared.w], statistics, np.zeros(0))
