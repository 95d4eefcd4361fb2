"""A function as the engine sees it: sent to all members, and again after a restart."""

from __future__ import annotations

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
