"""Scans of a few numbers: graphs of three inputs and a length, with their slopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

R = np.random.default_rng(0)
Y = R.normal(size=12)
CHOICES = R.integers(0, 3, size=12)
TABLE = R.normal(size=(40, 2))
X, V, M = pt.dscalar("x"), pt.vector("v", shape=(3,)), pt.matrix("m", shape=(2, 2))
LENGTH = pt.lscalar("length")
VALUES = {X: np.array(0.3), V: np.array([0.2, -0.4, 0.7]), M: np.array([[0.3, 0.2], [0.1, -0.5]])}
VALUES[LENGTH] = np.array(7)


def scanned(step: Callable[..., Any], **given: Any) -> Any:
    return pytensor.scan(step, return_updates=False, **given)


def garch() -> Any:
    return scanned(
        lambda y, s: pt.sqrt(0.1 + V[0] ** 2 * y**2 + X**2 * s**2),
        sequences=[pt.constant(Y)],
        outputs_info=[pt.constant(np.array(1.0))],
    )


def autoregression() -> Any:
    return scanned(
        lambda before, last: V[0] * last + V[1] * before + X,
        outputs_info=[{"initial": V[:2], "taps": [-2, -1]}],
        n_steps=LENGTH,
    )


def hidden_states() -> Any:
    def step(y: Any, state: Any) -> Any:
        return pt.logsumexp(state[:, None] + M, axis=0) - (y - V[:2]) ** 2

    return scanned(step, sequences=[pt.constant(Y)], outputs_info=[V[1:] * X])[-1]


def linear_states() -> Any:
    return scanned(lambda z: pt.tanh(M @ z) + z @ M, outputs_info=[V[:2]], n_steps=9)


def learning() -> Any:
    """The position that is learnt comes from data; so does a row of a long table."""

    def step(choice: Any, values: Any) -> Any:
        better = values[choice - 1] + X * (pt.constant(TABLE)[choice, 1] - values[choice - 1])
        return pt.set_subtensor(values[choice - 1], better)

    return scanned(step, sequences=[pt.constant(CHOICES)], outputs_info=[V])


def looked_up() -> Any:
    rows = pt.constant(R.integers(-40, 40, size=12))

    def step(row: Any, state: Any) -> Any:
        return X * state + pt.constant(TABLE)[row].sum() * pt.constant(TABLE)[3, 1]

    return scanned(step, sequences=[rows], outputs_info=[X])


def two_results() -> Any:
    """One of each step alone, and one of which the last five are asked for."""

    def step(y: Any, a: Any) -> Any:
        return pt.maximum(pt.sin(a + y * X), V[2]), pt.stack([a * y, X, a.sum()])

    a, b = scanned(step, sequences=[pt.constant(Y)], outputs_info=[X, None])
    return pt.concatenate([a[-5:], b.ravel()])


def last_and_all() -> Any:
    """The last value of one result, and all of two others."""

    def step(y: Any, a: Any) -> Any:
        return a * X + y, a * y, pt.concatenate([a[None], y[None]])

    a, b, c = scanned(step, sequences=[pt.constant(Y)], outputs_info=[V[0], None, None])
    return pt.concatenate([a[-1][None], b, c.ravel()])


def mixed_kinds() -> Any:
    """Counts, and truth values."""

    def step(y: Any, n: Any, z: Any) -> Any:
        up = pt.gt(y * z, 0.0)
        return n + pt.cast(up, "int64"), pt.where(up & pt.lt(n, 4), z * X, pt.special.softmax(V)[1])

    n, z = scanned(
        step, sequences=[pt.constant(Y)], outputs_info=[pt.constant(0, dtype="int64"), X]
    )
    return n * z


GRAPHS = [garch, autoregression, hidden_states, linear_states, learning, looked_up]
GRAPHS += [two_results, last_and_all, mixed_kinds]


def with_slopes(graph: Callable[[], Any]) -> list[Any]:
    """A result, the sum of its squares, and the slopes of that."""
    found = graph()
    value = (found**2 * pt.arange(1.0, found.size + 1).reshape(found.shape)).sum()
    slopes = pt.grad(value, [X, V, M], disconnected_inputs="ignore")
    return [found, value, *slopes]
