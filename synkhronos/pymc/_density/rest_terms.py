"""The part of a model's log-density that stays in the master: its check, and its share of time."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import rewrite_pregrad
from pytensor.gradient import NullTypeGradError
from pytensor.graph.replace import clone_replace

from synkhronos._errors import InputError
from synkhronos.pymc._density.proof import POINTS, coarsest, mode_of_bounds, points
from synkhronos.pymc._reading.terms import Terms

log = logging.getLogger("synkhronos")

_LARGE = 0.05  # share of a gradient's time from which on a serial term is worth a warning
_ROUNDS = 5  # of measuring that share
_RELATIVE = {"float64": 1e-9, "float32": 1e-5}  # by the precision of the parameters


def prove_summands(model: Any, terms: Terms) -> None:
    """Compare the log-density of variables that were taken apart with the sum of its parts.

    Raises
    ------
    InputError
        They differ at one of the points.
    """
    names = [n for n in terms.names if _is_apart(terms, n)]
    if not names:
        return
    sums, sizes = [], []
    for name in names:
        parts = [t.variable for t in terms.all if t.name == name]
        rests = [terms.rests[name]] if name in terms.rests else []
        sums.append([terms.factors[name].sum(), pt.add(*[p.sum() for p in parts], *rests, 0.0)])
        sizes.append(pt.add(*[pt.abs(p).sum() for p in [*parts, *rests]], 0.0))
    evaluate = _function(model, [*sizes, *[v for pair in sums for v in pair]])
    relative = _RELATIVE[coarsest([v.type.dtype for v in model.value_vars])]
    compared = 0
    for point in points(model):
        with np.errstate(all="ignore"):
            found = [float(v) for v in evaluate(*[point[v.name] for v in model.value_vars])]
        if not np.isfinite(found).all():
            continue
        for i, name in enumerate(names):
            plain, apart = found[len(names) + 2 * i : len(names) + 2 * i + 2]
            if not abs(plain - apart) <= relative * (abs(plain) + found[i]):
                raise InputError(
                    f"the parts of {name} do not add up: its log-density is {plain!r}, the sum of "
                    f"its parts is {apart!r}. The model has not been changed; please report this"
                )
        compared += 1
        if compared == POINTS:
            return


def _is_apart(terms: Terms, name: str) -> bool:
    variables = [t.variable for t in terms.all if t.name == name]
    return variables != [terms.factors[name]]


def tell_what_stays(model: Any, terms: Terms) -> None:
    """Log a line for each variable that has rows and is not divided."""
    if not terms.stays:
        return
    factors = dict(
        zip(
            [v.name for v in [*model.observed_RVs, *model.potentials]],
            type(model).logp(model, [*model.observed_RVs, *model.potentials], sum=False),
            strict=True,
        )
    )
    shares = shares_of(model, {name: factors[name] for name in terms.stays})
    for name, reason in terms.stays.items():
        level = logging.WARNING if shares[name] >= _LARGE else logging.INFO
        log.log(
            level,
            "%s stays in the master: %s (about %.0f %% of a gradient)",
            name,
            reason,
            100 * shares[name],
        )


def shares_of(model: Any, factors: Mapping[str, Any]) -> dict[str, float]:
    """The share of each term in the time of the model's gradient, with numpy, uncompiled.

    It is the median over some rounds, in each of which the whole and the terms take turns: other
    work on the machine slows down all of them.
    """
    whole = _timed(model, type(model).logp(model))
    terms = [
        _timed(model, pt.as_tensor(f, allow_xtensor_conversion=True)) for f in factors.values()
    ]
    rounds = []
    for _ in range(_ROUNDS):
        total = whole()
        rounds.append([term() / total for term in terms])
    return {
        name: min(1.0, statistics.median(found))
        for name, found in zip(factors, zip(*rounds, strict=True), strict=True)
    }


def _timed(model: Any, factor: Any) -> Callable[[], float]:
    """A function: the processor time of a value and its gradient at the initial point.

    Without the gradient if there is none: the log-density may be used for its value only.
    """
    [total] = clone_replace([factor.sum()])
    total = rewrite_pregrad(total)
    smooth = model.continuous_value_vars
    try:
        gradients = pytensor.grad(total, smooth, disconnected_inputs="ignore") if smooth else []
    except (NotImplementedError, NullTypeGradError):
        gradients = []
    evaluate = _function(model, [total, *gradients])
    start = model.initial_point(0)
    given = [start[v.name] for v in model.value_vars]

    def seconds() -> float:
        with np.errstate(all="ignore"):
            began = time.thread_time()
            evaluate(*given)
            return max(time.thread_time() - began, 1e-9)

    seconds()  # the first time takes longer
    return seconds


def _function(model: Any, outputs: Sequence[Any]) -> Any:
    mode = mode_of_bounds(model.check_bounds)
    copied = clone_replace(list(outputs))  # rewriting changes graphs in place
    return pytensor.function(model.value_vars, copied, mode=mode, on_unused_input="ignore")
