"""Failures while members train apart: nothing is mixed, and it is said what is lost."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from failing_ops import Fussy
from modes import FAST
from selection import thorough

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import make_train_function, updates
from synkhronos.extensions._apart.member_values import MemberValues

GOOD, BAD = np.ones((6, 3)), np.ones((6, 3))
BAD[4] = -1.0  # in the last member


class Work:
    """A training function of a rule; its loss refuses negative rows."""

    def __init__(self, rule: Any, optimizer: Any = updates.momentum) -> None:
        x = pt.matrix("x", dtype="float64")
        self.w = pytensor.shared(np.ones(3), name="w")
        loss = ((Fussy()(x) @ self.w) ** 2).mean()
        self.train = make_train_function(
            *(loss, [self.w], x, None, optimizer, 0.01), reduction="avg", rule=rule, mode=FAST
        )

    def values(self) -> list[list[Any]]:
        return [v.get_value().tolist() for v in (self.w, *self.train.state)]

    def make(self, steps: int) -> list[Any]:
        for _ in range(steps):
            self.train(GOOD)
        return self.values()


def undisturbed(size: int, rule: Any, steps: int, **options: Any) -> list[Any]:
    """The values after so many steps, and a meeting at their end."""
    with synk.Group(size):
        work = Work(rule, **options)
        work.make(steps)
        work.train.meet()
        return work.values()


def kill(group: synk.Group, rank: int = 1) -> None:
    os.kill(group.channel.pid(rank), signal.SIGKILL)


def test_outputs_that_cannot_be_combined_change_nothing() -> None:
    """They are found before the step: the members' own values stay as they are."""
    good, bad, ends = np.array([0, 1, 1, 1]), np.array([0, 3, 1, 1]), []
    for fails in (False, True):
        with synk.Group(2):
            y, w = pt.lvector("y"), pytensor.shared(np.zeros(2), name="w")
            how: Any = {"rule": rules.Average(2), "outputs": [(pt.bincount(y), "sum")]}
            loss = ((y - w.sum()) ** 2).mean()
            train: Any = make_train_function(loss, [w], y, None, updates.sgd, 0.1, mode=FAST, **how)
            train(good)
            if fails:
                with pytest.raises(synk.InputError, match="the parts' values have shapes"):
                    train(bad)
            train(good)
            train.meet()
            ends.append(w.get_value().tolist())
    assert ends[0] == ends[1]


