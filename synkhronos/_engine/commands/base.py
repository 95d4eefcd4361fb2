"""The base of all commands.

A command is a frozen value. `run(member)` does it in any member and returns that member's outcome;
`answer(member, own, reports)` makes, in the master, the result of the outcomes. A command that
changes variables does so through `member.change`, so that a failure anywhere undoes it everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from synkhronos._engine.member import Member


class Command:
    """The base of all commands."""

    repeats = False  # the very same object may be posted again, as one word
    pure = False  # it changes no variable in any member
    lent = False  # its answer keeps no array of the reports, so they need not be copied

    @property
    def foreign(self) -> bool:
        """Whether its class may be one that workers cannot import (it then travels by value)."""
        return not type(self).__module__.startswith("synkhronos.")

    def run(self, member: Member) -> Any:
        """Do it in a member; returns the member's outcome."""
        raise NotImplementedError

    def answer(self, member: Member, own: Any, reports: dict[int, Any]) -> Any:
        """In the master: the result, of its own outcome and the workers'."""
        del member, reports
        return own


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
        """Do it in a worker."""
        with member.communicator.without_master():
            return self.command.run(member)
