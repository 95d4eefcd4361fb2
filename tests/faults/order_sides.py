"""Groups as a state machine has them: opened, closed, looked at; what holds after every step."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from oracle import NAMES, Array, Crew, rows_of, same, start_value
from order_draws import slow, which

import synkhronos as synk
from synkhronos._engine.commands.collectives import GetValue
from synkhronos.testing import leaks

LONGEST = 300.0  # seconds that a step may take; few take two, on a busy machine
LONG_WAIT = 60.0  # seconds for another member
TAME = 1e6  # beyond it sums are no longer exact
LONG = {"big": 60_000}  # elements that a variable may have in all members; others: 60
# size, master and restarts of the group that a step finds where there is none
OPENINGS = ((2, 0, 0), (3, 1, 0), (2, 1, 2), (3, 0, 2), (1, 0, 0), (3, 2, 0))


@dataclass
class Counts:
    """What a campaign has gone through."""

    sequences: int = 0
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


@dataclass
class Held:
    """Data, and what it should hold."""

    data: synk.Data
    array: Array
    kind: str
    side: Side


@dataclass(eq=False)
class Side:
    """A group, and what it should hold."""

    group: synk.Group
    crew: Crew
    forked: bool
    restarts: int  # that are left
    functions: dict[str, Any] = field(default_factory=dict)

    def pid(self, rank: int) -> int:
        return int(self.group.channel.pid(rank))

    def workers(self) -> list[int]:
        return [r for r in range(self.crew.size) if r != self.crew.master]


class Sides(RuleBasedStateMachine):
    """At most two groups, one after the other or at once; variables that outlive them."""

    counts = Counts()
    whole = False  # also what is slow, and what cannot be done under pytest

    def __init__(self) -> None:
        super().__init__()
        self.before = leaks.snapshot()
        self.folder = Path(tempfile.mkdtemp(prefix="orders-"))
        self.masters = {name: start_value(name, 3) for name in NAMES}
        self.variables = {n: pytensor.shared(v.copy(), n) for n, v in self.masters.items()}
        self.sides: list[Side] = []
        self.ended: list[Side] = []
        self.held: list[Held] = []
        self.kept: list[tuple[Array, Array]] = []  # views and results, and what they should be
        self.latest: Any = None  # call
        self.steps = 0
        self.renewed = False  # since rubbish was last collected
        self.saved: dict[int, dict[str, Array]] = {}
        self.counts.sequences += 1
        self.counts.steps -= 1  # the first check comes before the first step

    @precondition(lambda self: len(self.sides) < 2)
    @rule(
        size=st.sampled_from([2, 3, 1]), master=which, restarts=st.sampled_from([0, 2]), slow=slow
    )
    def open(self, size: int, master: int, restarts: int, slow: bool) -> None:
        self.opened(size, master % size, restarts, "exec" if self.whole and slow else None)

    def opened(self, size: int, master: int, restarts: int, start: str | None = None) -> Side:
        """One more group, of fork() where that has none."""
        options: dict[str, Any] = {"start": start, "max_restarts": restarts, "timeout": LONG_WAIT}
        forked = not any(side.forked for side in self.sides)
        if forked:
            assert synk.fork(size, None, master, **options) == size
            group = synk._engine.group.current()
        else:
            group = synk.Group(size, None, master, **options)
        assert group.alive
        side = Side(group, Crew(size, master, self.masters), forked, restarts)
        self.sides.append(side)
        with group.active():
            for kind in ("table", "integers"):
                self.hold(side, kind, rows_of(kind, 7, 3 + size))
        return side

    def hold(self, side: Side, kind: str, array: Array, **options: Any) -> None:
        """Make Data of a kind in the group."""
        self.held = [*self.held, Held(synk.data(array, **options), array, kind, side)][-10:]

    @rule(which=which, twice=st.booleans())
    def close(self, which: int, twice: bool) -> None:
        side = self.side(which)
        self.look_at(side)
        for _ in range(1 + twice):
            synk.close() if side.forked else side.group.close()
        self.end(side)

    def end(self, side: Side) -> None:
        """The group is no more."""
        assert not side.group.alive
        self.sides.remove(side)
        self.ended = [*self.ended, side][-2:]

    def side(self, which: int) -> Side:
        """One of the groups, a new one where there are none."""
        if not self.sides:
            return self.opened(*OPENINGS[which])
        return self.sides[which % len(self.sides)]

    @contextlib.contextmanager
    def within(self, which: int) -> Iterator[Side]:
        side = self.side(which)
        with side.group.active():
            yield side

    @rule(which=which)
    def look(self, which: int) -> None:
        self.look_at(self.side(which))

    def look_at(self, side: Side) -> None:
        """What every member holds is what it should hold."""
        variables = [self.variables[name] for name in NAMES]
        with side.group.active():
            for rank in range(side.crew.size):
                for name, found in zip(NAMES, synk.get_value(rank, variables), strict=True):
                    wanted = side.crew.value(name, rank)
                    assert same(found, wanted), f"{name} in rank {rank}: {found} for {wanted}"

    def peek_at(self, side: Side) -> None:
        """The same as far as the members know, without sending them what has been set since."""
        known, registry = {}, side.group.member.variables
        for name in NAMES:
            entry = registry.find(self.variables[name])
            if entry is not None and (entry.differs or not entry.is_set):
                known[name] = entry.number
        for rank in side.workers():
            values = side.group.run(GetValue(tuple(known.values()), rank))
            for name, found in zip(known, values, strict=True):
                wanted = side.crew.value(name, rank)
                assert same(found, wanted), f"{name} in rank {rank}: {found} for {wanted}"

    def tame(self, side: Side, name: str) -> None:
        """Give all members a small value where this one's would no longer be exact, or too long."""
        values = side.crew.values(name)
        large = any(v.size and np.abs(v).max() > TAME for v in values)
        if large or sum(v.size for v in values) > LONG.get(name, 60):
            value = start_value(name, 5)
            synk.broadcast(self.variables[name], value)
            side.crew.alike(name, value)

    def keep(self, found: Any, wanted: Array) -> None:
        """A result is right, and stays as it is."""
        assert same(found, wanted), f"{found} for {wanted}"
        if isinstance(found, np.ndarray):
            self.kept = [*self.kept, (found, found.copy())][-12:]

    @invariant()
    def all_is_as_it_should_be(self) -> None:
        self.counts.steps += 1
        if self.whole:
            signal.setitimer(signal.ITIMER_REAL, LONGEST, 1)
        for name, wanted in self.masters.items():
            found = self.variables[name].get_value(borrow=True)
            assert same(found, wanted), f"{name} is {found} for {wanted}"
        for held in self.held:
            assert same(held.data.data, held.array), f"{held.kind}: {held.data.data} {held.array}"
        for found, wanted in self.kept:
            assert np.array_equal(found, wanted), f"a result has become {found}, it was {wanted}"
        self.steps += 1
        for side in self.sides:
            assert side.group.alive
            if self.steps % 3 == 0:
                self.peek_at(side)

    def teardown(self) -> None:
        # a step that has failed is the one to be shown
        self.finish(look=sys.exc_info()[0] is None)

    def finish(self, look: bool) -> None:
        """The end of a sequence, with a last look."""
        try:
            for side in list(self.sides) if look else []:
                self.look_at(side)
                side.group.close()
                self.end(side)
            if look:
                self.all_is_as_it_should_be()
                self.counts.steps -= 1
        finally:
            for side in self.sides:
                side.group.close()
            synk.close()
            shutil.rmtree(self.folder)
            self.sides, self.ended, self.held, self.kept = [], [], [], []
            leaks.check(self.before)
