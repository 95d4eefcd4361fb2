"""A training loop that takes the first rows for ever is told so, once; what means them is not."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import make_local_train_function, make_train_function, updates
from synkhronos.extensions._step.same_rows import SameRows
from synkhronos.training import Alternate

X = np.random.default_rng(5).normal(size=(20, 2))
Y = X @ [1.0, 2.0]


def made(maker: Callable[..., Any], name: str = "train", **options: Any) -> Any:
    x, y = pt.dmatrix("x"), pt.dvector("y")
    w = pytensor.shared(np.zeros(2), name="w")
    loss = ((x @ w - y) ** 2).mean()
    return maker(loss, [w], x, y, updates.sgd, 0.01, mode=FAST, name=name, **options)


def repeat(step: Callable[[int], Any]) -> None:
    for i in range(10):
        step(i)


def alternate() -> Alternate:
    """Two functions of the same inputs."""
    x, y = pt.dmatrix("x"), pt.dvector("y")
    parts = []
    for name in ("first", "second"):
        w = pytensor.shared(np.zeros(2), name="w")
        loss = ((x @ w - y) ** 2).mean()
        how = {"mode": FAST, "name": name}
        parts.append((make_train_function(loss, [w], x, y, updates.sgd, 0.01, **how), 1))
    return Alternate(parts)


KINDS: dict[str, Callable[[], Any]] = {
    "steps": lambda: made(make_train_function),
    "rounds": lambda: made(make_train_function, rule=rules.Average(3)),
    "local": lambda: made(make_local_train_function),
    "alternate": alternate,
}


@pytest.mark.parametrize("kind", KINDS)
def test_first_rows_for_ever(group2: synk.Group, kind: str) -> None:
    """One warning at the user's line, which says what to write."""
    train = KINDS[kind]()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(9):
            train(X, Y, batch=8)
        assert not told
        for _ in range(40):
            train(X, Y, batch=8)
    [warning] = told
    assert warning.category is synk.BatchWarning
    assert warning.filename == __file__
    for words in ("first 8 of the same 20 rows", "Batches(20, 8)", "fit(batch=8)", "slice(0, 8)"):
        assert words in str(warning.message)


@pytest.fixture
def train(group2: synk.Group) -> Any:
    return made(make_train_function)


def test_integers_of_numpy_data_and_names(train: Any) -> None:
    x, y = train.build_inputs(X, Y)
    with pytest.warns(synk.BatchWarning, match="first 8 of the same 20 rows"):
        repeat(lambda i: train(x, y=y, batch=np.int64(8)))


def test_what_is_not_the_same(train: Any) -> None:
    """Other arrays, other rows, all rows, slices; every warning is an error here."""
    for i in range(12):
        train(X, Y, batch=slice(0, 8))
        train(X, Y, batch=7 + i % 2)
    for _ in range(12):
        train(X, Y, batch=20)
    for _ in range(12):
        train(X.copy(), Y.copy(), batch=8)
    x, y = train.build_inputs(X, Y)
    for i in range(12):
        x.set_value(X + i)
        train(x, y, batch=8)
        x[0] = i
        train(x, y, batch=8)


def test_an_address_is_no_identity() -> None:
    """A new array may lie where the one before did; every warning is an error here."""
    rows = SameRows(1)
    for _ in range(30):
        rows.note("f", [X.copy()], {}, 8)


def test_arrays_are_not_kept(train: Any) -> None:
    x = X.copy()
    train(x, Y, batch=8)
    gone = [False]
    weakref.finalize(x, gone.__setitem__, 0, True)
    del x
    assert gone == [True]


def test_scalars_of_each_step_do_not_matter(group2: synk.Group) -> None:
    """A rate that is an input is another object in each call."""
    x, rate = pt.dvector("x"), pt.dscalar("rate")
    w = pytensor.shared(np.zeros(()), name="w")
    loss = ((w - x) ** 2).mean()
    train = make_train_function(
        loss, [w], x, None, updates.sgd, rate, bcast_inputs=[rate], mode=FAST
    )
    rows = X[:, 0].copy()
    with pytest.warns(synk.BatchWarning):
        repeat(lambda i: train(rows, 0.1 / (i + 1), batch=8))
