"""Members that raise, die and stand still, between the calls and in them."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from oracle import JOBS, WIDTH, rows_of
from order_calls import Calls
from order_draws import seeds, slow, which
from order_sides import OPENINGS, Side

import synkhronos as synk
from synkhronos.testing.faults import DEADLY, RAISING, Fault

LIMIT = 0.05  # seconds that a stopped worker is waited for


class Faults(Calls):
    """Faults, each followed by what should become of the group."""

    @rule(
        which=which,
        kind=st.sampled_from(RAISING),
        ranks=st.sets(st.integers(0, 2), min_size=1),
        meet=st.booleans(),
    )
    def raise_in_a_command(self, which: int, kind: str, ranks: set[int], meet: bool) -> None:
        side = self.side(which)
        bad = tuple(sorted({r % side.crew.size for r in ranks}))
        self.counts.faults["raised in a command"] += 1
        error, trace = raised(lambda: side.group.run(Fault(kind, bad, meet)))
        if side.crew.master in bad:
            assert "faults.py" in trace
        else:
            assert isinstance(error, synk.WorkerError), trace
            assert error.ranks == bad

    def dies(self, side: Side, ranks: list[int], act: Callable[[], Any]) -> None:
        """The act raises WorkerDied; the group is no more, or its workers have been restarted."""
        lost = bool(side.crew.own)
        with pytest.raises(synk.WorkerDied) as caught:
            act()
        assert set(caught.value.ranks) <= set(ranks)
        assert caught.value.ranks
        if not side.restarts:
            self.end(side)
            return
        assert caught.value.again != lost
        self.restarted(side)

    def restarted(self, side: Side) -> None:
        """All members have the master's values now."""
        self.counts.faults["restarted"] += 1
        assert side.group.alive
        side.restarts -= 1
        side.crew.own.clear()

    @rule(which=which, ranks=st.sets(which, min_size=1, max_size=2), use=st.integers(0, 5))
    def die_idle(self, which: int, ranks: set[int], use: int) -> None:
        """Workers are killed between two calls."""
        side = self.with_workers(which)
        workers = side.workers()
        killed = sorted({workers[r % len(workers)] for r in ranks})
        for rank in killed:
            os.kill(side.pid(rank), signal.SIGKILL)
            os.waitid(os.P_PID, side.pid(rank), os.WEXITED | os.WNOWAIT)
        self.counts.faults["killed while idle"] += 1
        self.collect()
        with side.group.active():
            if side.restarts and not side.crew.own:
                self.uses(side)[use]()
                self.restarted(side)
                self.used(side, use)
            else:
                self.dies(side, killed, self.uses(side)[use])

    def collect(self) -> None:
        """Variables that were dropped have no values to be lost."""
        if self.renewed:
            gc.collect()
        self.renewed = False

    def uses(self, side: Side) -> list[Callable[[], Any]]:
        """Calls of every kind."""
        w, rows = self.variables["w"], rows_of("table", 4, 1)
        return [
            lambda: self.function(side, "local")(rows),
            lambda: self.function(side, "sums")(rows, 1.0, num_slices=2),
            lambda: synk.get_value(side.workers()[0], w),
            lambda: synk.broadcast(w, np.full(WIDTH, 9.0)),
            lambda: synk.all_reduce([w, self.variables["big"]], "sum"),
            lambda: synk.get_shapes(w),
        ]

    def used(self, side: Side, use: int) -> None:
        """What such a call changes."""
        crew = side.crew
        if use == 0:
            rows = rows_of("table", 4, 1)
            crew.take(JOBS["local"].expect(crew, rows, crew.parts(rows))[1])
        elif use == 3:
            crew.alike("w", np.full(WIDTH, 9.0))
        elif use == 4:
            for name in ("w", "big"):
                crew.alike(name, self.masters[name] * crew.size)

    def with_workers(self, which: int) -> Side:
        sides = [side for side in self.sides if side.crew.size > 1]
        if not sides and len(self.sides) < 2:
            return self.opened(*OPENINGS[which % 4])  # the ones with workers
        assume(sides)
        return sides[which % len(sides)]

    @rule(which=which, rank=which, kind=st.sampled_from(DEADLY), meet=st.booleans())
    def die_in_a_command(self, which: int, rank: int, kind: str, meet: bool) -> None:
        side = self.with_workers(which)
        rank = side.workers()[rank % len(side.workers())]
        self.counts.faults["killed in a command"] += 1
        self.collect()
        self.dies(side, [rank], lambda: side.group.run(Fault(kind, (rank,), meet)))

    @rule(which=which, rank=which, number=seeds, times=st.integers(1, 2), close=slow)
    def stop(self, which: int, rank: int, number: int, times: int, close: bool) -> None:
        """A worker is stopped: calls with a limit raise, and change nothing; then it goes on."""
        side = self.with_workers(which)
        rank = side.workers()[rank % len(side.workers())]
        self.counts.faults["stopped"] += 1
        function = self.function_in(side, "local")
        os.kill(side.pid(rank), signal.SIGSTOP)
        os.waitid(os.P_PID, side.pid(rank), os.WSTOPPED | os.WNOWAIT)
        try:
            for _ in range(times):
                with pytest.raises(synk.GroupTimeout) as caught:
                    function(rows_of("table", number % 9, number), timeout=LIMIT)
                assert rank in caught.value.ranks
            if close:
                side.group.close()
                self.end(side)
        finally:
            if side.group.alive:
                os.kill(side.pid(rank), signal.SIGCONT)

    @precondition(lambda self: self.whole)
    @rule(which=which, delay=st.integers(0, 3000), number=seeds)
    def interrupt(self, which: int, delay: int, number: int) -> None:
        """Ctrl-C some microseconds later: the call under way stands in all members or in none."""
        side = self.side(which)
        function = self.function_in(side, "local")
        self.tame_in(side)
        array = rows_of("table", 5, number)
        _, changes = JOBS["local"].expect(side.crew, array, side.crew.parts(array))
        interrupted(lambda: function(array), delay * 1e-6)
        self.counts.faults["interrupted"] += 1
        if self.variables["count"].get_value() != self.masters["count"]:
            side.crew.take(changes)


def raised(act: Callable[[], Any]) -> tuple[BaseException, str]:
    """What it raises, and where; SystemExit and KeyboardInterrupt are among the faults."""
    try:
        act()
    except BaseException as exc:
        return exc, "".join(traceback.format_tb(sys.exc_info()[2]))
    raise AssertionError("nothing was raised")


def interrupted(act: Callable[[], Any], delay: float) -> None:
    """Do something, with a SIGINT to this process after `delay` seconds."""
    lost: list[Any] = []  # in a finalizer, where Python only prints what is raised
    hook, sys.unraisablehook = sys.unraisablehook, lost.append
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        act()
        until = time.monotonic() + 10
        while not lost and time.monotonic() < until:
            time.sleep(0.01)  # a signal that comes just before a sleep does not end it
        assert lost, "the interrupt was lost"
    except KeyboardInterrupt:
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = hook
    for found in lost:
        assert isinstance(found.exc_value, KeyboardInterrupt), found
        assert "synkhronos" not in repr(found.object), found
