"""Draws of `synk.pymc.sample` are of the distribution of plain nutpie's, or of a published one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import arviz_stats
import numpy as np
import pymc as pm
import pytest
from zoo import KINDS

import synkhronos as synk
from synkhronos.pymc._chains import sampling

pytestmark = [
    pytest.mark.thorough,  # each compiles with nutpie
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),
]

# those of benchmarks/pymc_gallery.py, small
GALLERY = (
    "item response, persons by items (1PL)",
    "ordinal, effects of persons and stories",
    "Weibull survival, censored",
    "frailty of patients",
    "radon, correlated effects of counties",
)
MOST = 4.0  # standard errors; of several hundred numbers, with the same seeds in each run
GIVEN: dict[str, Any] = {"chains": 2, "cores": 2, "progressbar": False} | {
    "draws": 700,
    "tune": 500,
    "compute_convergence_checks": False,
    "quiet": True,
    "nuts_sampler": "nutpie",
    "compile_kwargs": {"mode": "NUMBA"},
}


@pytest.fixture(autouse=True)
def _prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models get the faster density, too."""
    pytest.importorskip("nutpie")
    monkeypatch.setattr(sampling, "_CHEAP_SECONDS", 0.0)


def ours(model: pm.Model, lines: Callable[[], list[str]], **given: Any) -> Any:
    found = synk.pymc.sample(model, **GIVEN | given).posterior
    assert "with a faster density" in lines()[-1]
    return found


def error_of(draws: np.ndarray) -> float:
    """The standard error of the mean of draws, (chain, draw)."""
    return float(draws.std() / np.sqrt(arviz_stats.ess(draws, method="mean")))


def moments(draws: np.ndarray) -> list[tuple[float, float]]:
    """The mean and the variance of draws, (chain, draw), each with its standard error."""
    squares = (draws - draws.mean()) ** 2
    return [(float(each.mean()), error_of(each)) for each in (draws, squares)]


def elements(values: Any) -> list[np.ndarray]:
    """The draws of each element of a variable, (chain, draw)."""
    flat = np.asarray(values).reshape(*values.shape[:2], -1)
    return [flat[..., i] for i in range(flat.shape[-1]) if np.ptp(flat[..., i])]


@pytest.mark.parametrize("name", GALLERY)
def test_draws_are_those_of_the_plain_model(name: str, plans: Callable[[], list[str]]) -> None:
    """The means and variances of all parameters, from other seeds."""
    model = KINDS[name].make()
    plain = pm.sample(model=model, random_seed=2, **GIVEN).posterior
    found = ours(model, plans, random_seed=1)
    names = [rv.name for rv in model.free_RVs]
    scores = {
        f"{name}[{i}], {what}": (a - b) / np.hypot(error, other)
        for name in names
        for i, pair in enumerate(zip(elements(plain[name]), elements(found[name]), strict=True))
        for what, (a, error), (b, other) in zip(
            ("mean", "variance"), *map(moments, pair), strict=True
        )
    }
    worst = max(scores, key=lambda each: abs(scores[each]))
    assert abs(scores[worst]) < MOST, (worst, scores[worst])


def eight_schools() -> pm.Model:
    effects = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    errors = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Deterministic("theta", mu + tau * pm.Normal("each", shape=8))
        pm.Normal("y", theta, errors, observed=effects)
    return model


def mesquite() -> pm.Model:
    """Weights of 46 bushes, in grams, by the volumes of their crowns."""
    long = """1.8 1.7 2.8 1.3 3.3 1.4 1.5 3.9 1.8 2.1 .8 1.3 1.2 1.5 2.8 1.4 1.5 2.4 1.9 2.3 2.1
        2.4 1 1.3 1.1 1.3 2.5 5.2 2 1.6 1.4 3.2 1.9 2.4 2.5 2.1 2.4 2.4 1.9 2.7 1.3 2.9 2.1
        4.1 2.8 1.27"""
    short = """1.15 1.35 2.55 .85 1.9 1.4 .5 2.3 1.35 1.6 .63 .95 .9 .7 1.7 .85 .6 2.4 1.55 1.6 1.7
        1.3 .4 .6 .7 1.2 2.3 4 1.6 1.6 1 1.9 1.8 2.4 1.8 1.5 2.2 1.7 1.2 2.5 1.1 2.7 1 3.8
        2.5 1"""
    high = """1 1.33 .6 1.2 1.05 1 .9 1.3 .6 .8 .6 .95 1.2 .7 1.2 1.1 .64 1.2 1.2 1.3 1 .9 1 .5 .9
        .6 1.4 2.5 1.4 1.3 1.1 1.5 .8 1.1 1.3 .85 1.5 1.2 1.15 1.5 .7 1.9 1.5 1.5 1.5 .62"""
    grams = """401.3 513.7 1179.2 308 855.2 268.7 155.5 1253.2 328 614.6 60.2 269.6 448.4 120.4
        378.7 266.4 138.9 1020.8 635.7 621.8 579.8 326.8 66.7 68 153.1 256.4 723 4052 345
        330.9 163.5 1160 386.6 693.5 674.4 217.5 771.3 341.7 125.7 462.5 64.5 850.6 226
        1745.1 908 213.5"""
    sizes = [np.array(text.split(), float) for text in (long, short, high)]
    with pm.Model() as model:
        beta, sigma = pm.Flat("beta", shape=2, initval=np.zeros(2)), pm.HalfFlat("sigma", initval=1)
        mean = beta[0] + beta[1] * np.log(np.prod(sizes, axis=0))
        pm.Normal("y", mean, sigma, observed=np.log(np.array(grams.split(), float)))
    return model


# Means, and means of squares, each with its standard error: posteriordb's summary statistics of
# eight_schools-eight_schools_noncentered and of mesquite-logmesquite_logvolume.
PUBLISHED: dict[str, tuple[Callable[[], pm.Model], dict[str, list[tuple[float, ...]]]]] = {
    "eight schools": (
        eight_schools,
        {
            "theta": [
                (6.1505, 0.0557, 69.3635, 1.1692),
                (4.9396, 0.0462, 45.9787, 0.6346),
                (3.9059, 0.0542, 43.1392, 0.6539),
                (4.7960, 0.0475, 45.7614, 0.6194),
                (3.6144, 0.0461, 34.3577, 0.4550),
                (4.0511, 0.0485, 39.4135, 0.5390),
                (6.3172, 0.0499, 64.9327, 0.9216),
                (4.8840, 0.0543, 52.1285, 0.9025),
            ],
            "mu": [(4.4105, 0.0330, 30.4030, 0.3351)],
            "tau": [(3.6021, 0.0319, 23.2041, 0.4849)],
        },
    ),
    "mesquite": (
        mesquite,
        {
            "beta": [(5.17085, 0.00087, 26.74513, 0.00906), (0.72201, 0.00056, 0.52445, 0.00081)],
            "sigma": [(0.42667, 0.00048, 0.18433, 0.00043)],
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_draws_have_published_moments(name: str, plans: Callable[[], list[str]]) -> None:
    make, known = PUBLISHED[name]
    found = ours(make(), plans, draws=2000, random_seed=1, nuts={"target_accept": 0.95})
    for variable, published in known.items():
        for draws, given in zip(elements(found[variable]), published, strict=True):
            for power, mean, error in ((1, *given[:2]), (2, *given[2:])):
                score = ((draws**power).mean() - mean) / np.hypot(error, error_of(draws**power))
                assert abs(score) < MOST, (variable, power, score)
