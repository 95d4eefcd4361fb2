"""A scenario through the whole interface; whatever dies, it says so and starts again."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numba
import numpy as np
import pytensor
import pytensor.link.numba.dispatch  # here, where no fault can leave it half imported
import pytensor.tensor as pt
from pytensor.compile.mode import Mode

import synkhronos as synk
from synkhronos.extensions import make_train_function, updates
from synkhronos.testing.faults import Fault

numba.njit(lambda: 0)()  # imports what numba would import when the first loop is compiled
FAST = Mode("py", None)  # as in the tests; this program runs by itself
MEMBERS = 3  # unless the argument of the trial says otherwise


def scenario(trial: Any) -> None:
    """Once with the victim, once without."""
    hook_starts(trial)
    trial.pause("start")
    try:
        work(trial)
        trial.say("finished")
    except Exception as exc:
        trial.say(f"{type(exc).__name__}: {exc}")
    synk.close()
    try:
        again()
    except Exception as exc:  # the fault came late
        trial.say(f"later {type(exc).__name__}: {exc}")
        synk.close()
        again()
    trial.say("again")


def again() -> None:
    """A group, a function, a call."""
    synk.fork(2)
    x = pt.vector("x", dtype="float64")
    assert synk.function([x], x.sum(), mode=FAST)(np.ones(5)) == 5
    synk.close()


def hook_starts(trial: Any) -> None:
    """A worker may be the victim from its first instruction on."""
    forks = iter(range(1, 1000))
    numbers: list[int] = []
    os.register_at_fork(
        before=lambda: numbers.append(next(forks)),
        after_in_child=lambda: trial.pause(f"start of {numbers[-1]}"),
    )


def work(trial: Any) -> None:
    """A bit of everything."""
    members = synk.fork(int(trial.argument or MEMBERS), start="fork")
    group = synk._engine.group.current()
    trial.mark(group)
    x, w = pt.matrix("x", dtype="float64"), pytensor.shared(np.ones(3), "w")
    s = pytensor.shared(np.arange(20_000.0), "s")
    d = synk.data(np.arange(36.0).reshape(12, 3))
    f = synk.function([x], [(x @ w).sum(), x @ w], mode=FAST)
    for rows in (None, [0, 3, 5, 7], slice(1, 5)):
        f(d, batch=rows)
    f(np.ones((4, 3)))
    big = synk.function([x], (x.T @ x) + np.zeros((100, 3, 3)).sum(), mode=FAST)
    big(d)
    step = synk.function([x], updates=[(w, w - 0.01 * x.mean(axis=0), "avg", "all")], mode=FAST)
    step(d)
    with contextlib.suppress(synk.WorkerError):
        group.run(Fault("ValueError", (1,)), "raising")
    for op in ("sum", "avg", "max"):
        synk.all_reduce([s, w], op)
    synk.broadcast(s)
    synk.scatter(s, np.arange(10.0 * members))
    synk.gather(s)
    synk.get_value(1, s)
    synk.set_value(1, w, np.zeros(3))
    synk.broadcast(w)
    d.set_length(20)
    d[12:] = 1.0
    f(d)
    del d
    loss = ((x @ w) ** 2).mean()
    train = make_train_function(loss, [w], x, None, updates.momentum, 0.001, mode=FAST)
    for _ in range(3):
        train(np.ones((6, 3)))
    synk.close()
