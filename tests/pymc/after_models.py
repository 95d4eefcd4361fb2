"""Models for what follows sampling, and draws of their parameters."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy import stats
from xarray import Dataset, DataTree

ROWS = 30


def rng() -> np.random.Generator:
    return np.random.default_rng(20260201)


def draws_of(model: pm.Model, chains: int = 2, draws: int = 7) -> DataTree:
    """A posterior: draws of the prior, as PyMC makes them, in several chains."""
    prior = pm.sample_prior_predictive(
        chains * draws, model, random_seed=5, return_inferencedata=False
    )
    free = [v.name for v in model.free_RVs]
    dims = {k: list(v) for k, v in model.named_vars_to_dims.items()}
    posterior = {}
    for name in free:
        values = prior[name].reshape(chains, draws, *prior[name].shape[1:])
        own = dims.get(name) or [f"{name}_{i}" for i in range(values.ndim - 2)]
        posterior[name] = (("chain", "draw", *own), values)
    coords = {"chain": np.arange(chains), "draw": np.arange(draws)}
    coords |= {k: list(v) for k, v in model.coords.items() if v is not None}
    used = {dim for dims_, _ in posterior.values() for dim in dims_}
    found = Dataset(posterior, {k: v for k, v in coords.items() if k in used})
    tree = DataTree.from_dict({"posterior": found})
    data = {v.name: (dims.get(v.name), v.get_value()) for v in model.data_vars}
    if data and None not in [own for own, _ in data.values()]:
        own = {k: list(v) for k, v in model.coords.items() if v is not None}
        tree["constant_data"] = DataTree(
            Dataset(data, {k: own[k] for d, _ in data.values() for k in d})
        )
    return tree


def several() -> pm.Model:
    """Two observed variables with dimensions, missing values, deterministics, and a pm.Data."""
    r = rng()
    x = r.normal(size=(ROWS, 2))
    y = r.normal(size=ROWS)
    y[3] = np.nan
    with pm.Model(coords={"row": [f"r{i}" for i in range(ROWS)], "k": ["a", "b"]}) as model:
        data = pm.Data("x", x, dims=("row", "k"))
        b = pm.Normal("b", dims="k")
        s = pm.HalfNormal("s")
        mu = pm.Deterministic("mu", data @ b, dims="row")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pm.exceptions.ImputationWarning)
            pm.Normal("y", mu, s, observed=y)
        pm.Poisson("n", pm.math.exp(mu), observed=r.poisson(1, ROWS), dims="row")
        pm.Deterministic("double", 2 * s)
    return model


def multivariate() -> pm.Model:
    """Rows of three numbers, and a ZeroSumNormal."""
    with pm.Model() as model:
        mu = pm.ZeroSumNormal("mu", shape=3)
        pm.MvNormal("y", mu, np.eye(3) + 0.3, observed=rng().normal(size=(ROWS, 3)))
    return model


def mixture() -> pm.Model:
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(2))
        mu = pm.Normal("mu", shape=2)
        pm.NormalMixture("y", w, mu, 1.0, observed=rng().normal(size=ROWS))
    return model


def groups() -> pm.Model:
    """Counts of groups, looked up by numbers."""
    r = rng()
    with pm.Model() as model:
        numbers = pm.Data("numbers", r.integers(0, 4, ROWS))
        g = pm.Normal("g", shape=4)
        alpha = pm.HalfNormal("alpha")
        y = r.poisson(2, ROWS)
        pm.NegativeBinomial("y", mu=pm.math.exp(g[numbers]), alpha=alpha, observed=y)
    return model


def custom() -> pm.Model:
    """A distribution with a function for its draws, and a truncated one."""

    def random(mu: Any, rng: Any = None, size: Any = None) -> Any:
        return rng.normal(mu, 2.0, size)

    def logp(value: Any, mu: Any) -> Any:
        return -((value - mu) ** 2) / 8

    r = rng()
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.CustomDist("y", mu, logp=logp, random=random, observed=r.normal(size=ROWS))
        base = pm.Normal.dist(mu, 1)
        pm.Truncated("t", base, lower=0, observed=np.abs(r.normal(size=ROWS)))
    return model


def scalar() -> pm.Model:
    """One observed number."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), observed=0.5)
    return model


def mixed_rows() -> pm.Model:
    """Rows that are not computed one by one: a sum over earlier rows."""
    with pm.Model() as model:
        steps = pm.Normal("steps", shape=ROWS)
        pm.Normal("y", pt.cumsum(steps), observed=rng().normal(size=ROWS))
    return model


MODELS = (several, multivariate, mixture, groups, custom, scalar, mixed_rows)

# Of a variable without parameters: what draws it, and its distribution by SciPy.
FAMILIES: dict[str, tuple[Any, Any]] = {
    "normal": (lambda: pm.Normal.dist(1.0, 2.0), stats.norm(1, 2)),
    "student": (lambda: pm.StudentT.dist(4, mu=1.0, sigma=2.0), stats.t(4, 1, 2)),
    "gamma": (lambda: pm.Gamma.dist(2.0, 3.0), stats.gamma(2, scale=1 / 3)),
    "beta": (lambda: pm.Beta.dist(2.0, 3.0), stats.beta(2, 3)),
    "weibull": (lambda: pm.Weibull.dist(1.5, 2.0), stats.weibull_min(1.5, scale=2)),
    "lognormal": (lambda: pm.LogNormal.dist(0.3, 0.5), stats.lognorm(0.5, scale=np.exp(0.3))),
    "poisson": (lambda: pm.Poisson.dist(3.0), stats.poisson(3)),
    "negative binomial": (
        lambda: pm.NegativeBinomial.dist(mu=3.0, alpha=2.0),
        stats.nbinom(2, 2 / 5),
    ),
    "bernoulli": (lambda: pm.Bernoulli.dist(0.3), stats.bernoulli(0.3)),
    "truncated": (
        lambda: pm.Truncated.dist(pm.Normal.dist(0.0, 1.0), lower=0.0),
        stats.halfnorm(),
    ),
    "mixture": (
        lambda: pm.Mixture.dist([0.5, 0.5], [pm.Normal.dist(0.0, 1.0), pm.Normal.dist(0.0, 1.0)]),
        stats.norm(),
    ),
}
