"""Members that stand still: who they are, where they are, and an end to the wait (promise 5)."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from selection import thorough

import synkhronos as synk
from synkhronos._engine.commands.base import Command
from synkhronos._engine.member import Member
from synkhronos._transport.channels import stalls
from synkhronos.extensions import make_train_function, updates
from synkhronos.testing.faults import Fault

pytestmark = pytest.mark.unhurried

LIMIT = 0.5
COMPILING = 2.0  # a limit that is not passed, so a slow machine needs more
HANG = 60.0  # seconds; without the limit all of these wait for ever


def mean() -> synk.Function:
    x = pt.vector("x", dtype="float64")
    return synk.function([x], x.mean(), mode="FAST_COMPILE")


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", ["spin", "C call", *thorough("sleep")])
@pytest.mark.parametrize("meet", [True, False])
def test_a_member_that_does_not_come(kind: str, meet: bool) -> None:
    """Named, with the line it stands at; the one that waits for it is not."""
    with synk.Group(3, timeout=LIMIT) as group:
        f = mean()
        assert f(np.arange(5.0)) == 2
        began = time.monotonic()
        with pytest.raises(synk.GroupTimeout) as caught:
            group.run(Fault(kind, (2,), meet), "a test")
        assert time.monotonic() - began < HANG
        text = str(caught.value)
        assert caught.value.ranks == (2,)
        assert isinstance(caught.value, TimeoutError)
        assert text.startswith("a test: waited 0.")
        assert f"rank 2 (pid {group.channel.pid(2)}, " in text
        assert "faults.py" in text
        assert "rank 1" not in text
        began = time.monotonic()
        with pytest.raises(synk.GroupTimeout, match="rank 2"):
            f(np.arange(5.0))  # which waits for the same, and as long
        assert time.monotonic() - began > LIMIT / 2


def test_it_comes_after_all(group2: synk.Group) -> None:
    """A command that was given up is over when the member comes; the next is right."""
    f = mean()
    s = pytensor.shared(np.ones(3), name="s")
    synk.broadcast(s)
    group2.run(Fault("nap", (), False))
    with pytest.raises(synk.GroupTimeout, match=r"a test: waited 0\.\d+ s for rank 1"):
        group2.run(Fault("nap", (1,), True), "a test", timeout=0.2)
    assert f(np.arange(5.0)) == 2
    synk.all_reduce(s, "sum")
    np.testing.assert_array_equal(s.get_value(), 2)


def test_a_call_with_a_limit_of_its_own(group2: synk.Group) -> None:
    f = mean()
    assert f(np.arange(5.0), timeout=30) == 2
    os.kill(group2.channel.pid(1), signal.SIGSTOP)
    with pytest.raises(synk.GroupTimeout, match=rf"stopped.*kill -CONT {group2.channel.pid(1)}"):
        f(np.arange(5.0), timeout=LIMIT)
    os.kill(group2.channel.pid(1), signal.SIGCONT)
    assert f(np.arange(5.0)) == 2


COLLECTIVES: dict[str, Callable[..., Any]] = {
    "broadcast": lambda s, **limit: synk.broadcast(s, np.zeros(4), **limit),
    "scatter": lambda s, **limit: synk.scatter(s, np.zeros(4), **limit),
    "gather": lambda s, **limit: synk.gather(s, **limit),
    "all_gather": lambda s, **limit: synk.all_gather(s, **limit),
    "reduce": lambda s, **limit: synk.reduce(s, "sum", **limit),
    "all_reduce": lambda s, **limit: synk.all_reduce(s, "sum", **limit),
    "reduce_scatter": lambda s, **limit: synk.reduce_scatter(s, "sum", **limit),
    "permute": lambda s, **limit: synk.permute(s, [1, 0], **limit),
    "set_value": lambda s, **limit: synk.set_value(1, s, np.zeros(4), **limit),
    "get_value": lambda s, **limit: synk.get_value(1, s, **limit),
    "get_lengths": lambda s, **limit: synk.get_lengths(s, **limit),
    "get_shapes": lambda s, **limit: synk.get_shapes(s, **limit),
    "check_consistency": lambda s, **limit: synk.check_consistency(s, **limit),
    "sync": lambda s, **limit: synk.sync([s], **limit),
}


def test_every_collective_takes_a_limit() -> None:
    """A member is stopped: GroupTimeout, in time, and all values stay as they were."""
    public = {n for n in synk.__all__ if "shared_vars" in _parameters(getattr(synk, n))}
    assert public == COLLECTIVES.keys()
    with synk.Group(2) as group:
        s = pytensor.shared(np.arange(4.0), name="s")
        synk.set_value(1, s, np.arange(4.0) + 10)
        for name, act in COLLECTIVES.items():
            os.kill(group.channel.pid(1), signal.SIGSTOP)
            began = time.monotonic()
            with pytest.raises(synk.GroupTimeout, match=r"^\w+: waited .* rank 1") as caught:
                act(s, timeout=0.2)
            assert caught.value.ranks == (1,), name
            assert time.monotonic() - began < HANG, name
            os.kill(group.channel.pid(1), signal.SIGCONT)
            np.testing.assert_array_equal(s.get_value(), np.arange(4.0))
            np.testing.assert_array_equal(synk.get_value(1, s), np.arange(4.0) + 10)
        with pytest.raises(synk.InputError, match="timeout"):
            synk.all_reduce(s, timeout=0)
        synk.all_reduce(s, "sum", timeout=30)
        np.testing.assert_array_equal(synk.get_value(1, s), 2 * np.arange(4.0) + 10)


def test_the_limit_is_for_all_rounds_of_a_collective(group2: synk.Group) -> None:
    """A variable that the members do not know yet, and a value that the user has set."""
    known, new = (pytensor.shared(np.ones(3), name=name) for name in ("known", "new"))
    synk.broadcast(known)
    known.set_value(np.full(3, 2.0))
    os.kill(group2.channel.pid(1), signal.SIGSTOP)
    for s in (new, known):
        with pytest.raises(synk.GroupTimeout, match="rank 1"):
            synk.all_reduce(s, "sum", timeout=0.2)
    os.kill(group2.channel.pid(1), signal.SIGCONT)
    for s, total in ((new, 2.0), (known, 4.0)):
        synk.all_reduce(s, "sum", timeout=30)
        np.testing.assert_array_equal(synk.get_value(1, s), total)


def _parameters(function: Any) -> Collection[str]:
    return inspect.signature(function).parameters if inspect.isfunction(function) else ()


def test_the_limit_is_for_the_shipping_too(group2: synk.Group) -> None:
    """A first call that has to ship the function, and a first step that has to install."""
    x, w = pt.matrix("x", dtype="float64"), pytensor.shared(np.ones(3), name="w")
    train = make_train_function((x @ w).mean(), [w], x, None, updates.sgd, 0.5, mode="FAST_COMPILE")
    f, rows = mean(), np.ones((4, 3))
    os.kill(group2.channel.pid(1), signal.SIGSTOP)
    for call in (lambda: f(np.arange(5.0), timeout=LIMIT), lambda: train(rows, timeout=LIMIT)):
        with pytest.raises(synk.GroupTimeout, match="rank 1"):
            call()
    os.kill(group2.channel.pid(1), signal.SIGCONT)
    assert f(np.arange(5.0)) == 2
    assert train(rows) == 3
    np.testing.assert_array_equal(synk.get_value(1, w), 0.5)


def test_a_stopped_member_is_ended_by_close() -> None:
    group = synk.Group(2)
    os.kill(group.channel.pid(1), signal.SIGSTOP)
    began = time.monotonic()
    group.close()
    assert time.monotonic() - began < HANG


@pytest.mark.parametrize("limit", [0, -1, "1", float("nan")])
def test_limits_that_are_none(limit: object) -> None:
    with pytest.raises(synk.InputError, match="timeout"):
        synk.Group(2, timeout=limit)
    with synk.Group(1) as group, pytest.raises(synk.InputError, match="timeout"):
        group.run(Fault("ValueError", ()), timeout=limit)


def test_a_warning_by_default(caplog: pytest.LogCaptureFixture) -> None:
    """Once for a command, and the call goes on."""
    with synk.Group(2, stall_warning=0.2) as group, caplog.at_level(logging.WARNING):
        group.run(Fault("nap", (1,)), "a test")
        group.run(Fault("nap", ()), "a test")
    warnings = [r.getMessage() for r in caplog.records if "waited" in r.getMessage()]
    assert len(warnings) == 1
    assert "rank 1" in warnings[0]
    assert "faults.py" in warnings[0]


def test_a_long_command_takes_its_time(caplog: pytest.LogCaptureFixture) -> None:
    """What is meant to run for hours is not waited for with a limit."""
    with synk.Group(2, timeout=0.1, stall_warning=0.1) as group:
        with caplog.at_level(logging.WARNING):
            assert group.start(Fault("nap", (1,), False)).wait() == {1: 1}
        assert not caplog.records


def test_time_in_which_the_machine_stands_still_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(stalls.time, "monotonic", lambda: now)
    with synk.Group(2, timeout=5.0) as group:
        inspector, number = group.channel.inspector, group.channel.node.number + 1
        inspector.look(number, "a test")
        now += 3600.0
        inspector.look(number, "a test")
        for _ in range(46):
            now += 0.1
            inspector.look(number, "a test")
        now += 0.2
        with pytest.raises(synk.GroupTimeout, match=r"waited 5\.1 s for rank 1"):
            inspector.look(number, "a test")


def test_who_compiles_has_more_time() -> None:
    with synk.Group(2, timeout=LIMIT) as group:
        group.run(Fault("compile", (1,)), "a test")
        with pytest.raises(synk.GroupTimeout):
            group.run(Fault("nap", (1,)), "a test")


@dataclass(frozen=True)
class CompileThenNap(Command):
    """A worker compiles for longer than `COMPILING`, the limit, and computes for a while."""

    def run(self, member: Member) -> None:
        if member.rank:
            with member.compiling():
                time.sleep(1.2 * COMPILING)
            time.sleep(COMPILING / 10)


def test_time_of_compiling_does_not_count() -> None:
    with synk.Group(2, timeout=COMPILING) as group:
        group.run(CompileThenNap(), "a test")


def test_who_is_stopped_does_not_compile() -> None:
    with synk.Group(2, timeout=0.3) as group:
        pid = group.channel.pid(1)
        timer = threading.Timer(0.1, os.kill, (pid, signal.SIGSTOP))
        timer.start()
        with pytest.raises(synk.GroupTimeout, match="stopped"):
            group.run(Fault("compile", (1,)), "a test")
        timer.join()
        os.kill(pid, signal.SIGCONT)
        group.run(Fault("compile", ()), "a test", timeout=30)


def test_a_member_that_stands_still_in_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group ends: nothing but its end keeps the member from writing later."""
    from synkhronos._transport.communicators import shared_memory

    master, original = os.getpid(), shared_memory.in_place

    def slow(*args: object) -> object:
        reduce_chunk = original(*args)

        def act() -> None:
            if os.getpid() != master:
                time.sleep(3600)
            reduce_chunk()

        return act

    monkeypatch.setattr(shared_memory, "in_place", slow)
    s = pytensor.shared(np.ones(100_000), name="s")
    with synk.Group(2, start="fork", timeout=LIMIT) as group:
        synk.broadcast(s)
        with pytest.raises(synk.GroupTimeout, match=r"all_reduce: .*rank 1"):
            synk.all_reduce(s, "sum")
        assert not group.alive
    with synk.Group(1), pytest.raises(synk.StateTorn):
        synk.all_reduce(s)
