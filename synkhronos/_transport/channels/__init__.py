"""Channels carry commands out and outcomes back; arrays travel on communicators.

The two ends of a channel, in pairs:

=====================================  ==========================================
the master                             a worker
=====================================  ==========================================
``post(command)`` -> number            ``next()`` -> number, command (None: quit)
``collect(number)`` -> reports         ``report(number, outcome)``
``commit(number)``, ``abandon()``      ``verdict(number)`` -> bool
``quit(grace)``, ``close()``           (``next()`` returns None)
=====================================  ==========================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from synkhronos._transport.channels.interrupts import Interrupts

WORKER_DIED = "a worker died"  # why a group cannot go on


@dataclass(frozen=True)
class Left:
    """What a member says when it has left a command because another failed."""


@dataclass(frozen=True)
class Failure:
    """What a member says when it has raised; text only, so that reading it runs no code."""

    kind: str  # "module:name" of the exception's class
    summary: str
    traceback: str
    ours: bool = False  # the package's own check refused the call in that member


@dataclass(frozen=True)
class Gone:
    """What a leader says of a member of its node that has died."""

    pid: int
    how: str
    notes: tuple[str, ...] = ()


class Channel(Protocol):
    """The master's end.

    Attributes
    ----------
    interrupts : Interrupts
        What holds Ctrl-C back in the master.
    broken : str
        Why the group cannot go on; nothing while it can.
    """

    interrupts: Interrupts
    broken: str

    def wake(self) -> None:
        """Let workers that sleep wake up while the master prepares what it will post."""

    def post(self, command: Any, what: str = "a command") -> int:
        """Hand a command to all workers; returns its number."""

    def collect(self, number: int, lent: bool = False) -> dict[int, Any]:
        """Wait for every worker's report: {rank: outcome or Failure}; None is left out.

        With `lent` the outcomes' arrays may be overwritten by the next command.
        """

    def commit(self, number: int) -> None:
        """Tell the workers that what the command changed stands."""

    def committed(self) -> bool:
        """Whether the last command's changes stand."""

    def abandon(self) -> None:
        """Tell the workers to leave the last command, and to undo its changes if none stand."""

    def stop(self, number: int) -> None:
        """Ask a long command to return."""

    def progress(self, number: int) -> list[int]:
        """What each rank has counted in a long command."""

    def pid(self, rank: int) -> int:
        """A member's process id."""

    def device(self, rank: int) -> str:
        """What a member computes on."""

    def quit(self, grace: float) -> None:
        """End the workers within `grace` seconds, or kill them; waits of the master end, too."""

    def close(self) -> None:
        """Let go of all that is left after `quit`, once no command runs any more."""


class WorkerEnd(Protocol):
    """A worker's end."""

    def next(self) -> tuple[int, Any] | None:
        """Wait for the next command; None: the group has ended."""

    def report(self, number: int, outcome: Any) -> None:
        """Answer a command with a value or a Failure."""

    def verdict(self, number: int) -> bool:
        """Wait for the master's word: True to keep what the command changed."""
