"""Workers that are started anew (promise 17): the call is made again, or what was lost is named."""

from __future__ import annotations

import logging
import mmap
import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from selection import thorough

import synkhronos as synk
from synkhronos._engine.commands.base import Command
from synkhronos._transport.channels.one_node_end import OneNodeEnd
from synkhronos.extensions import make_train_function, updates
from synkhronos.testing import leaks
from synkhronos.testing.faults import Fault


def kill(group: synk.Group, *ranks: int) -> None:
    for rank in ranks or range(1, group.size):
        os.kill(group.channel.pid(rank), signal.SIGKILL)


def total() -> synk.Function:
    x = pt.vector("x", dtype="float64")
    return synk.function([x], x.sum(), mode=FAST)


@pytest.mark.parametrize("start", ["fork", *thorough("exec")])
@pytest.mark.parametrize("victims", [(1,), *thorough(((2,),)), (1, 2)])
def test_the_call_is_made_again(victims: tuple[int, ...], start: str) -> None:
    with synk.Group(3, start=start, max_restarts=1) as group:
        f, d = total(), synk.data(np.arange(10.0))
        assert f(d) == 45
        kill(group, *victims)
        assert f(d) == 45
        assert group.restarts == 1
        assert f(np.ones(7)) == 7


def test_a_death_in_the_middle_of_a_call() -> None:
    """The update stands once, whatever the dead had done of it."""
    with synk.Group(3, max_restarts=1) as group:
        x, w = pt.vector("x", dtype="float64"), pytensor.shared(np.zeros(3), "w")
        step = synk.function([x], x.sum(), updates=[(w, w + 1)], mode=FAST)
        step(np.ones(6))
        os.kill(group.channel.pid(1), signal.SIGSTOP)  # it has not reported when it is killed
        timer = threading.Timer(0.2, kill, (group, 1))
        timer.start()
        assert step(np.ones(6)) == 6
        timer.join()
        assert group.restarts == 1
        assert [synk.get_value(r, w).tolist() for r in range(3)] == [[2.0] * 3] * 3


def test_collectives_are_made_again() -> None:
    with synk.Group(2, max_restarts=10) as group:
        s = pytensor.shared(np.arange(4.0), "s")
        calls: list[Any] = [
            lambda: synk.broadcast(s),
            lambda: synk.all_reduce(s, "sum"),
            lambda: synk.gather(s),
            lambda: synk.get_value(1, s),
            lambda: synk.get_shapes(s),
            lambda: synk.reduce(s, "max", in_place=False),
            lambda: synk.check_consistency(s),
            lambda: synk.sync(s),
        ]
        for call in calls:
            kill(group)
            call()
        assert group.restarts == len(calls)
        np.testing.assert_array_equal(synk.get_value(1, s), 2 * np.arange(4.0))


def test_training_goes_on_as_if_nothing_had_been() -> None:
    rows, answers = np.random.default_rng(0).normal(size=(2, 64))

    def losses(deaths: tuple[int, ...]) -> list[float]:
        with synk.Group(3, max_restarts=len(deaths)) as group:
            x, y = pt.vector("x", dtype="float64"), pt.vector("y", dtype="float64")
            w = pytensor.shared(np.zeros(()), "w")
            loss = ((w * x - y) ** 2).mean()
            train = make_train_function(loss, [w], x, y, updates.adam, 0.1, mode=FAST)
            found = []
            for step in range(8):
                if step in deaths:
                    kill(group, 1 + step % 2)
                found.append(float(train(rows, answers)))
            assert group.restarts == len(deaths)
            gradient = train.gradients(rows, answers)
            return [*found, float(w.get_value()), *map(float, gradient)]

    assert losses((2, 3, 6)) == losses(())


def test_what_was_lost_is_named() -> None:
    with synk.Group(2, max_restarts=2) as group:
        s = pytensor.shared(np.zeros(1), "s")
        f = total()
        synk.scatter(s, np.arange(6.0))
        kill(group)
        with pytest.raises(synk.WorkerDied, match=r"s \(members held different values\)") as caught:
            f(np.ones(3))
        assert not caught.value.again
        assert group.alive
        assert f(np.ones(3)) == 3
        np.testing.assert_array_equal(synk.get_value(1, s), [0, 1, 2])


@dataclass(frozen=True)
class Half(Command):
    """Die in the middle of writing a variable in place."""

    variable: int

    def run(self, member: Any) -> None:
        member.changes.in_place = [member.variables[self.variable]]
        if member.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        member.communicator.barrier()


def test_half_written_values_stay_torn() -> None:
    with synk.Group(2, max_restarts=1) as group:
        s = pytensor.shared(np.arange(5.0), "s")
        synk.all_reduce(s, "avg")
        entry = group.member.variables.of(s)
        with pytest.raises(synk.WorkerDied, match=r"s \(half written\)"):
            group.run(Half(entry.number), "half")
        with pytest.raises(synk.StateTorn):
            synk.all_reduce(s, "avg")
        s.set_value(np.ones(5))
        synk.all_reduce(s, "sum")
        np.testing.assert_array_equal(s.get_value(), 2 * np.ones(5))


