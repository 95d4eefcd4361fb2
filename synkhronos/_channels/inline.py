"""The channel of a group of one: nobody to tell."""

from __future__ import annotations

from typing import Any


class InlineChannel:
    """No process at all: the master is the only member."""

    def __init__(self) -> None:
        self._number = 0
        self.stopping = False

    def wake(self) -> None:
        """Nobody sleeps."""

    def post(self, command: Any) -> int:
        """Count the command."""
        del command
        self._number += 1
        self.stopping = False
        return self._number

    def collect(self, number: int) -> dict[int, Any]:
        """Nobody reports."""
        del number
        return {}

    def commit(self, number: int) -> None:
        """Nobody to tell."""

    def abandon(self) -> None:
        """Nobody to tell."""

    def stop(self, number: int) -> None:
        """Ask the master's own part to return."""
        del number
        self.stopping = True

    def progress(self) -> list[int]:
        """Nobody counts."""
        return []

    def close(self, grace: float) -> dict[int, str]:
        """Nobody to end."""
        del grace
        return {}
