"""Exponential families: what is summed over the rows of a group, and the density of the sums."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.scalar.math import Sigmoid
from pytensor.tensor.variable import TensorVariable as Tensor

from synkhronos._compiling.nodes import computes
from synkhronos.pymc._reading.rows import without_checks
from synkhronos.pymc._repeated.pattern import bound
from synkhronos.pymc._repeated.sums import GroupSums

HALF_LOG_2_PI = 0.5 * float(np.log(2 * np.pi))


@dataclass(frozen=True)
class Family:
    """A family of densities."""

    distribution: type[pm.Distribution]  # PyMC's
    parameters: tuple[str, ...]  # the names of the parameters of its `logp`, in their order
    observed: tuple[str, ...]  # what is summed: "value", and parameters that data give
    # ``statistics(sums, *arrays) -> arrays``: by group, from the observed arrays by row
    statistics: Callable[..., list[np.ndarray]]
    # ``log_density(*statistics, **parameters)``: that of all rows of a group
    log_density: Callable[..., Tensor]

    def of(self, value: Tensor) -> dict[str, Tensor] | None:
        """The parameters and the observed value, if a term is a density of this family."""
        pattern, names = _formula(self.distribution, self.parameters, value.type.ndim)
        return bound(pattern, value, names)


def _gammaln(values: np.ndarray) -> np.ndarray:
    return np.asarray(importlib.import_module("scipy.special").gammaln(values))


@functools.cache
def _formula(
    distribution: type[pm.Distribution], parameters: tuple[str, ...], ndim: int
) -> tuple[Tensor, dict[Tensor, str]]:
    """PyMC's log-density, and the variables in it."""
    value = pt.tensor("value", dtype="float64", shape=(None,) * ndim)
    given = [pt.tensor(name, dtype="float64", shape=(None,) * ndim) for name in parameters]
    pattern = without_checks(distribution.logp(value, *given))
    return pattern, {v: v.name for v in [value, *given]}


def _times(count: Tensor, value: Tensor) -> Tensor:
    """A sum of equal values, 0 if there are none, also of infinite ones."""
    return pt.switch(pt.eq(count, 0), 0.0, count * value)


def _outside(
    sums: GroupSums, outside: np.ndarray, constant: np.ndarray | float = 0.0
) -> np.ndarray:
    """By group, a constant, or -inf if a row is outside of the support."""
    with np.errstate(invalid="ignore"):
        return sums.of(np.where(outside, -np.inf, constant))


def _trials(sums: GroupSums, value: np.ndarray, n: np.ndarray | float = 1.0) -> list[np.ndarray]:
    outside = (value < 0) | (value > n)
    value, n = np.where(outside, 0, value).astype(float), np.where(outside, 0, n).astype(float)
    chosen = _gammaln(n + 1) - _gammaln(value + 1) - _gammaln(n - value + 1)
    return [sums.of(value), sums.of(n - value), _outside(sums, outside, chosen)]


def _binary(sums: GroupSums, value: np.ndarray) -> list[np.ndarray]:
    outside = (value < 0) | (value > 1)
    yes = sums.of(value.astype(bool))
    return [yes, sums.of(~value.astype(bool)), _outside(sums, outside)]


def _binomial(
    yes: Tensor, no: Tensor, constant: Tensor, p: Tensor, n: Tensor | None = None
) -> Tensor:
    """Sums of logarithms of probabilities, all of which have the same sign: no digits cancel."""
    del n
    node = p.owner
    if not computes(node, Sigmoid):
        return _times(yes, pt.log(p)) + _times(no, pt.log1p(-p)) + constant
    logit = node.inputs[0]
    far = pt.switch(logit >= 0, -_times(no, logit), _times(yes, logit))
    return far - (yes + no) * pt.softplus(pt.switch(logit >= 0, -logit, logit)) + constant


def _poisson(sums: GroupSums, value: np.ndarray) -> list[np.ndarray]:
    outside = value < 0
    value = np.where(outside, 0, value).astype(float)
    return [sums.counts, sums.of(value), _outside(sums, outside, -_gammaln(value + 1))]


def _poisson_density(rows: Tensor, total: Tensor, constant: Tensor, mu: Tensor) -> Tensor:
    return _times(total, pt.log(mu)) - rows * mu + constant


def _exponential(sums: GroupSums, value: np.ndarray) -> list[np.ndarray]:
    outside = ~(value >= 0)
    return [sums.counts, sums.of(np.where(outside, 0.0, value)), _outside(sums, outside)]


