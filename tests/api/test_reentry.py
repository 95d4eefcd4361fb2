"""A signal handler or a finalizer that makes a call while another one is being made.

Its arrays and rows would overwrite those of the outer call; so it gets an error, whatever line of
the outer call it comes at, and the outer call returns what it would have returned without it.
"""

from __future__ import annotations

import gc
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from entering import enter_at_each_line
from modes import FAST

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import make_train_function, updates

pytestmark = pytest.mark.usefixtures("lasting_groups")

Checked = Callable[[], None]


def checked(call: Callable[[], Any], value: float) -> Checked:
    """A call whose result must be this value."""

    def made() -> None:
        found = call()
        assert float(found) == value, found

    return made


def of_arrays() -> tuple[Checked, Checked]:
    x, y = pt.dvector("x"), pt.dvector("y")
    f = synk.function([x, y], (x * y).sum(), mode=FAST)
    a, b = np.ones(256), np.full(256, 10.0)
    return checked(lambda: f(a, a), 256), checked(lambda: f(b, b), 25_600)


def of_listed_rows() -> tuple[Checked, Checked]:
    x = pt.dvector("x")
    f = synk.function([x], x.sum(), mode=FAST)
    d = synk.data(np.arange(10.0))
    first, last = [0, 1, 2, 3], [6, 7, 8, 9]
    return checked(lambda: f(d, batch=first), 6), checked(lambda: f(d, batch=last), 30)


def of_new_lengths() -> tuple[Checked, Checked]:
    """Each call is described anew."""
    x = pt.dvector("x")
    f = synk.function([x], x.sum(), mode=FAST)
    a, b = np.ones(256), np.ones(200)
    return checked(lambda: f(a), 256), checked(lambda: f(b), 200)


def of_steps() -> tuple[Checked, Checked]:
    """The loss says on which rows a step was made."""
    x, w = pt.dvector("x"), pytensor.shared(np.zeros(()), name="w")
    train = make_train_function((w * 0 + x).mean(), [w], x, None, updates.sgd, 0.1, mode=FAST)
    a, b = np.ones(256), np.full(256, 10.0)
    return checked(lambda: train(a), 1), checked(lambda: train(b), 10)


def of_gradients() -> tuple[Checked, Checked]:
    x, w = pt.dvector("x"), pytensor.shared(np.zeros(()), name="w")
    train = make_train_function((w * x).mean(), [w], x, None, updates.sgd, 0.0, mode=FAST)
    a, b = np.ones(256), np.full(256, 10.0)
    return (
        checked(lambda: train.gradients(a)[0], 1),
        checked(lambda: train.gradients(b)[0], 10),
    )


def of_steps_apart() -> tuple[Checked, Checked]:
    """With a meeting after each second step."""
    x, w = pt.dvector("x"), pytensor.shared(np.zeros(()), name="w")
    train = make_train_function(
        (w * 0 + x).mean(), [w], x, None, updates.sgd, 0.1, mode=FAST, rule=rules.Average(2)
    )
    a, b = np.ones(256), np.full(256, 10.0)
    return checked(lambda: train(a), 1), checked(lambda: train(b), 10)


def of_collectives() -> tuple[Checked, Checked]:
    s = pytensor.shared(np.zeros(()), name="s")
    t = pytensor.shared(np.zeros(()), name="t")

    def all_reduced(variable: Any, value: float) -> float:
        synk.broadcast(variable, np.array(value))
        synk.all_reduce(variable, "avg")
        return float(variable.get_value())

    return checked(lambda: all_reduced(s, 3.0), 3), checked(lambda: all_reduced(t, 5.0), 5)


PAIRS = [
    of_arrays,
    of_listed_rows,
    of_new_lengths,
    of_steps,
    of_gradients,
    of_steps_apart,
    of_collectives,
]


@pytest.mark.each_choice
@pytest.mark.parametrize("made", PAIRS, ids=lambda made: made.__name__.removeprefix("of_"))
def test_at_each_line(group: synk.Group, made: Callable[[], tuple[Checked, Checked]]) -> None:
    outer, inner = made()
    for call in (outer, inner) * 2:
        call()
    told = enter_at_each_line(outer, inner)
    assert told["made"] > 3  # before the turn and after it
    assert told["refused"] > 10
    outer()
    inner()


def test_at_lines_of_a_first_call(group2: synk.Group) -> None:
    """What is shipped and compiled for the outer call is whole."""
    x = pt.dvector("x")
    _, inner = of_arrays()
    inner()

    def outer() -> None:
        s = pytensor.shared(np.zeros(()), name="s")
        f = synk.function([x], x.sum() + s, updates=[(s, s + 1)], mode=FAST)
        assert f(np.ones(10)) == 10
        assert f(np.ones(10)) == 11

    told = enter_at_each_line(outer, inner, runs=5)
    assert told["made"] > 100
    assert told["refused"] > 100


def test_data_and_numbers_that_are_made_in_between(group2: synk.Group) -> None:
    """No two Data share memory, and no two functions a number."""
    kept: list[tuple[synk.Data, int]] = []
    numbers: list[int] = []

    def make() -> None:
        value = len(kept)
        d = synk.data(np.full(600, value))
        kept.append((d, value))
        numbers.append(group2.inventory.number())
        del kept[: -len(kept) // 2 : 7]  # gives some memory back

    told = enter_at_each_line(make, make)
    assert told["made"] > 100
    assert len(set(numbers)) == len(numbers)
    starts = {d.ref.offset for d, _ in kept}
    assert len(starts) == len(kept)
    for d, value in kept:
        assert (d.data == value).all()


def test_a_signal_handler(group2: synk.Group) -> None:
    outer, inner = of_arrays()
    told: Counter[str] = Counter()

    def handler(*_: object) -> None:
        try:
            inner()
            told["made"] += 1
        except synk.GroupError as exc:
            assert "signal handler" in str(exc)  # noqa: PT017
            told["refused"] += 1

    outer()
    inner()
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    try:
        while told["refused"] < 100:
            outer()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_finalizer(group2: synk.Group) -> None:
    """The garbage collector runs while a call is made."""
    outer, inner = of_listed_rows()
    told: Counter[str] = Counter()

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            try:
                inner()
                told["made"] += 1
            except synk.GroupError:
                told["refused"] += 1

    outer()
    inner()
    before = gc.get_threshold()
    gc.set_threshold(20, 2, 2)
    try:
        while told["refused"] < 100:
            Cycle()
            outer()
    finally:
        gc.set_threshold(*before)
        gc.collect()


def test_user_code_while_the_runner_is_reserved(group2: synk.Group) -> None:
    """An argument whose conversion makes a call gets an error, and the outer call is made."""
    x = pt.dvector("x")
    f = synk.function([x], x.sum(), mode=FAST)

    class Calling:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return np.array([f(np.ones(3))])

    with pytest.raises(synk.GroupError, match="busy with another command of this thread"):
        f(Calling())
    assert f(np.ones(4)) == 4
