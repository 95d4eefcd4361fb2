"""The check before use: at the start and near it the divided log-density equals the plain one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import rewrite_pregrad
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.tensor import TensorVariable

from synkhronos._compiling.memory import trim
from synkhronos._compiling.progress import watch
from synkhronos._compiling.python_mode import python_mode
from synkhronos._errors import InputError
from synkhronos._proofs.walk import name_of
from synkhronos.pymc._density.faults import FaultError
from synkhronos.pymc._density.likelihood import Likelihood
from synkhronos.pymc._reading.facts import Facts, Point, is_smooth
from synkhronos.pymc._reading.reading import Reading

Compiled = Callable[..., list[np.ndarray]]


class Evaluates(Protocol):
    """An evaluation of a likelihood: by members, or in this process alone."""

    likelihood: Likelihood

    def __call__(
        self, theta: np.ndarray, latents: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """[log-density, gradient by theta], and the gradients by latents."""

    def compile_beside(
        self, theta: np.ndarray, latents: Sequence[np.ndarray], work: Callable[[], object]
    ) -> None:
        """Do `work`; functions may be compiled meanwhile."""


POINTS = 4  # number of points that are compared: the start and others
_MANY_ROWS = 100_000  # take memory that is worth the time to return it
_TRIES = 20  # points near the start, and as many around zero
_RELATIVE = {"float64": 1e-9, "float32": 1e-3}

# by the precision of parameters: parts of a log-density, which may be of single precision
_RELATIVE_OF_PARTS = {"float64": 1e-9, "float32": 1e-5}

# computes with numpy, compiles nothing
_PLAIN = python_mode("canonicalize", "stabilize")


class NotFiniteError(InputError):
    """The log-density is not finite at any of the points, so that nothing can be compared."""


@dataclass(frozen=True)
class Difference:
    """A disagreement: the name of the quantity, both values, and the allowed difference."""

    what: str
    plain: float
    divided: float
    allowed: float

    def __str__(self) -> str:
        return (
            f"{self.what} is {self.plain!r} for the plain model and {self.divided!r} for the sum "
            f"of the parts (allowed difference: {self.allowed:.1e})"
        )


def points(start: Point, seed: int = 0) -> Iterator[list[np.ndarray]]:
    """The initial point, then points nearer and nearer to it, then such points around zero.

    Continuous values are moved by at most 1, then 1/4, 1/16, ... Discrete values stay.
    """
    rng = np.random.default_rng(seed)
    values = list(start.values())
    yield values
    zero = [np.zeros_like(v) if v.dtype.kind == "f" else v for v in values]
    for center in (values, zero):
        for i in range(_TRIES):
            width = 4.0 ** -(i // 2)
            yield [
                np.asarray(value + rng.uniform(-width, width, np.shape(value)), value.dtype)
                if value.dtype.kind == "f"
                else value
                for value in center
            ]


def prove(
    reading: Reading, evaluator: Evaluates, meanwhile: Callable[[], object] | None = None
) -> Difference | None:
    """Compare the terms' plain sum and its gradient with those of the members; None if they agree.

    The master does `meanwhile`, if it is given, while a worker compiles the divided likelihood.

    The gradient is that by the sources, where the parts are added. The model's own graph leads from
    its parameters to the sources in both cases. It may enlarge rounding errors: a covariance's
    Cholesky decomposition does so by many orders of magnitude. Some sources are also computed by
    members, from other sources: their gradient is led on to those.

    Raises
    ------
    NotFiniteError
    FaultError
        A variable that was taken apart is not the sum of its parts.
    """
    _prove_summands(reading)
    found = _compared(reading, evaluator, meanwhile)
    if leaves_memory(reading):
        return_memory()
    return found


def leaves_memory(reading: Reading) -> bool:
    """Whether a proof of these rows leaves memory that is worth the time to return it."""
    return sum(t.rows for t in reading.terms) >= _MANY_ROWS


def return_memory() -> None:
    """Return what a proof has left to the kernel."""
    gc.collect()  # functions hold the values of all their operations, in circles
    trim()


def _compared(
    reading: Reading, evaluator: Evaluates, meanwhile: Callable[[], object] | None
) -> Difference | None:
    likelihood, facts = evaluator.likelihood, reading.facts
    of_latents = [variable for variable, _ in likelihood.places]
    sources = list(dict.fromkeys([*(p.variable for p in likelihood.pieces), *of_latents]))
    smooth = [v for v in sources if is_smooth(v)]
    to_sources = function_of(facts, sources)
    places = [v for v in sources if v not in likelihood.computed]
    by_places = [v for v in places if is_smooth(v)]
    lead_on = _lead_on(smooth, places, facts.inputs) if len(places) < len(sources) else None
    compare = _plain(reading, places, by_places)
    given_in = coarsest([v.type.dtype for v in places])
    start = facts.start()
    compared = 0
    for given in points(start):
        with np.errstate(all="ignore"):
            at = dict(zip(sources, to_sources(*given), strict=True))
            at_places = [at[v] for v in places]
            value, size, *gradients = compare(*at_places, *given)
        if not np.isfinite(value) or not all(np.isfinite(g).all() for g in gradients):
            continue
        theta, latents = _inputs(likelihood, at)
        if meanwhile is not None and not compared:
            evaluator.compile_beside(theta, latents, meanwhile)
        flat, by_latents = evaluator(theta, latents)
        other, by = float(flat[0]), _by_sources(likelihood, at, flat, by_latents)
        found = [by[v] for v in smooth]
        if lead_on is not None:
            with np.errstate(all="ignore"):
                found = lead_on(*at_places, *given, *found)
        names = ["the log-density", *[f"the gradient by {_called(v)}" for v in by_places]]
        pairs = zip(names, [value, *gradients], [other, *found], strict=True)
        for name, a, b in pairs:
            if difference := _difference(name, a, b, float(size), given_in):
                return difference
        compared += 1
        if compared == POINTS:
            return None
    if not compared:
        raise NotFiniteError(_nowhere_finite(reading, start))
    return None


def _nowhere_finite(reading: Reading, start: Point) -> str:
    """The message for terms that cannot be compared: what is not finite at the initial point."""
    densities = function_of(reading.facts, [t.variable for t in reading.terms])
    with np.errstate(all="ignore"):
        found = densities(*start.values())
    reasons = [
        f"the initial value of {variable.name} is not finite"
        for variable, value in start.items()
        if value.dtype.kind == "f" and not np.isfinite(value).all()
    ]
    for term, density in zip(reading.terms, found, strict=True):
        for what, where in (("nan", np.isnan(density)), ("-inf", density == -np.inf)):
            if count := np.count_nonzero(where):
                of = f"{count} of {np.size(density)} values of the log-density of {term.name}"
                reasons.append(f"{of} are {what}")
    missing = _missing(reading)
    first = f"{'; '.join(missing)}. So " if missing else ""
    at_start = f" At the initial point: {'; '.join(reasons)}." if reasons else ""
    cure = (
        "Leave rows with NaN out, or mask them (numpy.ma.masked_invalid), so that PyMC imputes them"
        if missing
        else "Give initial values (initval=) at which both are finite"
    )
    return (
        f"{first}the log-density of {', '.join(reading.names)} or its "
        f"gradient is not finite at the initial point, nor at {_TRIES} points near it and {_TRIES} "
        f"around zero, and it cannot be checked.{at_start} {cure}"
    )


def _missing(reading: Reading) -> list[str]:
    """A clause for each observed variable whose data hold NaN."""
    found = []
    for name, data in reading.data.items():
        array = np.asarray(data.data if isinstance(data, Constant) else data.eval(mode=_PLAIN))
        if array.dtype.kind == "f" and (count := np.count_nonzero(np.isnan(array))):
            found.append(f"{name} has {count} NaN among its {array.size} observed values")
    return found


def _lead_on(
    sources: Sequence[TensorVariable],
    places: Sequence[TensorVariable],
    values: Sequence[TensorVariable],
) -> Compiled:
    """(places, values, gradients by the sources) -> gradients by the smooth places."""
    inputs = {v: v.type() for v in places}
    moved = clone_replace(list(sources), replace=inputs)
    given = [v.type() for v in sources]
    cost = sum(((g * v).sum() for g, v in zip(given, moved, strict=True)), start=pt.constant(0.0))
    wrt = [inputs[v] for v in places if is_smooth(v)]
    found = pytensor.grad(rewrite_pregrad(cost), wrt, disconnected_inputs="ignore")
    return pytensor.function(
        [*inputs.values(), *values, *given], found, mode=_PLAIN, on_unused_input="ignore"
    )


def _plain(
    reading: Reading, sources: Sequence[TensorVariable], smooth: Sequence[TensorVariable]
) -> Compiled:
    """(sources, values) -> the terms' sum, the sum of their magnitudes, gradients by the sources.

    The values are needed where a graph asks for their shapes.
    """
    terms, facts = [t.variable for t in reading.terms], reading.facts
    total = sum((v.sum() for v in terms), start=pt.constant(0.0))
    scale = sum((pt.abs(v).sum() for v in terms), start=pt.constant(0.0))
    inputs = {v: v.type() for v in sources}
    total, scale = clone_replace([total, scale], replace=inputs)
    total = rewrite_pregrad(total)
    wrt = [inputs[v] for v in smooth]
    gradients = pytensor.grad(total, wrt, disconnected_inputs="ignore") if wrt else []
    made = pytensor.function(
        [*inputs.values(), *facts.inputs],
        [total, scale, *gradients],
        mode=_mode_of_bounds(facts),
        on_unused_input="ignore",
    )
    watch(made)
    return made


def function_of(facts: Facts, outputs: Sequence[TensorVariable]) -> Compiled:
    """The values of graphs, as a function of the model's inputs, computed with numpy."""
    copied = clone_replace(list(outputs))  # rewriting changes graphs in place
    return pytensor.function(
        facts.inputs, copied, mode=_mode_of_bounds(facts), on_unused_input="ignore"
    )


