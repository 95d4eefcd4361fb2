"""Functions as the engine sees them: sent to all members, and again after a restart."""

from __future__ import annotations

import itertools
import weakref
from abc import ABC, abstractmethod

from synkhronos._engine.function_plan import Plan
from synkhronos._engine.variables import Entry


class Shippable(ABC):
    """A function of a group, which the layers above implement."""

    plan: Plan
    shipped: bool  # all members have the function
    refused: bool  # it could not be shipped when this was last tried

    @abstractmethod
    def ship(self, entries: list[Entry]) -> None:
        """Note that all members have the function now; `entries` are its shared variables."""

    @abstractmethod
    def restart(self) -> None:
        """Note that no other member has the function any more."""


class Inventory:
    """Functions until the user drops them, and the numbers of all that commands install."""

    def __init__(self) -> None:
        # by number, the functions that the user still has
        self.functions: weakref.WeakValueDictionary[int, Shippable] = weakref.WeakValueDictionary()
        # numbers of what the user has dropped, and the members still keep. A finalizer may add to
        # it at any time; `shipping` sends them with the next functions
        self.forgotten: list[int] = []
        self._numbers = itertools.count(1)  # one call of C, which no handler interrupts

    def number(self) -> int:
        """A new number, which nothing had before."""
        return next(self._numbers)

    def restart(self) -> None:
        """Note that the workers have been replaced: they have nothing any more."""
        for function in list(self.functions.values()):
            function.restart()