def test_a_command_of_the_users_own_raises() -> None:
    """The package cannot know whether it may be run twice."""
    with synk.Group(2, max_restarts=1) as group:
        with pytest.raises(synk.WorkerDied, match="Nothing is lost") as caught:
            group.run(Fault("SIGKILL", (1,)))
        assert caught.value.again
        assert total()(np.ones(4)) == 4


def test_a_long_command_raises() -> None:
    with synk.Group(2, max_restarts=1) as group:
        task = group.start(Fault("SIGKILL", (1,)))
        with pytest.raises(synk.WorkerDied, match="have been restarted"):
            task.wait()
        assert total()(np.ones(4)) == 4


def test_it_gives_up_after_the_limit_and_tells_the_first_death() -> None:
    with synk.Group(2, max_restarts=2) as group:
        f = total()
        pids = []
        for _ in range(3):
            pids.append(group.channel.pid(1))
            kill(group)
            try:
                assert f(np.ones(2)) == 2
            except synk.WorkerDied as exc:
                died = exc
        assert len(set(pids)) == 3
        assert f"pid {pids[2]}" in str(died)
        assert "after 2 restarts" in str(died)
        assert f"pid {pids[0]}" in str(died)
        assert not group.alive


def test_deaths_while_restarting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts; the call is made once workers live."""
    group = synk.Group(3, max_restarts=3)
    with group:
        f = total()
        channel = type(group.channel)
        ready, left = channel._await_ready, [1, 2]

        def dying(self: Any) -> None:
            if left:
                os.kill(self.workers[left.pop() - 1].pid, signal.SIGKILL)
                time.sleep(0.05)
            ready(self)

        monkeypatch.setattr(channel, "_await_ready", dying)
        kill(group, 1)
        assert f(np.ones(5)) == 5
        assert group.restarts == 3


def test_a_restart_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    before = leaks.snapshot()
    with synk.Group(2, max_restarts=2) as group:
        f = total()

        def none(*args: Any) -> int:
            raise BlockingIOError(11, "no processes")

        monkeypatch.setattr(os, "fork", none)
        kill(group)
        with pytest.raises(synk.WorkerDied, match="after 2 restarts"):
            f(np.ones(5))
        assert not group.alive
    leaks.check(before)


def test_closed_during_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    before = leaks.snapshot()
    with synk.Group(2, max_restarts=5) as group:
        f = total()
        channel = type(group.channel)
        ready = channel._await_ready
        closers: list[threading.Thread] = []

        def closing(self: Any) -> None:
            closers.append(threading.Thread(target=group.close))
            closers[-1].start()
            time.sleep(0.05)
            ready(self)

        monkeypatch.setattr(channel, "_await_ready", closing)
        kill(group)
        with pytest.raises(synk.GroupClosed):
            f(np.ones(5))
        for thread in closers:
            thread.join(20)
    leaks.check(before)


def test_each_restart_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with synk.Group(2, max_restarts=1) as group, caplog.at_level(logging.WARNING):
        f = total()
        kill(group)
        f(np.ones(2))
    assert "a worker died: restart 1 of 1 begins" in caplog.text
    assert "SIGKILL" in caplog.text


def test_the_next_group_is_as_before() -> None:
    """What was restarted leaves variables, Data and results behind like any other group."""
    before = leaks.snapshot()
    s = pytensor.shared(np.arange(3.0), "s")
    with synk.Group(2, max_restarts=1) as group:
        d = synk.data(np.arange(4.0))
        synk.all_reduce(s, "sum")
        kill(group)
        synk.all_reduce(s, "sum")
    np.testing.assert_array_equal(d.data, np.arange(4.0))
    np.testing.assert_array_equal(s.get_value(), 4 * np.arange(3.0))
    leaks.check(before)


@pytest.mark.parametrize("limit", [-1, 1.5, True, "2"])
def test_limits_that_are_none(limit: object) -> None:
    with pytest.raises(synk.InputError, match="max_restarts"):
        synk.Group(2, max_restarts=limit)


@pytest.mark.parametrize("kind", ["step", "all_reduce"])
def test_what_was_written_in_place_is_not_written_twice(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies when all members have written, and before it has reported."""
    dies, original = mmap.mmap(-1, 1), OneNodeEnd.report

    def report(end: OneNodeEnd, *args: Any) -> None:
        if dies[0]:
            dies[0] = 0
            os.kill(os.getpid(), signal.SIGKILL)
        original(end, *args)

    monkeypatch.setattr(OneNodeEnd, "report", report)
    with synk.Group(2, start="fork", max_restarts=1) as group:
        x, s = pt.vector("x", dtype="float64"), pytensor.shared(np.ones(3), "s")
        if kind == "step":
            loss = (x * s.sum()).mean()
            act: Any = make_train_function(loss, [s], x, None, updates.sgd, 0.5, mode=FAST)
            arguments: Any = (np.ones(4),)
        else:
            act, arguments = synk.all_reduce, (s, "sum")
        act(*arguments)
        first = s.get_value()
        dies[0] = 1
        with pytest.raises(synk.WorkerDied, match="has changed s, and its") as caught:
            act(*arguments)
        assert not caught.value.again
        assert group.restarts == 1
        for _ in range(2):
            first = first - 0.5 if kind == "step" else 2 * first
            np.testing.assert_array_equal(s.get_value(), first)
            act(*arguments)
