"""The commands of free rules: install, begin a run, take part in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from synkhronos._engine.commands.base import Command
from synkhronos._engine.commands.call import ExtendedCall, compute_call
from synkhronos._engine.member import Member
from synkhronos.extensions._apart.free.allocation import allocated
from synkhronos.extensions._apart.free.free_member import Assignment
from synkhronos.extensions._apart.free.free_state import FreeState
from synkhronos.extensions._apart.recipe import LocalRecipe
from synkhronos.extensions._step.install import Install
from synkhronos.rules._base import FreeRule


@dataclass(frozen=True)
class InstallFree(Install):
    """Give each member values of its own, and the group a centre."""

    rule: FreeRule  # with its numbers for this group, and without an optimizer at the centre

    def allocate(self, recipe: LocalRecipe, member: Member) -> FreeState:
        """Allocate the member's vectors, and in the leader those of the centre."""
        free = allocated(self.rule, recipe, member)
        free.local.bind([(member.variables.of(v), view) for v, view in free.views.items()])
        return free


@dataclass(frozen=True)
class Rehearse(ExtendedCall):
    """Compute a call in all members, so that it is compiled, and drop the results."""

    def run(self, member: Member) -> None:
        """Compute."""
        compute_call(self.call, member)


@dataclass(frozen=True)
class BeginRun(Command):
    """Give each member the first values, which the master has written."""

    number: int

    def run(self, member: Member) -> None:
        """Copy them; remember the variables' own values, which they have again at the end."""
        local = member.installed.of(FreeState, self.number).local
        local.begin(states=True)
        local.bind([(entry, entry.storage[0]) for entry, _ in local.entries])


@dataclass(frozen=True)
class TakePart(Command):
    """Step and exchange until there are no more rows, or the master asks to stop."""

    number: int
    assignment: Assignment

    def run(self, member: Member) -> list[Any]:
        """Returns the log of this member's exchanges."""
        free = member.installed.of(FreeState, self.number)
        participant = free.participant(member, self.assignment)

        def stopped() -> bool:
            return member.stopping

        with participant.peers.engaged():
            participant.arrive()
            try:
                while participant.step(stopped):
                    pass
                participant.finish()
            except BaseException:
                participant.leave()
                raise
            finally:
                free.local.hide()
        return participant.log
