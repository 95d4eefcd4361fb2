"""The check before use: at random points the divided log-density equals the plain one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import rewrite_pregrad
from pytensor.compile.mode import Mode
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.db import RewriteDatabaseQuery

from synkhronos._engine.progress import watch
from synkhronos._errors import InputError
from synkhronos.pymc._terms import Term

POINTS = 3  # number of points that are compared
_TRIES = 40  # attempts to find points where the log-density is finite
_RELATIVE = {"float64": 1e-9, "float32": 1e-3}

# computes with numpy, compiles nothing
_PLAIN = Mode("py", RewriteDatabaseQuery(include=["canonicalize", "stabilize"]))


@dataclass(frozen=True)
class Difference:
    """A disagreement: the name of the quantity, both values, and the allowed difference."""

    what: str
    plain: float
    divided: float
    allowed: float


def points(model: Any, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Points near the initial point: continuous values moved by at most 1, then 1/2, 1/4, ..."""
    rng = np.random.default_rng(seed)
    start = model.initial_point(0)
    found = []
    for i in range(_TRIES):
        width = 2.0 ** -(i // 8)
        found.append(
            {
                name: np.asarray(value + rng.uniform(-width, width, np.shape(value))).astype(
                    value.dtype
                )
                if value.dtype.kind == "f"
                else value
                for name, value in start.items()
            }
        )
    return found


def prove(model: Any, terms: Sequence[Term], divided: Any, check_bounds: bool) -> Difference | None:
    """Compare the terms' plain sum and gradient with those of `divided`; None if they agree.

    Raises
    ------
    InputError
        The log-density is not finite at any point near the initial point.
    """
    values = model.value_vars
    smooth = model.continuous_value_vars
    plain = (
        pt.add(*[t.variable.sum() for t in terms]) if len(terms) > 1 else terms[0].variable.sum()
    )
    scale = sum((pt.abs(t.variable).sum() for t in terms), start=pt.constant(0.0))
    compare_plain = _function(model, values, plain, smooth, [scale], check_bounds)
    compare_divided = _function(model, values, divided, smooth, [], check_bounds)
    compared = 0
    for point in points(model):
        given = [point[v.name] for v in values]
        with np.errstate(all="ignore"):
            value, size, *gradients = compare_plain(*given)
        if not np.isfinite(value) or not all(np.isfinite(g).all() for g in gradients):
            continue
        other, *others = compare_divided(*given)
        names = ["the log-density", *[f"the gradient by {v.name}" for v in smooth]]
        pairs = zip(names, [value, *gradients], [other, *others], strict=True)
        for name, a, b in pairs:
            if found := _difference(name, a, b, float(size)):
                return found
        compared += 1
        if compared == POINTS:
            return None
    if not compared:
        raise InputError(
            f"the log-density of {', '.join(t.name for t in terms)} is finite at none of {_TRIES} "
            "points around the initial point, so it cannot be checked. Give initial values "
            "(initval=) at which it is finite"
        )
    return None


def _function(
    model: Any,
    values: Sequence[Any],
    total: Any,
    smooth: Sequence[Any],
    more: Sequence[Any],
    check_bounds: bool,
) -> Callable[..., Any]:
    [copied] = clone_replace([total])  # rewriting changes graphs in place
    total = rewrite_pregrad(copied)
    gradients = pytensor.grad(total, list(smooth), disconnected_inputs="ignore") if smooth else []
    check = (
        "local_check_parameter_to_ninf_switch" if check_bounds else "local_remove_check_parameter"
    )
    made: Callable[..., Any] = pytensor.function(
        list(values),
        [total, *more, *gradients],
        mode=_PLAIN.including(check),
        on_unused_input="ignore",
    )
    watch(made)
    return made


def _difference(what: str, plain: Any, divided: Any, size: float) -> Difference | None:
    plain, divided = np.asarray(plain), np.asarray(divided)
    if plain.size == 0:
        return None
    relative = _RELATIVE[str(plain.dtype)]
    largest = float(np.abs(plain).max())
    allowed = relative * (largest + (size if plain.ndim == 0 else 0.1 * size)) + 1e-300
    gap = np.abs(plain - divided)
    worst = np.unravel_index(np.argmax(np.where(np.isnan(gap), np.inf, gap)), plain.shape)
    if gap[worst] <= allowed:
        return None
    return Difference(what, float(plain[worst]), float(divided[worst]), allowed)
