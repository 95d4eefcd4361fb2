"""Commands as transactions: each member runs a command, then keeps or undoes what it changed.

A command has two phases. In the first all members run it and report their outcomes; a member that
fails undoes its changes at once. In the second the verdict of the master reaches all members:
they keep their changes, or they undo them.

The master, the leaders of nodes and the workers share this code. Each has a channel to the members
below it; that of a worker sends nothing. The master makes the verdict, the others wait for it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, NoReturn

from synkhronos._engine.commands.base import Command, clock
from synkhronos._engine.member import Member
from synkhronos._engine.reports import outcome_of
from synkhronos._engine.spans import COLLECT, RUN, Spans
from synkhronos._engine.variables import Entry
from synkhronos._errors import WorkerDied
from synkhronos._transport.channels.channel import Channel, Gone, ReceivingEnd
from synkhronos._transport.shared_state.waiting import GroupEnded


class Transactions:
    """Runs commands in one member and in the members below it."""

    def __init__(
        self,
        member: Member,
        channel: Channel,
        kept: Callable[[Member, list[Entry]], None] | None = None,
    ) -> None:
        self.member = member
        self.channel = channel  # to the members below
        self.undecided = False  # whether the latest command has no verdict yet
        self._number = 0  # of the latest command, 0 until it is posted
        # is called with the member and the variables that a command has changed for good
        self._kept = kept
        self._serves = False  # the members above number the commands
        self._forked = False  # this process is a fork of the member
        self._leads = bool(channel.workers)

    def post(self, command: Command, what: str = "a command") -> int:
        """Send a command to the members below; returns its number."""
        self.undecided = True
        self._number = 0
        self.member.changes.written = ()
        self._number = self.channel.post(command, what)
        return self._number

    def run(self, command: Command, what: str = "a command") -> tuple[object, dict[int, object]]:
        """Run the first phase; returns this member's outcome, and the reports from below by rank.

        Raises
        ------
        BaseException
            What this member raised. The command has no verdict then: `settle` undoes it.
        """
        # first: whatever interrupts the post, `settle` has to find the command undecided
        self.undecided = True  # as in `post`, without its call
        self._number = 0
        self.member.changes.written = ()
        self._number = number = self.channel.post(command, what)
        if self.member.measured.spans is not None:
            return self._run_traced(command, number, self.member.measured.spans)
        own = command.run(self.member)
        return own, self.channel.collect(number, command.lent)

    def _run_traced(
        self, command: Command, number: int, spans: Spans
    ) -> tuple[object, dict[int, object]]:
        if not self._serves:
            spans.number = number
        began = clock()
        try:
            own = command.run(self.member)
        finally:
            ran = clock()
            spans.add(began, ran, RUN)
        below = self.channel.collect(number, command.lent)
        if self._leads:
            spans.add(ran, clock(), COLLECT)
        return own, below

    def commit(self) -> None:
        """Keep what the latest command changed, here and below."""
        with self.channel.interrupts:
            self.channel.commit(self._number)
            self._keep()
            self.undecided = False

    def _keep(self) -> None:
        changed = self.member.changes.keep()
        if self._kept is not None:
            self._kept(self.member, changed)

    def settle(self) -> None:
        """Give the latest command its verdict: keep it if it is committed, else undo it.

        An exception may interrupt this anywhere; a second call completes it.
        """
        with self.channel.interrupts:
            # the word COMMITTED decides, since workers that have seen it keep their changes
            if self.channel.committed():
                self._keep()
            else:
                self.member.changes.undo()
            self.channel.abandon()
            self.undecided = False

    # Commands of a member above this one.

    def serve(self, end: ReceivingEnd) -> None:
        """Run the commands that arrive at `end` until the group ends."""
        Member.serving = self.member
        self._serves = True
        _serving.append(self)
        try:
            self._serve(end)
        finally:
            _serving.clear()
            Member.serving = None

    def _serve(self, end: ReceivingEnd) -> None:
        with contextlib.suppress(GroupEnded):
            while (order := end.next()) is not None:
                number, read = order
                try:
                    command = read()
                except BaseException as exc:  # the members below have not seen it
                    end.leave()
                    end.report(number, outcome_of(exc))
                    continue
                self._answer(end, number, command)

    def _answer(self, end: ReceivingEnd, number: int, command: Command) -> None:
        if self.member.measured.spans is not None:
            self.member.measured.spans.number = number
        try:
            own, below = self.run(command)
            end.report(number, own, below)  # an outcome that does not pickle fails the command
        except BaseException as exc:
            if self._forked:  # whatever it has come to: to report raises in a fork
                self._leave()
            own = outcome_of(exc)  # first: it may end this
            end.leave()
            self.settle()
            end.report(number, own, self._reports_after(exc))
            return
        # the verdict would decide nothing, here or below: it is not waited for
        if not self.member.changes and (command.pure or not self._leads):
            self.member.changes.keep()
        elif end.verdict(number):
            self.commit()
        else:
            self.settle()

    def part(self) -> None:
        """In a fork of the member, which an operation has made: it reports nothing."""
        self._forked = True

    def _leave(self) -> NoReturn:
        """End a fork that has left the operation; the member goes on."""
        with contextlib.suppress(OSError):
            os.write(2, _FORKED.format(rank=self.member.rank, pid=os.getpid()).encode())
        os._exit(1)

    def _reports_after(self, exc: BaseException) -> dict[int, object]:
        """The reports from below on a command that failed here, or who has died there."""
        if issubclass(type(exc), WorkerDied) and self.channel.broken:
            return self._deaths(exc)
        try:
            return self.channel.collect(self._number) if self._number else {}
        except WorkerDied as died:
            return self._deaths(died)

    def _deaths(self, died: Any) -> dict[int, object]:
        ended = {w.rank: w.ended for w in self.channel.workers}
        notes = tuple(getattr(died, "__notes__", ()))
        return {r: Gone(self.channel.pid(r), ended[r], notes) for r in died.ranks}


_FORKED = (
    "synkhronos: rank {rank}: an operation has forked, and its child (pid {pid}) has returned from "
    "it; the child is ended. End it inside of the operation, by os._exit\n"
)
_serving: list[Transactions] = []  # at most one


def _part() -> None:
    for transactions in _serving:
        transactions.part()
    _serving.clear()


os.register_at_fork(after_in_child=_part)
