"""No half-written value is ever used (promise 15): members are killed while they write."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from selection import thorough

import synkhronos as synk
from synkhronos.extensions import make_train_function, updates

Trials = Callable[[Any, Any], Any]
SIZE = 400_000
RATE, MOMENTUM = 0.5, 0.25


class Reduced:
    """all_reduce in place: each time three times as much, modulo 2**64."""

    def __init__(self) -> None:
        self.variables = [pytensor.shared(np.ones(SIZE, "uint64"), name="s")]
        self.now = (np.uint64(1),)

    def act(self) -> None:
        synk.all_reduce(self.variables[0], "sum")

    def following(self) -> tuple[Any, ...]:
        with np.errstate(over="ignore"):
            return (self.now[0] * np.uint64(3),)


class Trained:
    """A training step: parameters and velocities, which the node holds once."""

    def __init__(self) -> None:
        rows, w = pt.vector("rows", dtype="float64"), pytensor.shared(np.zeros(SIZE), name="w")
        self.train = make_train_function(
            *((rows * w.sum()).mean(), [w], rows, None, updates.momentum, RATE),
            momentum=MOMENTUM,
            mode=FAST,
        )
        self.variables = [w, *self.train.state]
        self.now = (0.0, 0.0)
        self.rows = np.ones(6)

    def act(self) -> None:
        self.train(self.rows)

    def following(self) -> tuple[Any, ...]:
        w, velocity = self.now
        velocity = MOMENTUM * velocity - RATE
        return w + velocity, velocity


class Updated:
    """An update that is reduced over the members: it stands or it does not."""

    def __init__(self) -> None:
        rows, s = pt.vector("rows", dtype="float64"), pytensor.shared(np.zeros(SIZE), name="s")
        self.f = synk.function(
            [rows], rows.sum(), updates=[(s, s + rows.max(), "max", "all")], mode=FAST
        )
        self.variables = [s]
        self.now = (0.0,)
        self.rows = np.ones(6)

    def act(self) -> None:
        self.f(self.rows)

    def following(self) -> tuple[Any, ...]:
        return (self.now[0] + 1.0,)


def kill_within(work: Any, pid: int, seconds: float) -> None:
    """Until a member is killed, the work goes on, and counts."""
    timer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
    timer.start()
    try:
        while True:
            work.act()
            work.now = work.following()
    except synk.WorkerDied:
        pass
    finally:
        timer.join()


def judge(work: Any) -> str:
    """After a death: "old" or "new" values, or "torn" ones, which nobody can use."""
    values = [v.get_value(borrow=True) for v in work.variables]
    found = {n: all((v == x).all() for v, x in zip(values, version, strict=True))
             for n, version in (("old", work.now), ("new", work.following()))}  # fmt: skip
    state = next((name for name, whole in found.items() if whole), "mixed")
    refused = []
    with synk.Group(1):
        for variable in work.variables:
            try:
                synk.broadcast(variable)
                refused.append(False)
            except synk.StateTorn:
                refused.append(True)
                variable.set_value(np.zeros_like(variable.get_value(borrow=True)))
                synk.broadcast(variable)
    held = [dict(zip(*np.unique(v, return_counts=True), strict=True)) for v in values]
    assert state != "mixed" or any(refused), f"{held} could be used, {work.now} was the last"
    for value, torn in zip(values, refused, strict=True):
        assert torn or len(np.unique(value)) == 1, "one of them could be used"
    return "torn" if any(refused) else state


@pytest.mark.parametrize("kind", [Reduced, *thorough(Trained), Updated])
def test_killed_while_writing(kind: Any, trials: Trials) -> None:
    """What the master finds afterwards is the value before, the value after, or StateTorn."""
    draw, told = random.Random(kind.__name__), Counter[str]()
    for _ in range(trials(2, 170)):
        with synk.Group(3, start="fork") as group:
            work = kind()
            for _ in range(2):  # the first compiles
                began = time.monotonic()
                work.act()
                work.now = work.following()
            steps = draw.uniform(0.0, 3.0)
            pid = group.channel.pid(draw.choice((1, 2)))
            kill_within(work, pid, steps * (time.monotonic() - began))
        told[judge(work)] += 1
    assert kind is not Updated or not told["torn"], "which needs no second copy"
    print(f"{kind.__name__}: {dict(told)}")
