"""Waits beside busy processes: noticed by a slow yield, forgotten when cores are free again."""

from __future__ import annotations

import signal

import pytest

import synkhronos as synk
from synkhronos._transport.shared_state import waiting
from synkhronos._transport.shared_state.waiting import SLOW_YIELD_SECONDS, Rivals
from synkhronos.testing.faults import Fault

pytestmark = pytest.mark.alone


class Machine:
    """A clock and a number of runnable processes that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.runnable = 1
        monkeypatch.setattr(waiting, "clock", lambda: self.now)
        monkeypatch.setattr(waiting, "runnable", lambda: self.runnable)
        monkeypatch.setattr(waiting.os, "cpu_count", lambda: 2)

    def yields(self, rivals: Rivals, seconds: float) -> None:
        began, self.now = self.now, self.now + seconds
        rivals.timed(began)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_quick_yields_go_on(machine: Machine) -> None:
    rivals = Rivals()
    for _ in range(100):
        machine.yields(rivals, SLOW_YIELD_SECONDS / 2)
    assert not rivals.present(machine.now)


def test_a_slow_yield_ends_yielding_until_cores_are_free(machine: Machine) -> None:
    rivals, machine.runnable = Rivals(), 3
    machine.yields(rivals, 2 * SLOW_YIELD_SECONDS)
    for _ in range(50):  # far beyond the first pause: as long as three want two cores
        assert rivals.present(machine.now)
        machine.now += 0.015
    machine.runnable = 2
    machine.now += 1.0
    assert not rivals.present(machine.now)


def test_members_that_outnumber_cores_are_not_rivals(machine: Machine) -> None:
    rivals, machine.runnable = Rivals(members=4), 4
    machine.yields(rivals, 2 * SLOW_YIELD_SECONDS)
    assert rivals.present(machine.now)
    machine.now += 1.0
    assert not rivals.present(machine.now)
    machine.runnable = 5
    machine.yields(rivals, 2 * SLOW_YIELD_SECONDS)
    machine.now += 1.0
    assert rivals.present(machine.now)


def test_pauses_grow_where_the_number_of_runnable_processes_does_not_tell(machine: Machine) -> None:
    """The core may be contended while others are free: a try costs a slice each time."""
    rivals, tries = Rivals(), 0
    for _ in range(10_000):  # 10 s
        if not rivals.present(machine.now):
            machine.yields(rivals, 0.004)
            tries += 1
        machine.now += 0.001
    assert 5 < tries < 20


def test_this_process_is_runnable() -> None:
    assert waiting.runnable() >= 1


def test_an_interrupt_of_the_count_is_an_interrupt() -> None:
    """No other exception, and no file stays open (pytest makes errors of warnings)."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    caught = 0
    try:
        for i in range(1000):
            try:
                signal.setitimer(signal.ITIMER_REAL, 40e-6 + i % 50 * 1e-6)
                while True:
                    waiting.runnable()
            except KeyboardInterrupt:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert caught == 1000


def test_calls_beside_busy_processes_do_not_yield(monkeypatch: pytest.MonkeyPatch) -> None:
    """The master's waits sleep instead."""
    yields = []
    with synk.Group(2) as group:
        waiter = group.channel.node.waiter
        waiter.rivals.timed(waiting.clock() - 1.0)
        monkeypatch.setattr(waiting, "runnable", lambda: 1000)
        monkeypatch.setattr(waiting.os, "sched_yield", lambda: yields.append(1))
        for _ in range(20):
            group.run(Fault("KeyError", ranks=()))  # a barrier, and no failure
    assert not yields


@pytest.mark.parametrize(("least", "moves"), [(0.0, True), (1000.0, False)])
def test_beside_busy_processes_the_master_keeps_its_core_for_long_work_only(
    least: float, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = []
    with synk.Group(2) as group:
        waiter = group.channel.node.waiter
        waiter.rivals.timed(waiting.clock() - 1.0)
        monkeypatch.setattr(waiting, "runnable", lambda: 1000)
        monkeypatch.setattr(waiting, "WORTH_A_MOVE", least)
        monkeypatch.setattr(waiter, "keep_place", lambda: moved.append(1))
        for _ in range(20):
            group.run(Fault("KeyError", ranks=()))
    assert bool(moved) is moves
