"""Tracing: all members keep what they do and when; the master takes it, on one time scale."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from synkhronos._checks import check_integer
from synkhronos._engine.commands.base import Command, clock
from synkhronos._engine.member import Member
from synkhronos._engine.runner import Runner
from synkhronos._engine.spans import SPAN, Spans
from synkhronos._engine.trace import Alignment, MemberTrace, Trace, check_path
from synkhronos._errors import GroupError

_PINGS = 32  # of which the fastest counts


@dataclass(frozen=True)
class StartTrace(Command):
    """Keep the latest `capacity` spans in each member.

    The answer is the alignment of the members' clocks.
    """

    pure = True
    capacity: int

    def run(self, member: Member) -> Alignment | None:
        """Begin."""
        member.measured.spans = Spans(self.capacity)
        for clocks in member.measured.clocks.values():
            clocks.mine.spans = member.measured.spans
        return aligned(member)

    def answer(self, member: Member, own: Any, reports: dict[int, object]) -> Alignment:
        """The measurements of the master."""
        return own


@dataclass(frozen=True)
class StopTrace(Command):
    """Take the spans of all members; the answer is them and the alignment of the clocks."""

    pure = True

    def run(self, member: Member) -> tuple[MemberTrace, Alignment | None]:
        """Stop."""
        spans, member.measured.spans = member.measured.spans, None
        for clocks in member.measured.clocks.values():
            clocks.mine.spans = None
        raw, lost = (b"", 0) if spans is None else spans.taken()
        names = [] if spans is None else spans.names
        node = member.rank - member.communicator.home.rank
        found = MemberTrace(
            member.rank, node, platform.node(), os.getpid(), np.frombuffer(raw, SPAN), names, lost
        )
        return found, aligned(member)

    def answer(
        self, member: Member, own: Any, reports: dict[int, Any]
    ) -> tuple[list[MemberTrace], Alignment]:
        """All of them, by rank."""
        mine, alignment = own
        found = [mine if r == member.rank else reports[r][0] for r in range(member.size)]
        return found, alignment


def aligned(member: Member) -> Alignment | None:
    """By how much the members' clocks differ from the master's; in the others None.

    All processes of one machine have one clock. On several nodes the master's message arrives in a
    member at a time between its sending and the arrival of the answer, as in NTP (RFC 5905,
    section 8), so half of that time is the error.
    """
    comm, size = member.communicator, member.size
    mine = member.rank == member.master
    if comm.nodes == 1:
        return Alignment(clock(), [0.0] * size, [0.0] * size) if mine else None
    offsets, errors = np.zeros(size), np.full(size, np.inf)
    for _ in range(_PINGS):
        sent = clock()
        comm.broadcast([np.zeros(1)] if mine else None, member.master)
        [answers] = comm.all_gather([np.array(clock())], "stack")
        error = (clock() - sent) / 2
        better = errors > error
        offsets[better] = answers[better] - (sent + error)
        errors[better] = error
    if not mine:
        return None
    home = slice(member.rank - comm.home.rank, member.rank - comm.home.rank + comm.home.size)
    offsets[home] = errors[home] = 0.0
    return Alignment(clock(), offsets.tolist(), errors.tolist())


@contextlib.contextmanager
def traced(runner: Runner, path: str | Path | None, capacity: int) -> Iterator[Trace]:
    """A context in which the members of a group are traced: see `Group.trace`."""
    if runner.member.measured.spans is not None:
        raise GroupError("trace: the group is traced already; end that trace first")
    if path is not None:
        check_path(path)
    capacity = check_integer("trace: spans", capacity, 1)
    found = Trace()
    with runner.reserved("trace"):
        begin = runner.run(StartTrace(capacity), "trace")
    try:
        yield found
    finally:
        if not runner.ended and runner.member.measured.spans is not None:
            with runner.reserved("trace"):
                members, end = runner.run(StopTrace(), "trace")
            found.take(members, runner.member.rank, begin, end)
            if path is not None:
                found.save(path)
