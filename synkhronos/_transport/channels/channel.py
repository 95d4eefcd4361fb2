"""The interface of channels, and the reports of members on them."""

from __future__ import annotations

import contextlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from synkhronos._errors import GroupClosed, WorkerDied
from synkhronos._transport.channels.repeated_commands import Repeatable
from synkhronos._transport.processes.child_process import END_SECONDS
from synkhronos._transport.processes.interrupts import Interrupts
from synkhronos._transport.processes.worker import Worker

WORKER_DIED = "a worker died"  # why a group cannot go on


@dataclass(frozen=True)
class Left:
    """The report of a member that has left a command because another member failed."""


@dataclass(frozen=True)
class Failure:
    """The report of a member that has raised; only text, so that reading it runs no code."""

    kind: str  # "module:name" of the exception's class
    summary: str
    traceback: str
    ours: bool = False  # a check of this package refused the call in that member


@dataclass(frozen=True)
class Gone:
    """The report of a leader about a member of its node that has died."""

    pid: int
    how: str
    notes: tuple[str, ...] = ()


class ReceivingEnd(ABC):
    """The end of a channel in a member that gets commands: a worker, or the leader of a node."""

    @abstractmethod
    def next(self) -> tuple[int, Callable[[], Any]] | None:
        """Wait for the next command: its number, and a function that reads it, or raises.

        None: the group has ended.
        """

    @abstractmethod
    def report(
        self, number: int, outcome: Any = None, below: dict[int, object] | None = None
    ) -> None:
        """Report a member's outcome, and the reports of the members below it, by rank."""

    @abstractmethod
    def verdict(self, number: int) -> bool:
        """Wait for the master's verdict on a command; True: its changes are kept.

        Raises
        ------
        GroupEnded
        """

    def leave(self) -> None:
        """Tell the other members that this one comes to no further exchange of the command."""


class TimeLimits:
    """How long a command may keep the master waiting."""

    def __init__(self) -> None:
        self.limit = math.inf  # seconds until the command fails
        self.warning = math.inf  # seconds until a warning names the members that are late

    @contextlib.contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Set another limit for a while; an infinite one turns the warning off, too."""
        before = self.limit, self.warning
        self.limit = seconds
        if seconds == math.inf:
            self.warning = math.inf
        try:
            yield
        finally:
            self.limit, self.warning = before


class Channel(ABC):
    """The master's end of a channel; the defaults fit a group without workers."""

    interrupts: Interrupts  # holds Ctrl-C back in the master
    inspector: TimeLimits
    workers: Sequence[Worker] = ()  # the worker processes of the master's node
    started = "inline"  # how the workers were started: "inline", "fork", "exec"

    @property
    def broken(self) -> str:
        """Why the group cannot go on; empty while it can."""
        return ""

    @property
    @abstractmethod
    def number(self) -> int:
        """The number of the latest command."""

    def wake(self) -> None:
        """Let workers that sleep wake up while the master prepares the next command."""

    @abstractmethod
    def post(self, command: Repeatable, what: str = "a command") -> int:
        """Send a command to all workers; returns its number. Error messages call it `what`."""

    def collect(self, number: int, lent: bool = False) -> dict[int, object]:
        """Wait for the reports of all workers: {rank: outcome or Failure}, without those of None.

        With `lent` the next command may overwrite the arrays of the outcomes.

        Raises
        ------
        WorkerDied, GroupClosed, GroupTimeout
        """
        del number, lent
        return {}

    def reports(self, number: int) -> dict[int, object]:
        """The reports of the workers that have reported on a command by now, as `collect`'s."""
        del number
        return {}

    def late(self, number: int) -> list[int]:
        """The ranks of the workers that have not reported on a command, dead ones among them."""
        del number
        return []

    def kill(self, ranks: Sequence[int]) -> None:
        """End workers at once."""

    @abstractmethod
    def commit(self, number: int) -> None:
        """Tell the workers to keep what the command has changed."""

    @abstractmethod
    def committed(self) -> bool:
        """Whether the latest command has been committed."""

    def abandon(self) -> None:
        """Tell the workers to leave the latest command, and to undo it unless it is committed."""

    def stop(self, number: int) -> None:
        """Ask a long command to return."""

    def progress(self, number: int) -> list[int]:
        """The latest count of each rank in a long command."""
        del number
        return []

    def compiling(self) -> list[int]:
        """The ranks of this node's workers that compile now."""
        return []

    @abstractmethod
    def pid(self, rank: int) -> int:
        """The process id of a member."""

    def device(self, rank: int) -> str:
        """The device of a member."""
        del rank
        return ""

    def loss(self, during: str) -> WorkerDied | GroupClosed:
        """The error for a wait that ended without an answer: a death, or the end of the group."""
        return GroupClosed(
            f"{during}: the group was closed before it was done, by another thread, a signal "
            "handler or a finalizer. Call synk.fork() to start another"
        )

    def quit(self, grace: float, patience: float = END_SECONDS) -> None:
        """End the workers within `grace` seconds, or kill them; ends waits of the master, too.

        Killed ones that are not gone `patience` seconds later are left to `await_killed`.
        """

    def close(self) -> None:
        """Release all that is left after `quit`, once no command runs any more."""


class InlineChannel(Channel):
    """The channel of a group of one: nothing is sent, and it only counts the commands."""

    def __init__(self) -> None:
        self._number = 0
        self._committed = 0
        self.interrupts = Interrupts()
        self.inspector = TimeLimits()

    @property
    def number(self) -> int:
        return self._number

    def post(self, command: Repeatable, what: str = "a command") -> int:
        del command, what
        self._number += 1
        return self._number

    def commit(self, number: int) -> None:
        self._committed = number

    def committed(self) -> bool:
        return self._committed == self._number

    def pid(self, rank: int) -> int:
        del rank
        return os.getpid()
