"""Measures a model and predicts the speed-up of dividing it, before it is sampled."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytensor
from pymc import Model
from pymc.blocking import RaveledVars
from pytensor.compile import Function

from synkhronos._api.advice import PARTS, ROUND_SECONDS, Timing, seconds_of, seconds_of_parts
from synkhronos._api.advice import Advice as FunctionAdvice
from synkhronos._api.tables import percent
from synkhronos._backends.jax import runs_jax
from synkhronos._compiling.graph_types import ModeLike
from synkhronos._compiling.lean.mode import mode_of
from synkhronos._errors import InputError
from synkhronos._host.thread_pools import ThreadLimits
from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.pymc import PYMC
from synkhronos.pymc._density.likelihood import Likelihood
from synkhronos.pymc._group.evaluator import Evaluator

# Largest plausible seconds of a round, and of moving one parameter between two cores' caches. A
# longer measured time comes from other work on the machine.
_MOST_OF_ROUND, _MOST_OF_PARAMETER = 100e-6, 10e-9

_LEAST_GAIN = 1.05  # a smaller speed-up is within the error of the prediction
_NO = "Dividing this model does not pay: sample it as it is.\n"


@dataclass(frozen=True)
class ModeAdvice(Timing):
    """Seconds of one log-density and gradient in one mode.

    Attributes
    ----------
    rest : float
        The work that stays with the master: priors, potentials, terms that are not divided.
    round : float
        The other costs of a round, with a sampler at work between rounds.
    """

    sampler: float = 0.0  # PyMC's NUTS itself, for each gradient: it adds vectors of all parameters

    @property
    def around(self) -> float:
        """The sampler's time: the speed-up is that of sampling."""
        return self.sampler

    @property
    def on_one_core(self) -> float:
        """Seconds of a gradient on one core, without a command: that of `fast`."""
        return min(self.plain, self.rest + self.parts.get(1, math.inf))


@dataclass(frozen=True)
class ChainPlan:
    """How chains share the cores: `at_once` chains run at a time, each with `members` members."""

    chains: int
    members: int
    at_once: int
    seconds: float  # for one gradient of every chain

    def __str__(self) -> str:
        each = "1 member" if self.members == 1 else f"{self.members} members"
        if self.chains == 1:
            return f"1 chain with {each}"
        if self.at_once > 1:
            return f"{self.chains} chains, {self.at_once} at once with {each} each"
        return f"{self.chains} chains, one after another, with {each}"


