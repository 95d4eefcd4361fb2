"""The base of all commands.

A command is a frozen value. `run(member)` does it in any member and returns that member's outcome;
`answer(member, own, reports)` makes, in the master, the result of the outcomes. A command that
changes variables does so through `member.change`, so that a failure anywhere undoes it everywhere.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from synkhronos._engine.member import Member
from synkhronos._engine.variables import Entry


class Command:
    """The base of all commands."""

    repeats = False  # the very same object may be posted again, as one word
    pure = False  # it changes no variable in any member
    lent = False  # its answer keeps no array of the reports, so they need not be copied

    @property
    def foreign(self) -> bool:
        """Whether workers may not be able to import its class, which is then sent by value."""
        return not type(self).__module__.startswith("synkhronos.")

    def run(self, member: Member) -> Any:
        """Run the command in a member; returns the member's outcome."""
        raise NotImplementedError

    def answer(self, member: Member, own: Any, reports: dict[int, Any]) -> Any:
        """In the master: compute the result from its own outcome and the workers' reports."""
        del member, reports
        return own


class CommandCache[C]:
    """Keeps earlier commands by what they were made from.

    The channel sends a command object that it knows as a number only. So an equal command should
    be the same object.

    Parameters
    ----------
    size : int
        Commands to keep; the oldest is dropped first.
    """

    def __init__(self, size: int = 1) -> None:
        self._size = size
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

    def run(self, member: Member) -> Any:
        """Run the wrapped command in a worker."""
        with member.communicator.without_master():
            return self.command.run(member)
