"""A model's log-density and gradient, plain and divided, at the same points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
from exact import truth
from modes import FAST
from pymc import pytensorf
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

# numpy computes, and unstable expressions are rewritten as in any compiled function
IN_PYTHON = Mode("py", RewriteDatabaseQuery(include=["canonicalize", "stabilize"]))


def points(model: pm.Model, count: int, seed: int = 5) -> list[dict[str, np.ndarray]]:
    """Points around the initial one; other points than those of the proof."""
    rng = np.random.default_rng(seed)
    start = model.initial_point(0)
    return [
        {
            k: v + rng.uniform(-0.4, 0.4, v.shape) if v.dtype.kind == "f" else v
            for k, v in start.items()
        }
        for _ in range(count)
    ]


def far_points(model: pm.Model, seed: int = 7) -> list[dict[str, np.ndarray]]:
    """Points far from the initial one: of all values, and of one value of each variable."""
    rng = np.random.default_rng(seed)
    start = model.initial_point(0)
    smooth = [k for k, v in start.items() if v.dtype.kind == "f" and v.size]
    moved = [
        start | {k: start[k] + scale * rng.normal(size=start[k].shape) for k in smooth}
        for scale in (10, 40, 300, 1000)
    ]
    alone = []
    for k in smooth:
        for value in (-720.0, -25.0, 25.0, 36.0, 720.0):
            there = start[k].astype("float64")
            there.reshape(-1)[rng.integers(there.size)] = value
            alone.append(start | {k: there})
    return moved + alone


Points = list[dict[str, np.ndarray]]


def function(model: pm.Model, mode: Any = IN_PYTHON) -> Callable[[Points], list[tuple[Any, Any]]]:
    """(log-density, gradient) at each point, with the data that the model then has.

    Of a plain model, one function has both, which takes half the time to compile. Of one with our
    log-density each has its own, since samplers may ask for one alone.
    """
    if "logp" in vars(model):
        functions = [model.compile_logp(mode=mode), model.compile_dlogp(mode=mode)]
    else:
        value = pytensorf.rewrite_pregrad(model.logp())
        both = [value, pytensorf.gradient(value, model.continuous_value_vars)]
        functions = [model.compile_fn(both, inputs=model.value_vars, mode=mode)]

    def found(at: Points) -> list[tuple[Any, Any]]:
        with np.errstate(all="ignore"):
            values = [[f(p) for f in functions] for p in at]
        return [tuple(each[0] if len(each) == 1 else each) for each in values]

    return found


def evaluated(model: pm.Model, at: Points, mode: Any = IN_PYTHON) -> list[tuple[Any, Any]]:
    """(log-density, gradient) at each point, as the model is now."""
    return function(model, mode)(at)


def plainly(model: pm.Model, at: Points) -> list[tuple[Any, Any]]:
    """Those of a plain model near its initial point.

    There the gradient need not be rewritten, in half of the time. Far from it, it has other digits.
    """
    return evaluated(model, at, FAST)


def check_equal(
    plain: list[tuple[Any, Any]], divided: list[tuple[Any, Any]], rtol: float = 1e-8
) -> None:
    """To rounding, at every point; and some log-density is finite, else nothing is compared."""
    assert any(np.isfinite(value) for value, _ in plain)
    for (value, gradient), (other, other_gradient) in zip(plain, divided, strict=True):
        np.testing.assert_allclose(other, value, rtol=1e-10)
        if np.isfinite(value):
            scale = np.abs(gradient).max(initial=1.0)
            np.testing.assert_allclose(
                other_gradient, gradient, rtol=rtol, atol=1e-2 * rtol * scale
            )


def check_not_worse(
    model: pm.Model,
    at: list[dict[str, np.ndarray]],
    plain: list[tuple[Any, Any]],
    divided: list[tuple[Any, Any]],
    rtol: float = 1e-7,
) -> None:
    """The divided log-density is as near to the true one as the plain one; so is its gradient.

    The gradient counts where the plain log-density is finite: no sampler uses it elsewhere. Errors
    of both are rounding errors, of which one may be a few times as large as the other. Gradients
    that differ by `rtol` are equal.
    """
    exact = None
    for point, (value, slope), (other, other_slope) in zip(at, plain, divided, strict=True):
        given = f"{point}: plain {value}, {slope}; divided {other}, {other_slope}"
        assert other != np.inf or value == np.inf, given
        assert np.isfinite(other) or not np.isfinite(value), given
        if not np.isfinite(value):
            continue
        if _distance(other, value) <= 1e-9 and _distance(other_slope, slope) <= rtol:
            continue
        exact = exact or truth(model)
        true = exact(point)
        assert true is not None, f"the true value is not known at {given}"
        expected, expected_slope = true
        allowed = max(1e-9, 10 * _distance(value, expected))
        assert _distance(other, expected) <= allowed, f"true {expected} at {given}"
        # nan where exact arithmetic has none either: there the plain slope counts if it is a number
        slope, other_slope = np.asarray(slope), np.asarray(other_slope)
        expected_slope = np.where(np.isnan(expected_slope), slope, expected_slope)
        known = ~np.isnan(expected_slope)
        allowed = max(rtol, 10 * _distance(slope[known], expected_slope[known]))
        given = f"true {expected_slope} at {given}"
        assert _distance(other_slope[known], expected_slope[known]) <= allowed, given


def _distance(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest number that is expected."""
    found, expected = np.asarray(found), np.asarray(expected)
    if np.array_equal(np.isfinite(found), np.isfinite(expected)):
        there = np.isfinite(expected)
        found, expected = found[there], expected[there]
        return float(np.abs(found - expected).max(initial=0) / np.abs(expected).max(initial=1e-300))
    return np.inf
