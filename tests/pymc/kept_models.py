"""Models of many kinds, sampled in processes of their own: kept_models.py FOLDER NAME..."""

from __future__ import annotations

import hashlib
import logging
import sys
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.transforms import ordered as in_order

import synkhronos as synk
from synkhronos._compiling.kept.folder import Folder
from synkhronos.pymc._density import gain
from synkhronos.pymc._kept import models

_RNG = np.random.default_rng(0)
_X = _RNG.normal(size=(210, 2))
_Y = np.cumsum(_RNG.normal(size=210))
SLOPE = 3.0


def schools(shift: float = 0.0) -> None:
    effect = pm.Normal("effect", pm.Normal("mu"), pm.HalfCauchy("tau", 5), shape=4)
    pm.Normal("y", effect, [15.0, 10, 16, 11], observed=np.array([28.0, 8, -3, 7]) + shift)


def regression() -> None:
    slope = pm.Normal("slope", shape=2)
    pm.StudentT("y", nu=4, mu=_X @ slope, sigma=pm.Exponential("s", 1), observed=_Y)


def other_rows() -> None:
    """The regression with other data, and more of them."""
    rng = np.random.default_rng(1)
    slope, x = pm.Normal("slope", shape=2), rng.normal(size=(217, 2))
    noise = pm.Exponential("s", 1)
    pm.StudentT("y", nu=4, mu=x @ slope, sigma=noise, observed=rng.normal(size=217))


def large() -> None:
    """Arrays whose addresses would be in the code."""
    x = _RNG.normal(size=(2, 140_000))
    pm.Normal("y", pm.Normal("slope", shape=2) @ x, 1, observed=x[0])


def mixture() -> None:
    mu = pm.Normal("mu", shape=2, transform=in_order, initval=[-1.0, 1])
    pm.NormalMixture("y", pm.Dirichlet("w", [1.0, 1]), mu, 1, observed=_Y)


def walk() -> None:
    level = pm.GaussianRandomWalk("level", 0.1, init_dist=pm.Normal.dist(), shape=210)
    pm.Normal("y", level, 1, observed=_Y)


def process() -> None:
    cov = pm.gp.cov.ExpQuad(2, pm.InverseGamma("ls", 5, 1))
    pm.gp.Marginal(cov_func=cov).marginal_likelihood("y", X=_X[:70], y=_Y[:70], sigma=1.0)


def covariance() -> None:
    chol, *_ = pm.LKJCholeskyCov("c", n=2, eta=2, sd_dist=pm.Exponential.dist(1))
    pm.MvNormal("y", 0, chol=chol, observed=_X)


def levels() -> None:
    cuts = pm.Normal("cuts", 0, 2, shape=2, transform=in_order, initval=[-1.0, 1])
    pm.OrderedLogistic("y", pm.Normal("b") * _X[:, 0], cuts, observed=np.arange(210) % 3)


def custom() -> None:
    mu = pm.Normal("mu")
    pm.CustomDist("y", mu, logp=lambda v, mu: -SLOPE * (v - mu) ** 2, observed=_Y)


def loop() -> None:
    made = pytensor.scan(
        lambda before, a: before * a + 1,
        outputs_info=[pt.as_tensor(np.float64(0))],
        non_sequences=[pm.Beta("a", 2, 2)],
        n_steps=4,
        return_updates=False,
    )
    pm.Normal("y", made, 1, observed=_Y[:4])


def imputed() -> None:
    pm.Normal("y", pm.Normal("mu"), 1, observed=np.ma.masked_invalid([1.0, np.nan, 2]))


def with_data() -> None:
    group = pm.Data("group", np.arange(210) % 3)
    mean = pm.Deterministic("mean", pm.Normal("a", shape=3)[group])
    pm.Normal("y", mean, 1, observed=pm.Data("values", _Y))


def no_rows() -> None:
    pm.Potential("bowl", -(pm.Normal("a", shape=3) ** 4).sum())
    pm.Uniform("u", 0, 1)
    pm.Dirichlet("d", [1.0, 2, 3])


def rows() -> None:
    """So many that its log-density gets another form."""
    x = _RNG.normal(size=(20_000, 2))
    mean = pm.math.exp(pm.Normal("b", shape=2) @ x.T)
    pm.Poisson("y", mean, observed=_RNG.poisson(np.exp(x[:, 0] / 3)))


def built(name: str) -> pm.Model:
    """A model by the name of its function."""
    with pm.Model() as model:
        globals()[name]()
    return model


def sampled(name: str, **given: object) -> str:
    """A digest of the draws of a model by its name."""
    return digest(built(name), **given)


def digest(model: pm.Model, **given: object) -> str:
    """A digest of the draws of a model."""
    settings = {"draws": 20, "tune": 30, "chains": 2, "cores": 1, "random_seed": 1, "quiet": True}
    settings |= {"progressbar": False, "compute_convergence_checks": False, "backend": "numba"}
    tree = synk.pymc.sample(model, **{**settings, "nuts_sampler": "nutpie", **given})
    found = hashlib.sha256()
    for name in sorted(tree.posterior.data_vars):
        found.update(np.ascontiguousarray(tree.posterior[name].values).tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    logging.getLogger("pymc").setLevel(logging.ERROR)
    gain.FEW_ROWS = 0  # as in the process of the tests
    place, *names = sys.argv[1:]
    models.kept_folder = lambda: Folder(Path(place)) if place else None
    for each in names:
        print(each, sampled(each), flush=True)
