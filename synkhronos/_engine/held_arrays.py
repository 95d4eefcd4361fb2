"""Arrays and names that one member holds beside the values of its variables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np


@dataclass
class HeldArrays:
    """Memory and notes of one member."""

    # by the number of a variable: its arrays in the arena, where collectives read it without a
    # copy. There are one or two, used in turn
    homes: dict[int, list[np.ndarray]] = field(default_factory=dict)
    # by the number of a variable: its value, which only this member holds, and may overwrite
    overwritable: dict[int, object] = field(default_factory=dict)
    # by the number of a function: names of values beside variables, of which each member has its
    # own. They are lost with the workers
    own_values: dict[int, str] = field(default_factory=dict)

    def forget(self, variables: Iterable[int]) -> None:
        """Free the memory of variables that the user has dropped."""
        for number in variables:
            self.homes.pop(number, None)
            self.overwritable.pop(number, None)

    def clear(self) -> None:
        """Free the memory of all variables."""
        self.homes.clear()
        self.overwritable.clear()
