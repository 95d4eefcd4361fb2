"""Runs of free rules for tests: small models, members of unequal speed, and replays."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from apart import Alone
from modes import FAST
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from training_cases import Net

from synkhronos import rules
from synkhronos.extensions import Batches, make_train_function, updates
from synkhronos.extensions._apart.free.claims import BatchOrder, Claims, RowsOfBatches
from synkhronos.extensions._apart.free.pages import CLAIMED, STEPS
from synkhronos.testing import simulate

FREE_RULES = {
    "easgd": rules.EASGD(3),
    "downpour": rules.Downpour(2),
    "downpour plain": rules.Downpour(1, scale="none"),
    "quorum": rules.Downpour(2, quorum=2),
    "bound": rules.Downpour(1, bound=1),
    "centre": rules.Downpour(2, functools.partial(updates.adam, learning_rate=0.1, epsilon=0.01)),
    "centre quorum": rules.Downpour(
        2, functools.partial(updates.momentum, learning_rate=0.5, momentum=0.5), quorum=2
    ),
    "gem": rules.GEM(2),
    "hogwild": rules.Hogwild(),
    "gosgd": rules.GoSGD(0.5, seed=3),
}
TURN_RULES = {k: r for k, r in FREE_RULES.items() if k not in ("hogwild", "gosgd")}


class Slowed(Op):
    """The value itself, after a sleep in the master or in the workers; of what has no rows.

    The process that makes it is the master.
    """

    __props__ = ("master", "workers", "pid")

    def __init__(self, master: float = 0.0, workers: float = 0.0) -> None:
        self.master, self.workers, self.pid = master, workers, os.getpid()

    def make_node(self, x: Any) -> Apply:
        x = pt.as_tensor_variable(x)
        return Apply(self, [x], [x.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        time.sleep(self.master if os.getpid() == self.pid else self.workers)
        output_storage[0][0] = inputs[0].copy()


class Held(Op):
    """The value itself; workers first wait until a file exists, for at most 20 s.

    The process that makes it is the master. No wait is in the first call, by which a run begins.
    A worker that waits has made the file "held" beside the other one.
    """

    __props__ = ("path", "pid")

    def __init__(self, path: Path) -> None:
        self.path, self.pid, self.calls = path, os.getpid(), 0

    def make_node(self, x: Any) -> Apply:
        x = pt.as_tensor_variable(x)
        return Apply(self, [x], [x.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        until, self.calls = time.monotonic() + 20, self.calls + 1
        held = os.getpid() != self.pid and self.calls > 1
        if held:
            self.path.with_name("held").touch()
        while held and not self.path.exists():
            assert time.monotonic() < until
            time.sleep(0.001)
        output_storage[0][0] = inputs[0].copy()


def batches_wait(patch: pytest.MonkeyPatch, ready: Callable[[int, list[int]], bool]) -> None:
    """Members that are forked after this take a batch only when it is their turn.

    `ready` says so, of a member's rank and of the steps that each member has made. When all batches
    have been taken, nobody waits. Other than sleeps, this makes a member slow on any machine.
    """
    claim = Claims.next

    def late(claims: Any, stopped: Callable[[], bool]) -> int | None:
        until = time.monotonic() + 60
        while not stopped() and max(page.words[CLAIMED] for page in claims._pages) < claims._total:
            if ready(claims._peers.rank, [page.words[STEPS] for page in claims._pages]):
                break
            assert time.monotonic() < until
            time.sleep(0.001)
        return claim(claims, stopped)

    patch.setattr(Claims, "next", late)


def counting(rule: Any, n: int, slowed: Op | None = None, **options: Any) -> Any:
    """A training function whose parameter counts how often each of n rows is used, negatively.

    With `Downpour(scale="none")` the centre holds exact counts.
    """
    rows = pt.lvector("rows")
    w = pytensor.shared(np.zeros(n), name="w")
    loss = w[rows].sum() if slowed is None else w[rows].sum() + slowed(0.0)
    train = make_train_function(
        loss, [w], rows, None, updates.sgd, 1.0, rule=rule, mode=FAST, **options
    )
    return train, w, train.build_inputs(np.arange(n))


def equal(rule: Any, n: int = 5, elements: int = 1, slowed: Op | None = None, **more: Any) -> Any:
    """A training function whose parameters all have the same value at any time, and its data."""
    x = pt.vector("x", dtype="float64")
    ws = [pytensor.shared(np.zeros(elements), name=f"w{i}") for i in range(2)]
    loss = sum(((w - x[:, None]) ** 2).sum(axis=1) for w in ws).mean()
    if slowed is not None:
        loss += slowed(0.0)
    train = make_train_function(loss, ws, x, None, updates.sgd, 0.05, rule=rule, mode=FAST, **more)
    return train, ws, train.build_inputs(1 + np.arange(float(n)) / n)


def at_centre(values: Any) -> list[np.ndarray]:
    """The states of the optimizer at the centre in a point, or in a training function's state."""
    named = values.items() if isinstance(values, dict) else ((v, v.get_value()) for v in values)
    return [value for v, value in named if v.name.endswith("at the centre")]


def flat(values: Any) -> np.ndarray:
    return np.concatenate([np.ravel(v) for v in values])


class Twin:
    """The members of a run, one after the other in plain PyTensor, for `simulate`."""

    def __init__(self, net: Net, optimizer: Any, options: Any, size: int) -> None:
        def loss(own: Net, share: Any) -> Any:
            del share
            return own.loss

        self.members = [Alone(optimizer, options, loss, net.dtype, None) for _ in range(size)]
        self.start = flat(self.members[0].net.values())

    def replay(self, rule: Any, log: Any, order: BatchOrder, x: Any, y: Any) -> Any:
        """The simulation of a run's log."""
        rows = RowsOfBatches(order)
        numbers = {rank: [b for entry in log[rank] for b in entry[5]] for rank in log}

        def step(w: np.ndarray, at: np.ndarray, rank: int) -> None:
            w[:] = self.step(rank, w, x, y, rows[int(at[0])])

        return simulate(
            rule,
            step,
            lambda w, rank, step: np.array([numbers[rank][step]]),
            [1.0] * len(self.members),
            schedule=log,
            start=self.start,
            rows=[float(order.size)] * len(self.members),
        )

    def step(self, rank: int, w: np.ndarray, x: Any, y: Any, rows: Any) -> np.ndarray:
        """What a step of a member on these rows makes of its parameters."""
        member = self.members[rank]
        values = []
        for p in member.net.params:
            shape = p.get_value(borrow=True).shape
            size = int(np.prod(shape))
            values.append(w[:size].reshape(shape))
            w = w[size:]
        Alone.put(member.net.params, values)
        member.step(x[rows], y[rows])
        return flat(member.net.values())


def batches_of(n: int, size: int, **more: Any) -> Batches:
    return Batches(n, size, seed=1, **more)
