"""`fit` of a Net: as of its parts, with all that belongs to it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST

import synkhronos as synk
from synkhronos import nn
from synkhronos.extensions import make_train_function, updates
from synkhronos.training import Net, Pair, Trainer, fit

pytestmark = pytest.mark.usefixtures("lasting_groups")

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (40, 1, 6, 6)).astype("uint8")
TARGET = RNG.normal(size=40)
HOW: dict[str, Any] = {
    "optimizer": functools.partial(updates.adam, learning_rate=0.01),
    "batch": 8,
    "epochs": 2,
    "progress": False,
}


@pytest.fixture(autouse=True)
def _no_compiler() -> Iterator[None]:
    with pytensor.config.change_flags(mode=FAST, floatX="float64"):
        yield


def moved() -> Net:
    """A line through moved images, with a running mean of the targets and a metric."""
    x, y = pt.tensor4("x", dtype="uint8"), pt.dvector("y")
    words = pt.vector("words", dtype="uint64")
    seen = nn.augment(x, words, pad=1, flip=True, scale=256.0).flatten(2)
    w = pytensor.shared(np.zeros(36), name="w")
    mean = pytensor.shared(np.zeros(()), name="mean")
    error = ((seen @ w - y) ** 2).mean()
    return Net(
        loss=error,
        params=[w],
        inputs=[x, y],
        metrics={"far": abs(seen @ w - y).mean()},
        updates=[(mean, 0.9 * mean + 0.1 * y.mean(), "avg", "all")],
        augment=words,
    )


class Other:
    """A network of a class that knows no Net."""

    def __init__(self, net: Net) -> None:
        self.loss, self.params, self.inputs = net.loss, net.params, net.inputs
        self.updates, self.augment = net.updates, net.augment


def parts_of(net: Net) -> dict[str, Any]:
    return {"updates": net.updates, "augment": net.augment}


FORMS: dict[str, Any] = {
    "by name": lambda net, data: fit(net=net, data=data, **HOW),
    "another class": lambda net, data: fit(Other(net), data, **HOW),
    "parts": lambda net, data: fit(net.loss, net.params, net.inputs, data, **parts_of(net), **HOW),
    "parts by name": lambda net, data: fit(
        loss=net.loss, params=net.params, inputs=net.inputs, data=data, **parts_of(net), **HOW
    ),
    "some by name": lambda net, data: fit(
        net.loss, net.params, data=data, inputs=tuple(net.inputs), **parts_of(net), **HOW
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_train_the_same(group2: synk.Group, form: str) -> None:
    """The statistics are updated and the images are moved, without a word of either."""
    net = moved()
    trainer = fit(net, (IMAGES, TARGET), **HOW)
    [(mean, *_)] = net.updates
    assert mean.get_value() != 0
    again = moved()
    other = FORMS[form](again, (IMAGES, TARGET))
    [w], [v] = net.params, again.params
    np.testing.assert_array_equal(w.get_value(), v.get_value())
    assert again.updates[0][0].get_value() == mean.get_value()
    assert trainer.metrics == ["far"]
    assert other.metrics == (["far"] if form == "by name" else [])


def test_metrics_of_the_net_and_others(group2: synk.Group) -> None:
    data, how = (IMAGES, TARGET), HOW | {"epochs": 1, "validation": (IMAGES, TARGET)}
    trainer = fit(moved(), data, **how)
    assert trainer.metrics == ["loss", "far"]
    net = moved()
    trainer = fit(net, data, metrics={"error": net.loss}, **how)
    assert trainer.metrics == ["loss", "far", "error"]
    net = moved()
    trainer = fit(net, data, metrics={"far": 2 * net.loss}, **how)
    assert trainer.metrics == ["loss", "far"]
    assert trainer.history["val_far"] == [2 * trainer.history["val_loss"][0]]


OPTIMIZERS = ("critic_optimizer", "generator_optimizer")
WRONG: dict[str, tuple[Any, str]] = {
    "updates": (lambda n: fit(n, IMAGES, updates=n.updates, **HOW), "updates= and a Net"),
    "augment": (lambda n: fit(n, IMAGES, augment=n.augment, **HOW), "augment= and a Net"),
    "loss": (lambda n: fit(n, IMAGES, loss=n.loss, **HOW), "loss= and a Net"),
    "params": (lambda n: fit(net=n, data=IMAGES, params=[], **HOW), "params= and a Net"),
    "loss and data": (lambda n: fit(n.loss, IMAGES, **HOW), "found no inputs: give a Net and data"),
    "no data": (lambda n: fit(n.loss, n.params, n.inputs, **HOW), "found no data"),
    "nothing": (lambda n: fit(**HOW), "found no loss"),
    "twice": (
        lambda n: fit(n.loss, n.params, n.inputs, IMAGES, data=IMAGES, **HOW),
        "found data by position and by name",
    ),
    "too many": (
        lambda n: fit(n.loss, n.params, n.inputs, IMAGES, TARGET, **HOW),
        "found 5 arguments by position",
    ),
    "a Net and parts": (
        lambda n: fit(n, n.params, n.inputs, IMAGES, **HOW),
        "found 4 arguments by position, the first of which is a Net",
    ),
    "a Pair": (
        lambda n: fit(Pair(critic=n, generator=n, **dict.fromkeys(OPTIMIZERS)), IMAGES, **HOW),
        "give its cycle to a Trainer",
    ),
    "no such option": (lambda n: fit(n, IMAGES, batches=3, **HOW), "did you mean batch"),
    "words among the inputs": (
        lambda n: fit(replace(n, inputs=[*n.inputs, n.augment]), IMAGES, **HOW),
        "augment=words is among the inputs",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_combinations(group2: synk.Group, wrong: str) -> None:
    call, text = WRONG[wrong]
    with pytest.raises(synk.InputError, match=text):
        call(moved())


@pytest.mark.parametrize(
    ("function", "own"),
    [(Trainer, {"train"}), (Trainer.fit, {"self"}), (make_train_function, set())],
)
def test_options_reach_the_functions_that_take_them(function: Any, own: set[str]) -> None:
    """By their names alone, so `fit` has each of them, with the same default."""
    ours = inspect.signature(fit).parameters
    theirs = inspect.signature(function).parameters
    of_steps = {"loss", "x", "y", "update_rule", "args", "kwargs", "outputs", "bcast_inputs"}
    passed = theirs.keys() - own - of_steps - {"params"}
    assert len(passed) > 8
    for name in passed:
        assert ours[name].default == theirs[name].default, name