def _mode_of_bounds(facts: Facts) -> Mode:
    """A mode for numpy, in which parameters outside of their bounds are treated as PyMC does."""
    return _PLAIN.including(
        "local_check_parameter_to_ninf_switch" if facts.checked else "local_remove_check_parameter"
    )


def _inputs(
    likelihood: Likelihood, at: Mapping[Variable, np.ndarray]
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
    at: Mapping[Variable, np.ndarray],
    flat: np.ndarray,
    by_latents: Sequence[np.ndarray],
) -> dict[Variable, np.ndarray]:
    """The gradients by the sources, from those by theta and by the latents."""
    found = {v: np.zeros(np.shape(value)) for v, value in at.items()}
    for p in likelihood.pieces:
        found[p.variable] += flat[1 + p.start : 1 + p.stop].reshape(p.shape)
    places = [place for place in likelihood.places if is_smooth(place[0])]
    for (variable, axis), gradient in zip(places, by_latents, strict=True):
        found[variable] += np.moveaxis(gradient, 0, axis)
    return found


def _called(variable: Variable) -> str:
    return variable.name or f"a result of {name_of(variable.owner)}"


def coarsest(dtypes: Collection[str]) -> str:
    """The float dtype of the least precision; float64 if there is no smaller one.

    >>> coarsest(["int64", "float32", "float64"]), coarsest([])
    ('float32', 'float64')
    """
    return "float32" if "float32" in dtypes else "float64"


