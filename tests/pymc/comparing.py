"""A model's log-density and gradient, plain and divided, at the same points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
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


def evaluated(model: pm.Model, at: list[dict[str, np.ndarray]]) -> list[tuple[Any, Any]]:
    """(log-density, gradient) at each point, as the model is now."""
    logp, dlogp = model.compile_logp(mode=IN_PYTHON), model.compile_dlogp(mode=IN_PYTHON)
    return [(logp(p), dlogp(p)) for p in at]


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
