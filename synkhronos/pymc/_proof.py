"""The check before use: at random points the divided log-density equals the plain one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import rewrite_pregrad
from pytensor.compile.mode import Mode
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import ancestors

from synkhronos._engine.progress import watch
from synkhronos._errors import InputError
from synkhronos._plan.inference.walk import name_of
from synkhronos.pymc._chains import Evaluator
from synkhronos.pymc._likelihood import Likelihood
from synkhronos.pymc._rows import is_smooth
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


def prove(
    model: Any,
    terms: Sequence[Term],
    evaluator: Evaluator,
    meanwhile: Callable[[], object] | None = None,
) -> Difference | None:
    """Compare the terms' plain sum and its gradient with those of the members; None if they agree.

    The master does `meanwhile`, if it is given, while a worker compiles the divided likelihood.

    The gradient is that by the sources, where the parts are added. The model's own graph leads from
    its parameters to the sources in both cases. It may enlarge rounding errors: a covariance's
    Cholesky decomposition does so by many orders of magnitude. If one source is computed from
    another, the plain graph has no such place: then the gradient is that by the parameters.

    Raises
    ------
    InputError
        The log-density is not finite at any point near the initial point.
    """
    likelihood = evaluator.likelihood
    of_latents = [variable for variable, _ in likelihood.places]
    sources = list(dict.fromkeys([*(p.variable for p in likelihood.pieces), *of_latents]))
    smooth = [v for v in sources if is_smooth(v)]
    values = model.value_vars
    to_sources = pytensor.function(values, sources, mode=_PLAIN, on_unused_input="ignore")
    pull_back = _pull_back(smooth, values) if _are_nested(sources) else None
    places = sources if pull_back is None else values
    by_places = smooth if pull_back is None else [v for v in values if is_smooth(v)]
    compare = _plain(terms, places, by_places, values, model.check_bounds)
    compared = 0
    for point in points(model):
        given = [point[v.name] for v in values]
        with np.errstate(all="ignore"):
            at = to_sources(*given)
            value, size, *gradients = compare(*(at if pull_back is None else given), *given)
        if not np.isfinite(value) or not all(np.isfinite(g).all() for g in gradients):
            continue
        known = dict(zip(sources, at, strict=True))
        theta, latents = _inputs(likelihood, known)
        if meanwhile is not None and not compared:
            evaluator.compile_beside(theta, latents, meanwhile)
        flat, by_latents = evaluator(theta, latents)
        other, by = float(flat[0]), _by_sources(likelihood, known, flat, by_latents)
        found = [by[v] for v in smooth]
        if pull_back is not None:
            with np.errstate(all="ignore"):
                found = pull_back(*given, *found)
        names = ["the log-density", *[f"the gradient by {_called(v)}" for v in by_places]]
        pairs = zip(names, [value, *gradients], [other, *found], strict=True)
        for name, a, b in pairs:
            if difference := _difference(name, a, b, float(size)):
                return difference
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


def _are_nested(sources: Sequence[Any]) -> bool:
    """Whether a source is computed from another one: an operation needs it whole, others by row."""
    return any(other is not v and other in ancestors([v]) for v in sources for other in sources)


def _pull_back(sources: Sequence[Any], values: Sequence[Any]) -> Callable[..., Any]:
    """(values, gradients by the sources) -> gradients by the smooth values."""
    given = [v.type() for v in sources]
    cost = sum(((g * v).sum() for g, v in zip(given, sources, strict=True)), start=pt.constant(0.0))
    wrt = [v for v in values if is_smooth(v)]
    found = pytensor.grad(rewrite_pregrad(cost), wrt, disconnected_inputs="ignore")
    made: Callable[..., Any] = pytensor.function(
        [*values, *given], found, mode=_PLAIN, on_unused_input="ignore"
    )
    return made


def _plain(
    terms: Sequence[Term],
    sources: Sequence[Any],
    smooth: Sequence[Any],
    values: Sequence[Any],
    check_bounds: bool,
) -> Callable[..., Any]:
    """(sources, values) -> the terms' sum, the sum of their magnitudes, gradients by the sources.

    The values are needed where a graph asks for their shapes.
    """
    total = sum((t.variable.sum() for t in terms), start=pt.constant(0.0))
    scale = sum((pt.abs(t.variable).sum() for t in terms), start=pt.constant(0.0))
    inputs = {v: v.type() for v in sources}
    total, scale = clone_replace([total, scale], replace=inputs)
    total = rewrite_pregrad(total)
    wrt = [inputs[v] for v in smooth]
    gradients = pytensor.grad(total, wrt, disconnected_inputs="ignore") if wrt else []
    check = (
        "local_check_parameter_to_ninf_switch" if check_bounds else "local_remove_check_parameter"
    )
    made: Callable[..., Any] = pytensor.function(
        [*inputs.values(), *values],
        [total, scale, *gradients],
        mode=_PLAIN.including(check),
        on_unused_input="ignore",
    )
    watch(made)
    return made


def _inputs(
    likelihood: Likelihood, at: Mapping[Any, np.ndarray]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Theta and the latents, where the values of the sources are given."""
    theta = [np.ravel(at[p.variable]).astype("float64") for p in likelihood.pieces]
    latents = [
        np.ascontiguousarray(np.moveaxis(at[variable], axis, 0))
        for variable, axis in likelihood.places
    ]
    return np.concatenate([np.zeros(0), *theta]), latents


def _by_sources(
    likelihood: Likelihood,
    at: Mapping[Any, np.ndarray],
    flat: np.ndarray,
    by_latents: Sequence[np.ndarray],
) -> dict[Any, np.ndarray]:
    """The gradients by the sources, from those by theta and by the latents."""
    found = {v: np.zeros(np.shape(value)) for v, value in at.items()}
    for p in likelihood.pieces:
        found[p.variable] += flat[1 + p.start : 1 + p.stop].reshape(p.shape)
    places = [place for place in likelihood.places if is_smooth(place[0])]
    for (variable, axis), gradient in zip(places, by_latents, strict=True):
        found[variable] += np.moveaxis(gradient, 0, axis)
    return found


def _called(variable: Any) -> str:
    return variable.name or f"a result of {name_of(variable.owner)}"


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
