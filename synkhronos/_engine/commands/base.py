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
class Program(Command):
    """Several commands in one round; all of them stand, or none."""

    commands: tuple[Command, ...]
    repeats = True

    @property
    def foreign(self) -> bool:
        """Whether one of its commands is."""
        return any(command.foreign for command in self.commands)

    def run(self, member: Member) -> tuple[Any, ...]:
        """One after the other."""
        with member.nested():
            return tuple([command.run(member) for command in self.commands])

    def answer(self, member: Member, own: Any, reports: dict[int, Any]) -> list[Any]:
        """The answers of all."""
        return [
            command.answer(
                member,
                own[i],
                {r: o[i] for r, o in reports.items() if o[i] is not None},
            )
            for i, command in enumerate(self.commands)
        ]
