"""Programs for `terminal`: each comes into a state, says so, and stays in it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.link.numba.dispatch
import pytensor.tensor as pt
from pytensor.compile.mode import Mode

import synkhronos as synk
from synkhronos.extensions import make_train_function, updates
from synkhronos.testing.faults import Fault

FAST = Mode("py", None)  # as in the tests; this program runs by itself
QUIET = 0.3  # seconds without another interrupt, after which a program goes on


class Work:
    """A group, and things to do that are made when they are asked for."""

    def __init__(self, **options: Any) -> None:
        synk.fork(3, **options)
        self.group = synk._engine.group.current()
        self.x = pt.matrix("x", dtype="float64")

    @cached_property
    def data(self) -> synk.Data:
        return synk.data(np.ones((12, 3)))

    @cached_property
    def shared(self) -> Any:
        made = pytensor.shared(np.ones(50_000), "shared")
        synk.all_reduce(made)
        return made

    @cached_property
    def count(self) -> Any:
        return pytensor.shared(np.zeros(3), "count")

    @cached_property
    def f(self) -> synk.Function:
        updates = [(self.count, self.count + 1)]
        made = synk.function([self.x], self.x.sum(), updates=updates, mode=FAST)
        made(self.data)
        return made

    @cached_property
    def w(self) -> Any:
        return pytensor.shared(np.ones(3), "w")

    @cached_property
    def train(self) -> Any:
        loss = ((self.x @ self.w) ** 2).mean()
        rule = updates.momentum
        made = make_train_function(loss, [self.w], self.x, None, rule, 0.001, mode=FAST)
        made(np.ones((6, 3)))
        return made

    def check(self) -> None:
        """A call is right, and the members' values are equal and whole."""
        assert self.f(self.data) == 36
        synk.all_reduce(self.shared)
        if "train" in vars(self):
            self.train(np.ones((6, 3)))
        for name in {"shared", "count", "w"} & set(vars(self)):
            variable = getattr(self, name)
            values = [synk.get_value(rank, variable) for rank in range(3)]
            assert all((v == values[0]).all() for v in values), name
            assert len(set(values[0])) == 1, name


def idle(work: Work) -> None:
    time.sleep(3600)


def user_code(work: Work) -> None:
    while True:
        pass


def barrier(work: Work) -> None:
    work.group.run(Fault("sleep", (1,)), "a test")


def c_call(work: Work) -> None:
    work.group.run(Fault("C call", (1,)), "a test")


def calls(work: Work) -> None:
    f, data = work.f, work.data
    while True:
        f(data)


def collective(work: Work) -> None:
    shared = work.shared
    while True:
        synk.all_reduce(shared)


def training(work: Work) -> None:
    train = work.train
    while True:
        train(np.ones((6, 3)))


def raising(work: Work) -> None:
    while True:
        with contextlib.suppress(ValueError):
            work.group.run(Fault("ValueError", (1,)), "a test")


def task(work: Work) -> None:
    while True:
        work.group.start(Fault("ValueError", (), meet=False), "a task").wait()


def compiling(work: Work) -> None:
    data, n = work.data, 0
    while True:
        n += 1
        assert synk.function([work.x], work.x.sum() + n, mode=FAST)(data) == 36 + n


def data(work: Work) -> None:
    while True:
        synk.data(np.ones(50_000))


MADE = {"calls": ("f",), "collective": ("shared",), "training": ("train",)}  # beforehand
STATES: dict[str, Callable[[Work], None]] = {
    f.__name__: f
    for f in (idle, user_code, barrier, c_call, calls, collective, training, raising, task)
} | {f.__name__: f for f in (compiling, data)}
LASTING = ("barrier", "c_call")  # the group cannot go on after these


def start() -> None:
    while True:
        synk.fork(3)
        synk.close()


def start_exec() -> None:
    while True:
        synk.fork(3, start="exec")
        synk.close()


def close() -> None:
    """Workers that do not leave take the time that they are given."""
    while True:
        synk.fork(3)
        synk._engine.group.current().start(Fault("C call", (1,), meet=False))
        synk.close()


BORDERS: dict[str, Callable[[], None]] = {f.__name__: f for f in (start, start_exec, close)}


def program(say: Callable[[str], None], state: str, how: str = "") -> None:
    """Come into a state; with "goes on", be at work again after the interrupt."""
    if state in BORDERS:
        say("there")
        BORDERS[state]()
    work = Work(debug=how == "debug")
    for part in MADE.get(state, ()):
        getattr(work, part)
    keys = Keys()
    if how == "goes on":
        signal.signal(signal.SIGINT, keys)
    try:
        say("there")
        STATES[state](work)
    except KeyboardInterrupt:
        keys.caught = True  # Python runs no handler between the match and this
        if how != "goes on":
            raise
        go_on(say, work, keys)


class Keys:
    """A handler of Ctrl-C: each raises until one has been caught."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.caught = False

    def __call__(self, *_: object) -> None:
        self.at.append(time.monotonic())
        if not self.caught:
            raise KeyboardInterrupt


def go_on(say: Callable[[str], None], work: Work, keys: Keys) -> None:
    """Be at work again, as soon as nobody interrupts any more."""
    while time.monotonic() < keys.at[-1] + QUIET:
        time.sleep(0.01)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    say(f"interrupted {keys.at[0]}")
    signal.alarm(90)  # whoever goes on for ever
    work.check()
    synk.close()
    say("again")
