"""Small problems for networks, and a training that ends with a rate of 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.extensions import updates
from synkhronos.training import Net, fit, scheduled, sources

BATCH = 50


def images_of_digits(pixels: int) -> Any:
    """Digits of scikit-learn as images of so many pixels to a side, in all and to validate."""
    pytest.importorskip("sklearn")
    split = sources.known("digits")
    times = pixels // 8
    return [
        (np.kron(x.reshape(-1, 8, 8, 1), np.ones((times, times, 1))).astype("float32"), y)
        for x, y in (split.train, split.test)
    ]


def marked(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sequences of numbers, two of them marked, and whether the second of these is larger."""
    rng = np.random.default_rng(seed)
    x = np.zeros((rows, 10, 2))
    x[:, :, 0] = rng.uniform(-1, 1, (rows, 10))
    places = rng.integers(0, 5, rows), rng.integers(5, 10, rows)
    for place in places:
        x[np.arange(rows), place, 1] = 1
    first, second = (x[np.arange(rows), place, 0] for place in places)
    return x, (second > first).astype("int32")


def copies(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Six random tokens of eight, then the same ones again; and for each token the next one.

    The first five answers are random, so one of eight is right by chance. The last six are known.
    """
    half = np.random.default_rng(seed).integers(0, 8, (rows, 6))
    whole = np.concatenate([half, half], axis=1).astype("int32")
    return whole[:, :-1], whole[:, 1:]


def learned(net: Net, train: Any, test: Any, rate: float, epochs: int, **more: Any) -> float:
    """The share of right answers to the test, of a network that two members have trained.

    By Adam. The rate falls to 0: at a constant rate, the share would depend on where the last step
    happened to end, since single steps still change it by several points.
    """
    steps = epochs * -(-len(train[0]) // BATCH)
    adam = scheduled(updates.adam, lambda step: (rate * (1 - step / steps)).astype(net.loss.dtype))
    how = {"mode": "FAST_COMPILE", "progress": False} | more
    with synk.Group(2):
        run = fit(
            net, train, optimizer=adam, batch=BATCH, epochs=epochs, validation=test, **how
        )  # fmt: skip
    return float(run.history["val_accuracy"][-1])