def _difference(
    what: str, plain: np.ndarray, divided: np.ndarray, size: float, given_in: str
) -> Difference | None:
    """The largest difference, if it is above what roundings of the plain value may make.

    A parameter of single precision has functions of single precision, even where the sum is of
    double precision because data are: members compute them in double precision.
    """
    plain, divided = np.asarray(plain), np.asarray(divided)
    if plain.size == 0:
        return None
    relative = _RELATIVE[coarsest([str(plain.dtype), given_in])]
    largest = float(np.abs(plain).max())
    allowed = relative * (largest + (size if plain.ndim == 0 else 0.1 * size)) + 1e-300
    gap = np.abs(plain - divided)
    worst = np.unravel_index(np.argmax(np.where(np.isnan(gap), np.inf, gap)), plain.shape)
    if gap[worst] <= allowed:
        return None
    return Difference(what, float(plain[worst]), float(divided[worst]), allowed)


def _prove_summands(reading: Reading) -> None:
    """Compare the log-density of variables that were taken apart with the sum of its parts.

    Raises
    ------
    FaultError
        They differ at one of the points.
    """
    terms = {name: [t.variable for t in reading.terms if t.name == name] for name in reading.names}
    names = [name for name, parts in terms.items() if parts != [reading.factors[name]]]
    if not names:
        return
    sums, sizes = [], []
    for name in names:
        parts = [*terms[name], *([reading.rests[name]] if name in reading.rests else [])]
        sums += [reading.factors[name].sum(), pt.add(*[p.sum() for p in parts], 0.0)]
        sizes.append(pt.add(*[pt.abs(p).sum() for p in parts], 0.0))
    evaluate = function_of(reading.facts, [*sizes, *sums])
    relative = _RELATIVE_OF_PARTS[coarsest([v.type.dtype for v in reading.facts.inputs])]
    compared = 0
    for given in points(reading.facts.start()):
        with np.errstate(all="ignore"):
            found = [float(v) for v in evaluate(*given)]
        if not np.isfinite(found).all():
            continue
        for i, name in enumerate(names):
            plain, apart = found[len(names) + 2 * i : len(names) + 2 * i + 2]
            if not abs(plain - apart) <= relative * (abs(plain) + found[i]):
                raise FaultError(
                    f"the parts of {name} do not add up: its log-density is {plain!r}, the sum of "
                    f"its parts is {apart!r}. The model has not been changed; please report this"
                )
        compared += 1
        if compared == POINTS:
            return