def _exponential_density(rows: Tensor, total: Tensor, constant: Tensor, scale: Tensor) -> Tensor:
    return -rows * pt.log(scale) - total / scale + constant


def _logarithms(sums: GroupSums, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum of the logarithms above 0, and the number of zeros."""
    zero = value <= 0
    return sums.of(np.log(np.where(zero, 1.0, value))), sums.of(zero)


def _power(zeros: Tensor, exponent: Tensor) -> Tensor:
    """The logarithms of as many powers of 0."""
    return _times(zeros, pt.switch(exponent > 0, -np.inf, pt.switch(exponent < 0, np.inf, 0.0)))


def _gamma(sums: GroupSums, value: np.ndarray) -> list[np.ndarray]:
    outside = ~(value >= 0)
    value = np.where(outside, 1.0, value)
    return [sums.counts, sums.of(value), *_logarithms(sums, value), _outside(sums, outside)]


def _gamma_density(
    rows: Tensor,
    total: Tensor,
    logs: Tensor,
    zeros: Tensor,
    constant: Tensor,
    alpha: Tensor,
    scale: Tensor,
) -> Tensor:
    rate = pt.reciprocal(scale)
    own = rows * (alpha * pt.log(rate) - pt.gammaln(alpha)) - total * rate
    at_zero = _times(zeros, pt.switch(pt.eq(alpha, 1), 0.0, -np.inf))  # PyMC's, also for alpha < 1
    return own + (alpha - 1) * logs + at_zero + constant


def _beta(sums: GroupSums, value: np.ndarray) -> list[np.ndarray]:
    outside = ~((value >= 0) & (value <= 1))
    value = np.where(outside, 0.5, value)
    one = value >= 1
    others = sums.of(np.log1p(-np.where(one, 0.0, value)))
    return [sums.counts, *_logarithms(sums, value), others, sums.of(one), _outside(sums, outside)]


def _unless_one(parameter: Tensor, value: Tensor) -> Tensor:
    """0 where a parameter is 1, without a slope there, as in PyMC's formula."""
    return pt.switch(pt.eq(parameter, 1), 0.0, value)


def _beta_density(
    rows: Tensor,
    logs: Tensor,
    zeros: Tensor,
    others: Tensor,
    ones: Tensor,
    constant: Tensor,
    alpha: Tensor,
    beta: Tensor,
) -> Tensor:
    norm = pt.gammaln(alpha) + pt.gammaln(beta) - pt.gammaln(alpha + beta)
    low = _unless_one(alpha, (alpha - 1) * logs) + _power(zeros, alpha - 1)
    high = _unless_one(beta, (beta - 1) * others) + _power(ones, beta - 1)
    return low + high - rows * norm + constant


def _normal(sums: GroupSums, value: np.ndarray) -> list[np.ndarray]:
    infinite = np.isinf(value)
    centred = sums.centred(np.where(infinite, 0.0, value).astype(float))
    return [sums.counts, *centred, _outside(sums, infinite)]


def _normal_density(
    rows: Tensor,
    mean: Tensor,
    left: Tensor,
    spread: Tensor,
    constant: Tensor,
    mu: Tensor,
    sigma: Tensor,
) -> Tensor:
    squares = rows * pt.sqr(((mean - mu) + left) / sigma) + pt.sqr(spread / sigma)
    return -0.5 * squares - rows * (HALF_LOG_2_PI + pt.log(sigma)) + constant


def _lognormal(sums: GroupSums, value: np.ndarray) -> list[np.ndarray]:
    outside = ~(value > 0)
    logs = np.log(np.where(outside, 1.0, value))
    counts, *centred, infinite = _normal(sums, logs)
    return [counts, *centred, infinite + _outside(sums, outside, -logs)]


BERNOULLI = Family(pm.Bernoulli, ("p",), ("value",), _binary, _binomial)
NORMAL = Family(pm.Normal, ("mu", "sigma"), ("value",), _normal, _normal_density)
FAMILIES = (
    BERNOULLI,
    NORMAL,
    Family(pm.Binomial, ("n", "p"), ("value", "n"), _trials, _binomial),
    Family(pm.Poisson, ("mu",), ("value",), _poisson, _poisson_density),
    Family(pm.Exponential, ("scale",), ("value",), _exponential, _exponential_density),
    Family(pm.Gamma, ("alpha", "scale"), ("value",), _gamma, _gamma_density),
    Family(pm.Beta, ("alpha", "beta"), ("value",), _beta, _beta_density),
    Family(pm.LogNormal, ("mu", "sigma"), ("value",), _lognormal, _normal_density),
)