@pytest.mark.each_choice
@pytest.mark.parametrize("how", ["call", "steps"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_member_that_raises_in_a_step(size: int, how: str) -> None:
    """All values and the count are as before, the members' own ones too."""
    rule = rules.SlowMo(4)
    with synk.Group(size):
        work = Work(rule)
        data = work.train.build_inputs(np.concatenate([GOOD, BAD]))
        before = work.make(2)
        for _ in range(2):
            call = {
                "call": lambda: work.train(BAD),
                "steps": lambda: work.train.steps(data, [slice(6), slice(6, 12)], 2),
            }[how]
            with pytest.raises(synk.WorkerError, match="a negative number"):
                call()
            assert work.values() == before
        work.make(3)
        work.train.meet()
        found = work.values()
    assert found == undisturbed(size, rule, 5)


@pytest.mark.each_choice
@pytest.mark.parametrize("how", ["call", "steps", "meet"])
@pytest.mark.parametrize("state", ["average", "reset"])
def test_a_death_with_restarts(how: str, state: str, caplog: pytest.LogCaptureFixture) -> None:
    """Training goes on from the last meeting; the log says how many steps are lost."""
    rule = rules.Average(3, state=state)
    with synk.Group(2, max_restarts=1) as group, caplog.at_level(logging.WARNING, "synkhronos"):
        work = Work(rule)
        data = work.train.build_inputs(GOOD)
        work.make(5)  # two of them after a meeting
        kill(group)
        if how == "call":
            work.make(3)
        elif how == "steps":
            assert len(work.train.steps(data, iter([slice(None)] * 3), 3)) == 3
        else:
            work.train.meet()
            work.make(3)
        found = work.values()
        assert group.restarts == 1
    assert "the steps since the last meeting (2) are lost" in caplog.text
    assert found[:-1] == undisturbed(2, rule, 6)[:-1]


def test_steps_are_made_again_with_the_same_batches() -> None:
    """A worker dies in the second period: the first one stands, batches are used once."""
    rule, rows = rules.Average(3, state="average"), np.random.default_rng(0).normal(size=(90, 3))
    batches = [slice(10 * i, 10 * i + 10) for i in range(9)]
    found = []
    for deaths in (0, 1):
        with synk.Group(2, max_restarts=1) as group:
            work = Work(rule)
            data = work.train.build_inputs(abs(rows))
            work.train.steps(data, batches[:3], 3)
            taken = 0

            def given(group: synk.Group = group, deaths: int = deaths) -> Any:
                nonlocal taken
                for batch in batches[3:]:
                    taken += 1
                    if taken == 5 and deaths:
                        kill(group)
                    yield batch

            found.append((work.train.steps(data, given(), 6).tolist(), work.values()[:-1]))
            assert group.restarts == deaths
    assert found[0] == found[1]


def test_own_states_are_lost_with_a_worker() -> None:
    with synk.Group(2, max_restarts=2) as group:
        work = Work(rules.Average(3))
        values = work.make(5)
        kill(group)
        with pytest.raises(synk.WorkerDied, match="members' own optimizer states of") as caught:
            work.train(GOOD)
        assert not caught.value.again
        assert group.alive
        assert work.values() == values
        work.make(3)
        plain = Work(rules.Average(3), updates.sgd)  # it has no states to lose
        plain.make(4)


def test_without_states_keep_goes_on() -> None:
    rule = rules.DiLoCo(3)
    with synk.Group(2, max_restarts=1) as group:
        work = Work(rule, updates.sgd)
        work.make(5)
        kill(group)
        found = work.make(3)
        assert group.restarts == 1
    assert found[:-1] == undisturbed(2, rule, 6, optimizer=updates.sgd)[:-1]


@pytest.mark.parametrize("how", ["call", *thorough("steps", "meet")])
def test_a_death_without_restarts(how: str) -> None:
    """The variables keep the last meeting's values, and can be trained in another group."""
    with synk.Group(2) as group:
        work = Work(rules.Average(3))
        data = work.train.build_inputs(GOOD)
        values = work.make(5)
        kill(group)
        with pytest.raises(synk.WorkerDied):
            {"call": lambda: work.train(GOOD), "meet": work.train.meet,
             "steps": lambda: work.train.steps(data, [slice(6)], 1)}[how]()  # fmt: skip
        assert work.values()[0] == values[0]
    with synk.Group(2):
        assert np.isfinite(Work(rules.Average(1)).make(1)[0]).all()


def fail_in_writing(monkeypatch: pytest.MonkeyPatch, rank: int, act: Callable[[], None]) -> None:
    """A member fails while it writes the centre, in its second meeting."""
    from synkhronos.extensions._apart.meeting import Meeting

    treat = Meeting.treat
    meetings = []

    def replaced(self: Any, *args: Any) -> None:
        treat(self, *args)
        meetings.append(1)
        if self._comm.rank == rank and len(meetings) == 2:
            act()

    monkeypatch.setattr(Meeting, "treat", replaced)


def _raise() -> None:
    raise ZeroDivisionError("in the meeting")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.each_choice
@pytest.mark.parametrize("act", [_raise, _die])
@pytest.mark.parametrize("size", [2, 3])
def test_a_failure_while_the_centre_is_written(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], size: int
) -> None:
    """Nobody can use what is half written, until the user has set it."""
    rank = 1  # the one that treats the second vector
    fail_in_writing(monkeypatch, rank, act)
    w, v = (pytensor.shared(np.ones(n), name=f"w{n}") for n in (9000, 30))
    x = pt.vector("x", dtype="float64")
    with synk.Group(size) as group:
        train = make_train_function(
            *(((w.sum() + v.sum()) * x).mean(), [w, v], x, None, updates.sgd, 0.1),
            rule=rules.Average(2),
            mode=FAST,
        )
        rows = np.ones(6)
        train(rows)
        train(rows)
        old = [p.get_value() for p in (w, v)]
        train(rows)
        error = synk.WorkerDied if act is _die else (synk.WorkerError, synk.GroupError)
        with pytest.raises(error):
            train(rows)
        if group.alive:
            with pytest.raises(synk.StateTorn):
                train(rows)
            with pytest.raises(synk.StateTorn):
                train.meet()
            for p, value in zip((w, v), old, strict=True):
                p.set_value(value)
            train(rows)
            train(rows)
            assert (w.get_value() < old[0]).all()
    if act is _die:
        with synk.Group(1), pytest.raises(synk.StateTorn):
            synk.broadcast([w, v])
        for p, value in zip((w, v), old, strict=True):
            p.set_value(value)


def before_writing(monkeypatch: pytest.MonkeyPatch, rank: int, act: Callable[[], None]) -> None:
    """A member fails at the begin of its second meeting."""
    meet = MemberValues.meet
    meetings = []

    def replaced(self: MemberValues, member: Any, *args: Any) -> None:
        meetings.append(1)
        if member.rank == rank and len(meetings) == 2:
            act()
        meet(self, member, *args)

    monkeypatch.setattr(MemberValues, "meet", replaced)


@pytest.mark.parametrize("rank", [1, *thorough(0)])
def test_a_meeting_that_failed_before_it_changed_values_is_made_up_for(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """The members' own values stand; the next step begins with the meeting."""
    rule = rules.DiLoCo(2)
    wanted = undisturbed(2, rule, 6)
    before_writing(monkeypatch, rank, _raise)
    with synk.Group(2):
        work = Work(rule)
        values = work.make(3)
        with pytest.raises((synk.WorkerError, ZeroDivisionError), match="in the meeting"):
            work.train(GOOD)
        assert work.values()[:3] == values[:3]
        data = work.train.build_inputs(GOOD)
        assert len(work.train.steps(data, [slice(6)] * 3)) == 2  # the meeting comes first
        work.train.meet()
        found = work.values()
    assert found == wanted


@pytest.mark.parametrize("where", ["compute", "step", "meet"])
def test_an_interrupt_loses_no_period(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Ctrl-C while the master computes, changes its values, or meets: whole values, and on."""
    rule, size = rules.SlowMo(3), 2
    wanted = [undisturbed(size, rule, n) for n in (6, 7)]
    name = {"compute": "computed", "step": "step", "meet": "meet"}[where]
    method, calls = getattr(MemberValues, name), []
    master = os.getpid()

    def replaced(self: MemberValues, *args: Any) -> Any:
        found = method(self, *args)
        calls.append(1)
        if os.getpid() != master or len(calls) != (2 if where == "meet" else 5):
            return found
        if where != "step":
            signal.raise_signal(signal.SIGINT)
            return found

        def make() -> None:
            found()
            signal.raise_signal(signal.SIGINT)

        return make

    monkeypatch.setattr(MemberValues, name, replaced)
    with synk.Group(size):
        work = Work(rule)
        work.make(4 if where != "meet" else 5)
        with pytest.raises(KeyboardInterrupt):
            work.train(GOOD)
        made = int(work.train.state[-1].get_value()[0])
        assert made == {"compute": 4, "step": 5, "meet": 6}[where]
        work.make(6 - made)
        work.train.meet()
        assert work.values()[:-1] == wanted[0][:-1]


def test_a_timeout_in_a_step(group2: synk.Group) -> None:
    """A stopped worker: all values are as before, and the steps count."""
    rule = rules.Average(4)
    work = Work(rule)
    values = work.make(2)
    pid = group2.channel.pid(1)
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(1.0, os.kill, (pid, signal.SIGCONT))
    timer.start()
    with pytest.raises(synk.GroupTimeout):
        work.train(GOOD, timeout=0.3)
    timer.join()
    assert work.values() == values
    work.make(2)
    work.train.meet()
    assert work.values() == undisturbed(2, rule, 4)
