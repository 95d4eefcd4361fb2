"""Clocks: how long each member spends on each phase of a function's calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._engine.commands.base import (
    CELLS,
    COMPUTE,
    PHASES,
    REDUCE,
    SCATTER,
    SIGN,
    SIGNED,
    WAIT,
    Command,
    Stopwatch,
)
from synkhronos._engine.commands.call import Call, ExtendedCall, compute_call, contribute_call
from synkhronos._engine.member import Member


class Clocks:
    """The phases of one function in the members of one node, in memory that all of them read."""

    def __init__(self, member: Member) -> None:
        comm = member.communicator
        home = comm.home
        made = []
        if home.rank == comm.leader:  # the memory of the others is lost with them
            made = [comm.empty((home.size, CELLS), np.dtype(np.float64))]
            made[0][...] = 0
            made[0][:, SIGN] = SIGNED
            member.show_clocks(made[0])
        # for each member of the node: seconds by phase, then the counts so far
        self.of = list(home.expose(made)[comm.leader][0])
        self.mine = Stopwatch(self.of[home.rank])  # adds to this member's
        self.mine.spans = member.measured.spans


def seconds_by_phase(clocks: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """The seconds of each phase, by rank."""
    return {name: [float(c[i]) for c in clocks] for i, name in enumerate(PHASES)}


@dataclass(frozen=True)
class MakeClocks(Command):
    """Make the clocks of a function in all members."""

    number: int
    pure = True

    def run(self, member: Member) -> None:
        """Allocate the cells, and map those of the other members."""
        member.measured.clocks[self.number] = Clocks(member)


@dataclass(frozen=True)
class ReadClocks(Command):
    """Fetch the cells of all members; on one node the master reads them without a command."""

    number: int
    pure = True

    def run(self, member: Member) -> list[float]:
        """This member's cells."""
        cells = member.measured.clocks[self.number].of[member.communicator.home.rank]
        return [float(c) for c in cells]

    def answer(
        self, member: Member, own: list[float], reports: dict[int, list[float]]
    ) -> list[list[float]]:
        """The cells of all members, by rank."""
        return [own if r == member.rank else reports[r] for r in range(member.size)]


class Rehearsed(Exception):
    """A call has been measured, and is to be undone."""

    def __init__(self, call: Call) -> None:
        super().__init__("rehearsed")
        self.call = call


@dataclass(frozen=True)
class MeasuredCall(ExtendedCall):
    """A call of which each member measures the phases."""

    lent = True

    undone: bool  # the call raises `Rehearsed` in the end if it would change a variable

    def run(self, member: Member) -> object:
        """Run the call; large outputs are reduced after a meeting, so that waits are told apart."""
        watch = member.measured.clocks[self.call.function].mine
        watch.start(counted=not self.call.first and member.replicas[self.call.function].used)
        part, outputs = compute_call(self.call, member, lambda _: watch.lap(SCATTER))
        watch.lap(COMPUTE)
        if part.scalars is None:
            member.communicator.barrier()
            watch.lap(WAIT)
        found = contribute_call(self.call, member, part, outputs)
        watch.stop(REDUCE, 0 if part.weights is None else part.rows)
        return found

    def answer(self, member: Member, own: Any, reports: dict[int, object]) -> object:
        """The call's answer, after the master's wait for the reports."""
        watch = member.measured.clocks[self.call.function].mine
        watch.lap(WAIT)
        found = self.call.answer(member, own, reports)
        watch.lap(REDUCE)
        watch.count_bytes(sum(getattr(value, "nbytes", 0) for value in found))
        if self.undone and not self.call.pure:
            raise Rehearsed(self.call)
        return found
