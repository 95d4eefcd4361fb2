"""The base of all commands.

A command is a frozen value. `run(member)` does it in any member and returns that member's outcome;
`answer(member, own, reports)` makes, in the master, the result of the outcomes. A command that
changes variables does so through `member.changes`, so that a failure anywhere undoes it everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._engine.member import Member
from synkhronos._engine.spans import Spans
from synkhronos._engine.variables import Entry
from synkhronos._transport.channels.repeated_commands import Repeatable

# The first six follow one another in a call or training step; "between" is the time from the end of
# one call in this member to the begin of the next one. CALLS, ROWS and BYTES (of outputs, in the
# master) are counts. AT and LAST say when this member's latest lap ended, and its phase (-1: a call
# has begun); SIGN tells those who read the cells from outside that they are cells.
PHASES = ("scatter", "compute", "copy", "wait", "reduce", "update", "between")
SCATTER, COMPUTE, COPY, WAIT, REDUCE, UPDATE, BETWEEN, CALLS, ROWS, BYTES = range(10)
AT, LAST, SIGN = 10, 11, 15
CELLS = 16  # of a member; two cache lines, so that no other member writes to them

SIGNED = 20171101.0

clock = time.perf_counter


class Command(Repeatable):
    """The base of all commands."""

    pure = False  # it changes no variable in any member
    lent = False  # its answer keeps no array of the reports, so they need not be copied

    @property
    def foreign(self) -> bool:
        """Whether workers may not be able to import its class, which is then sent by value."""
        return not type(self).__module__.startswith("synkhronos.")

    def run(self, member: Member) -> object:
        """Run the command in a member; returns the member's outcome."""
        raise NotImplementedError

    def answer(self, member: Member, own: Any, reports: dict[int, Any]) -> object:
        """In the master: compute the result from its own outcome and the workers' reports."""
        del member, reports
        return own


class CommandCache[C]:
    """Keeps earlier commands by what they were made from.

    The channel sends a command object that it knows as a number only. So an equal command should
    be the same object.
    """

    def __init__(self, size: int = 1) -> None:
        self._size = size  # commands to keep; the oldest is dropped first
        self._kept: dict[Hashable, C] = {}

    def find(self, key: Hashable, variables: Iterable[Entry] = ()) -> C | None:
        """The command kept for this key, unless the user has set one of the variables since."""
        found = self._kept.get(key)
        if found is not None:
            for entry in variables:
                if entry.is_set:
                    return None
        return found

    def keep(self, key: Hashable, made: C) -> None:
        """Remember for a key."""
        if len(self._kept) >= self._size:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = made

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()


@dataclass(frozen=True)
class WithoutMaster(Command):
    """A command that only the workers run: a meeting with the master raises GroupError.

    Otherwise a worker would wait for the master without end.
    """

    command: Command

    @property
    def foreign(self) -> bool:
        """Whether the wrapped command is."""
        return self.command.foreign

    def run(self, member: Member) -> object:
        """Run the wrapped command in a worker."""
        with member.communicator.without_master():
            return self.command.run(member)


class Stopwatch:
    """Adds up the seconds that a member spends on the phases of calls, in `cells`."""

    spans: Spans | None = None  # gets each phase, too, while the group is traced

    def __init__(self, cells: np.ndarray) -> None:
        # views of floats: an array takes twice as long to add to one element
        self._real: Any = memoryview(cells)
        self._scratch: Any = memoryview(np.zeros(CELLS))
        self._cells = self._real
        self._at = 0.0

    def start(self, counted: bool = True) -> None:
        """Begin a call. The phases of one that is not counted, since it compiles, are dropped."""
        now = clock()
        self._cells = cells = self._real if counted else self._scratch
        if self._at:
            cells[BETWEEN] += now - self._at
        cells[AT], cells[LAST] = now, -1.0
        self._at = now

    def lap(self, phase: int) -> None:
        """Add the time since the latest lap to a phase."""
        now, cells = clock(), self._cells
        cells[phase] += now - self._at
        cells[AT], cells[LAST] = now, phase
        if self.spans is not None:
            self.spans.add(self._at, now, phase)
        self._at = now

    def stop(self, phase: int, rows: float) -> None:
        """End a call with its last phase, and count it."""
        self.lap(phase)
        cells = self._cells
        cells[CALLS] += 1
        cells[ROWS] += rows
        cells[LAST] = BETWEEN

    def rest(self) -> None:
        """Leave the time until the next call out."""
        self._at = 0.0

    def count_bytes(self, count: int) -> None:
        """Count the bytes of a call's outputs."""
        self._cells[BYTES] += count