@dataclass(frozen=True, repr=False)
class Advice(FunctionAdvice):
    """The result of `advise`; `str` and `show` format it as a table.

    Attributes
    ----------
    names : tuple of str
        The observed variables that can be divided.
    rows : tuple of int
        The numbers of rows, one for each group of observed variables of equal length.
    cores : int
        The number of cores that this process may use.
    modes : tuple of ModeAdvice
    left_out : tuple of str
        Modes that were not measured, to save time.
    metric : str
        The metric of nutpie that is expected to take less time, if `advise` was asked for it.

    Examples
    --------
    >>> import numpy as np, pymc as pm, synkhronos as synk
    >>> with pm.Model() as model:
    ...     y = pm.Normal("y", pm.Normal("mu"), 1, observed=np.arange(1000.0))
    >>> synk.pymc.advise(model, members=1, modes=["FAST_COMPILE"]).show()
    y (1,000 rows): ...
    """

    metric: str = ""

    def chains(self, count: int, mode: str | None = None, together: int | None = None) -> ChainPlan:
        """The fastest way to sample this many chains: several at once, or one after another.

        Parameters
        ----------
        count : int
        mode : str, optional
            Default: the fastest mode.
        together : int, optional
            The number of members if chains run one after another; default: the fastest number.
        """
        timing = self.in_mode(mode)
        plans = []
        several = [k for k in range(1, self.cores + 1) if min(count, self.cores // k) > 1]
        for members in [*several, together or self.members_in(timing)]:
            at_once = min(count, self.cores // members) if members in several else 1
            each = timing.seconds(members) + timing.around
            seconds = math.ceil(count / at_once) * each
            plans.append(ChainPlan(count, members, at_once, seconds))
        return min(plans, key=lambda p: p.seconds)

    _columns = ("rest", "sampler", "share")

    def _cells(self, timing: Timing) -> list[str]:
        """The texts of `_columns`."""
        return [f"{1e3 * timing.rest:.3f}", f"{1e3 * timing.around:.3f}", percent(timing.share)]

    def _headline(self) -> str:
        rows = ", ".join(f"{n:,}" for n in self.rows)
        return (
            f"{', '.join(self.names)} ({rows} rows): time of a gradient, and speed-up over the "
            f"plain model in its best mode ({self.plain.mode}, {self._threads()}) with 1, 2, ... "
            "members"
        )

    def _verdict(self) -> str:
        best = self.best
        members = self.members_in(best)
        gain = self.speedup(members)
        left_out = ", ".join(self.left_out)
        listed = ", ".join(f'"{mode}"' for mode in self.left_out)
        return (
            f"fastest divided: {best.mode}, {1e3 * best.seconds(members):.3f} ms with {members} "
            f"member{'s' if members > 1 else ''}. Sampling is {gain:.2f} times as fast as with the "
            f"plain model in its best mode.{self._busy()}\n"
            f"{_NO if gain < _LEAST_GAIN else ''}"
            f"on one core, with the density of synk.pymc.fast: {1e3 * best.on_one_core:.3f} ms; "
            f"plain: {1e3 * best.plain:.3f} ms. synk.pymc.sample takes it where chains fill the "
            f"cores.\n{self.chains(4)}"
            + (
                f"\nnot measured: {left_out}; modes=[{listed}] does, or says why not"
                if listed
                else ""
            )
            + (f"\n{self.metric}" if self.metric else "")
        )


@dataclass(frozen=True)
class Gradient:
    """A model's value and gradient at a point; calling it computes them."""

    model_function: Any
    point: np.ndarray

    def __call__(self) -> np.ndarray:
        return np.asarray(_compiled(self.model_function)(self.point)[1])

    def known(self) -> Gradient:
        """The same gradient as a stub that returns stored values and takes no time."""
        f = self.model_function
        values = [np.asarray(v) for v in _compiled(f)(self.point)]
        stub = SimpleNamespace(
            _pytensor_function=lambda point: values,
            _raveled_inputs=PYMC.of(f, "_raveled_inputs"),
            dtype=f.dtype,
        )
        return Gradient(stub, self.point)

    def amid_sampling(self) -> Callable[[], object]:
        """The gradient with NUTS's own work for it: a leapfrog step and the sums of its tree."""
        kind, integrator = self.point.dtype, None
        with optional_gain():
            potential = PYMC.get("QuadPotentialDiag")(np.ones(self.point.size), kind)
            integrator = PYMC.get("CpuLeapfrogIntegrator")(potential, self.model_function)
        if integrator is None:
            return self
        here = RaveledVars(self.point, ())
        start = integrator.compute_state(here, np.zeros(self.point.size, kind))

        def leaf() -> None:
            end = integrator.step(1e-12, start)
            for _ in range(3):  # U-turn checks of the tree and of its two halves
                total = start.p + end.p
                total.dot(start.v), total.dot(end.v)

        return leaf


def _compiled(model_function: Any) -> Function:
    """PyTensor's function of a model's value and gradient."""
    return PYMC.of(model_function, "_pytensor_function")


def gradient_of(model: Model, mode: ModeLike) -> Gradient:
    """The model's value and gradient as it is now, near the initial point.

    At the initial point itself many models have equal rows. The processor then predicts every
    branch, and the gradient is twice as fast as in a chain.

    Raises
    ------
    InputError
        The model has no continuous parameters.
    """
    if not model.continuous_value_vars:
        raise InputError("the model has no continuous parameters, so there is no gradient to time")
    start = model.initial_point(0)
    function = model.logp_dlogp_function(ravel_inputs=True, mode=mode_of(mode))
    made = _compiled(function)
    made.trust_input = True
    names = [v.name for v in model.continuous_value_vars]
    initial = np.concatenate([np.ravel(start[n]) for n in names])
    jitter = np.random.default_rng(0).uniform(-1.0, 1.0, initial.size)
    for scale in (1.0, 0.3, 0.1, 0.0):
        point = (initial + scale * jitter).astype(made.maker.inputs[0].variable.dtype)
        with np.errstate(all="ignore"):
            if all(np.isfinite(value).all() for value in made(point)):
                break
    return Gradient(function, point)


def measure_mode(
    model: Model, evaluator: Evaluator, size: int, mode: ModeLike, plain: Gradient
) -> ModeAdvice:
    """Measure a model that `evaluator` divides over `size` members, in one mode."""
    with ThreadLimits(1):
        alone = seconds_of(plain)
    threads = seconds_of(plain)
    sampler = seconds_of(plain.known().amid_sampling())
    divided = gradient_of(model, mode)
    whole = seconds_of(divided.amid_sampling()) - sampler
    with evaluator.stubbed():
        rest = seconds_of(divided)
    inner = max(whole - rest, 1e-7)
    parts = _parts(evaluator) if not runs_jax(mode_of(mode)) else {}
    if not parts:  # scale the measured time of one member's rows
        parts = {k: inner * size / k for k in PARTS}
    between = max(inner - parts.get(size, parts[1] / size), 5e-6) if size > 1 else ROUND_SECONDS
    between = min(between, _MOST_OF_ROUND + _MOST_OF_PARAMETER * plain.point.size)
    name = mode if isinstance(mode, str) else str(mode or pytensor.config.mode)
    return ModeAdvice(name, alone, threads, rest, parts, between, sampler)


def _parts(evaluator: Evaluator) -> dict[int, float]:
    """Seconds for all, 1/2, 1/4 and 1/8 of the rows, of all divided terms."""
    likelihood = evaluator.likelihood
    found = dict.fromkeys(PARTS, 0.0)
    theta, latents = somewhere(likelihood)
    for part, function in zip(likelihood.parts, evaluator.alone(), strict=True):
        rows, whole = part.arrays()
        mine = [latents[i] for i in part.latents]

        def call_of(
            k: int,
            f: Callable[[list[np.ndarray]], object] = function,
            arrays: Sequence[np.ndarray] = (*mine, *rows),
            whole: Sequence[np.ndarray] = whole,
        ) -> Callable[[], object]:
            cut = [np.ascontiguousarray(a[: max(1, len(a) // k)]) for a in arrays]
            return functools.partial(f, [*cut, theta, *whole])

        for k, seconds in seconds_of_parts(call_of).items():
            found[k] += seconds
    return found


def somewhere(likelihood: Likelihood) -> tuple[np.ndarray, list[np.ndarray]]:
    """Theta and latents to compute with: small random numbers."""
    rng = np.random.default_rng(0)
    latents = [
        (0.1 * rng.normal(size=shape)).astype(v.type.dtype)
        for v, shape in zip(likelihood.latents, likelihood.latent_shapes, strict=True)
    ]
    return 0.1 * rng.normal(size=likelihood.size), latents


def modes_to_measure() -> tuple[list[str], list[str]]:
    """The modes that are worth their time, the best first; and those measured only if asked for.

    C is one of the latter: a C compiler takes minutes for some models, while code of NUMBA
    vectorises more, and members have own code for it.
    """
    tried = ["NUMBA"]
    if importlib.util.find_spec("jax") is not None:
        tried.append("JAX")
    return tried, ["C"] if pytensor.config.cxx else []
