"""Models that diverge, models that do not, and recorded runs of the first.

python tests/pymc/diverging_models.py    # samples, and writes diverging_runs.npz
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pymc as pm
from pymc.distributions.transforms import ordered
from xarray import Dataset, DataTree

RECORDED = Path(__file__).with_name("diverging_runs.npz")
EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERRORS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def rng() -> np.random.Generator:
    return np.random.default_rng(20260301)


def schools(centred: bool = True) -> pm.Model:
    """Eight schools: Rubin (1981); Gelman et al., Bayesian Data Analysis (2013), section 5.5."""
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        if centred:
            theta = pm.Normal("theta", mu, tau, dims="school")
        else:
            z = pm.Normal("z", dims="school")
            theta = pm.Deterministic("theta", mu + tau * z, dims="school")
        pm.Normal("y", theta, ERRORS, observed=EFFECTS, dims="school")
    return model


def funnel() -> pm.Model:
    """The funnel of Neal (2003), Slice sampling, section 8."""
    with pm.Model() as model:
        y = pm.Normal("y", 0, 3)
        pm.Normal("x", 0, pm.math.exp(y / 2), shape=5)
    return model


def horseshoe() -> pm.Model:
    """The prior of Carvalho, Polson and Scott (2010) for coefficients, few of which are not 0."""
    x, b = rng().normal(size=(60, 6)), np.array([3.0, -2, 0, 0, 0, 0])
    with pm.Model() as model:
        tau, lam = pm.HalfCauchy("tau", 0.1), pm.HalfCauchy("lam", 1, shape=6)
        beta = pm.Normal("beta", 0, tau * lam)
        sigma = pm.HalfNormal("sigma", 2)
        pm.Normal("y", x @ beta, sigma, observed=x @ b + rng().normal(size=60))
    return model


def normal() -> pm.Model:
    with pm.Model() as model:
        given = pm.Normal("mu", 0, 10), pm.HalfNormal("sigma", 5)
        pm.Normal("y", *given, observed=rng().normal(2, 1, 50))
    return model


def regression() -> pm.Model:
    x = rng().normal(size=(100, 4))
    with pm.Model() as model:
        mean = pm.Normal("a", 0, 5) + x @ pm.Normal("b", 0, 2, shape=4)
        observed = x @ [1, 2, 0, -1] + rng().normal(size=100)
        pm.Normal("y", mean, pm.HalfCauchy("sigma", 2), observed=observed)
    return model


def logistic() -> pm.Model:
    x = rng().normal(size=(200, 3))
    chosen = rng().random(200) < 1 / (1 + np.exp(-x @ [1, -1, 0.5]))
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=x @ pm.Normal("b", 0, 2, shape=3), observed=chosen)
    return model


def counts() -> pm.Model:
    with pm.Model() as model:
        log_rate = pm.Normal("a") + rng().normal(size=100) * pm.Normal("b")
        pm.Poisson("y", pm.math.exp(log_rate), observed=rng().poisson(2, 100))
    return model


def robust() -> pm.Model:
    x = rng().normal(size=80)
    with pm.Model() as model:
        mean = pm.Normal("a", 0, 5) + x * pm.Normal("b", 0, 5)
        nu, sigma = pm.Gamma("nu", 2, 0.1), pm.HalfNormal("sigma", 3)
        pm.StudentT("y", nu, mu=mean, sigma=sigma, observed=x + rng().standard_t(4, 80))
    return model


def many_rows() -> pm.Model:
    """Groups that are centred, as they should be with so many rows each."""
    group = np.repeat(np.arange(20), 30)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 2)
        theta = pm.Normal("theta", mu, tau, shape=20)
        observed = rng().normal(size=20)[group] + rng().normal(size=600)
        pm.Normal("y", theta[group], pm.HalfNormal("sigma", 2), observed=observed)
    return model


def shares() -> pm.Model:
    with pm.Model() as model:
        pm.Binomial("y", 20, pm.Beta("p", 2, 2, shape=10), observed=rng().binomial(20, 0.4, 10))
    return model


def simplex() -> pm.Model:
    with pm.Model() as model:
        pm.Multinomial("y", 100, pm.Dirichlet("p", np.ones(4)), observed=[20, 30, 40, 10])
    return model


def answers() -> pm.Model:
    with pm.Model() as model:
        cuts = pm.Normal("cuts", 0, 2, shape=3, transform=ordered, initval=[-1.0, 0, 1])
        pm.OrderedLogistic("y", pm.Normal("eta"), cuts, observed=rng().integers(0, 4, 200))
    return model


def not_centred() -> pm.Model:
    return schools(centred=False)


DIVERGING: tuple[Callable[[], pm.Model], ...] = (schools, funnel, horseshoe)
GOOD: tuple[Callable[[], pm.Model], ...] = (
    *(normal, regression, logistic, counts, robust),
    *(many_rows, shares, simplex, answers, not_centred),
)


def recorded(
    name: str,
    stored: bool = False,
    changed: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> DataTree:
    """The run of one of DIVERGING, with or without the positions that nutpie has stored.

    `changed` returns other divergences than those of the run.
    """
    with np.load(RECORDED) as found:
        of = {key.partition("/")[2]: found[key] for key in found if key.startswith(f"{name}/")}
    diverging, starts, parameters = (of.pop(k) for k in ("diverging", "starts", "parameters"))
    stats = {"diverging": (("chain", "draw"), changed(diverging))}
    if stored:
        where = np.full((*diverging.shape, len(parameters)), np.nan)
        where[diverging] = starts
        stats["divergence_start"] = (("chain", "draw", "unconstrained_parameter"), where)
    posterior = {
        key: (("chain", "draw", f"{key}_dim")[: values.ndim], values.astype(float))
        for key, values in of.items()
    }
    coords = {"unconstrained_parameter": parameters} if stored else {}
    return DataTree.from_dict(
        {"posterior": Dataset(posterior), "sample_stats": Dataset(stats, coords)}
    )


def main() -> None:
    """Record 500 draws of two chains: in half precision, which ranks hardly notice."""
    found: dict[str, np.ndarray] = {}
    for make in DIVERGING:
        for seed in range(100):
            tree = pm.sample(
                500,
                chains=2,
                random_seed=seed,
                model=make(),
                nuts_sampler="nutpie",
                nuts={"store_divergences": True},
                progressbar=False,
                compute_convergence_checks=False,
            )
            diverging = tree["sample_stats"]["diverging"].values
            if diverging.sum() >= 20:
                break
        of = {str(k): v.values.astype("float16") for k, v in tree["posterior"].data_vars.items()}
        starts = tree["sample_stats"]["divergence_start"]
        of["diverging"], of["starts"] = diverging, starts.values[diverging].astype("float32")
        of["parameters"] = starts["unconstrained_parameter"].values.astype(str)
        found |= {f"{make.__name__}/{key}": values for key, values in of.items()}
    np.savez_compressed(RECORDED, **found)


if __name__ == "__main__":
    main()
