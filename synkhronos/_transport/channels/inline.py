"""The channel of a group of one: nobody to tell."""

from __future__ import annotations

import math
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from synkhronos._transport.channels.interrupts import Interrupts


class Idle:
    """Looks after nobody: a group of one does not wait."""

    limit = warning = math.inf

    def limited(self, seconds: float) -> AbstractContextManager[None]:
        """No wait, no limit."""
        del seconds
        return nullcontext()


class InlineChannel:
    """No process at all: the master is the only member."""

    def __init__(self) -> None:
        self._number = 0
        self._committed = 0
        self.interrupts = Interrupts()
        self.broken = ""
        self.inspector = Idle()

    def wake(self) -> None:
        """Nobody sleeps."""

    def post(self, command: Any, what: str = "a command") -> int:
        """Count the command."""
        del command, what
        self._number += 1
        return self._number

    def collect(self, number: int, lent: bool = False) -> dict[int, Any]:
        """Nobody reports."""
        del number, lent
        return {}

    def commit(self, number: int) -> None:
        """Nobody to tell."""
        self._committed = number

    def committed(self) -> bool:
        """Whether the last command's changes stand."""
        return self._committed == self._number

    def abandon(self) -> None:
        """Nobody to tell."""

    def stop(self, number: int) -> None:
        """The master's own part stops by itself (see `Member.stopping`)."""

    def progress(self, number: int) -> list[int]:
        """Nobody counts."""
        del number
        return []

    def pid(self, rank: int) -> int:
        """This process's."""
        del rank
        return os.getpid()

    def device(self, rank: int) -> str:
        """No other member fails that would have to be named."""
        del rank
        return ""

    def quit(self, grace: float) -> None:
        """Nobody to end."""

    def close(self) -> None:
        """Nothing to let go of."""
