"""Draws by each way of `sample`, and what follows sampling: kept_ways.py NAME..."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable
from typing import Any

import kept_models
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr

import synkhronos as synk
from synkhronos.extensions import updates
from synkhronos.pymc._chains import sampling
from synkhronos.pymc._density import gain
from synkhronos.training import fit

_QUIET = {"progressbar": False}


def sampled(build: Callable[[], object], **given: Any) -> str:
    """A digest of draws by `sample`."""
    with pm.Model() as model:
        build()
    return kept_models.digest(model, **{"backend": None, **given})


def cheap(build: Callable[[], object], **given: Any) -> str:
    """The same, as if the model were so expensive that its density is made faster."""
    before, sampling._CHEAP_SECONDS = sampling._CHEAP_SECONDS, 0.0
    try:
        return sampled(build, **given)
    finally:
        sampling._CHEAP_SECONDS = before


def counts() -> None:
    """PyMC takes Metropolis for the counts, and NUTS for the rest."""
    many, slope = pm.Poisson("many", 3.0, shape=4), pm.Normal("slope", shape=2)
    mean = pm.Deterministic("mean", many.sum() / 10 + slope[0] * kept_models._X[:, 0] + slope[1])
    pm.Normal("y", mean, 1, observed=kept_models._Y)


def copied() -> str:
    """By PyMC, of a model of `fast`."""
    with pm.Model() as model:
        kept_models.regression()
    given = {"draws": 20, "tune": 30, "chains": 2, "cores": 1, "random_seed": 1, "quiet": True}
    given |= {"compute_convergence_checks": False, **_QUIET}
    return _digest(pm.sample(model=synk.pymc.fast(model), **given).posterior)


def followed(what: str) -> str:
    """Something that follows sampling."""
    with pm.Model() as model:
        kept_models.walk()
        pm.Deterministic("twice", 2 * pm.math.tanh(model["level"]))
    level = np.random.default_rng(0).normal(size=(2, 3, len(kept_models._Y)))
    posterior = xr.Dataset({"level": (("chain", "draw", "level_dim_0"), level)})
    tree = xr.DataTree.from_dict({"posterior": posterior})
    if what == "likelihood":
        synk.pymc.compute_log_likelihood(tree, model=model, **_QUIET)
        return _digest(tree["log_likelihood"])
    if what == "deterministics":
        return _digest(synk.pymc.compute_deterministics(posterior, model=model, **_QUIET))
    given = {"random_seed": 1, **_QUIET}
    if what == "prior":
        return _digest(synk.pymc.sample_prior_predictive(5, model, **given)["prior"])
    found = synk.pymc.sample_posterior_predictive(tree, model, **given)
    return _digest(found["posterior_predictive"])


def trained() -> str:
    """The weights of a small network that two members train."""
    rng = np.random.default_rng(0)
    x, y = pt.dmatrix("x"), pt.dvector("y")
    shapes = {"w": (5, 8), "v": (8,)}
    w, v = (pytensor.shared(rng.normal(size=s), name=n) for n, s in shapes.items())
    loss = ((pt.tanh(x @ w) @ v - y) ** 2).mean()
    data = [rng.normal(size=(64, 5)), rng.normal(size=64)]
    with synk.Group(2):
        given = {"batch": 16, "epochs": 3, "progress": False, "seed": 1}
        fit(loss, [w, v], [x, y], data, optimizer=updates.adam, **given)
    return _digest({"w": w.get_value(), "v": v.get_value()})


def _digest(values: Any) -> str:
    found = hashlib.sha256()
    for name in sorted(values):
        found.update(np.ascontiguousarray(values[name]).tobytes())
    return found.hexdigest()


WAYS: dict[str, Callable[[], str]] = {
    "nutpie": lambda: sampled(kept_models.schools),
    "faster": lambda: cheap(kept_models.levels),
    "nuts": lambda: sampled(kept_models.mixture, nuts_sampler="pymc"),
    "nuts_in_processes": lambda: sampled(kept_models.with_data, nuts_sampler="pymc", cores=2),
    "faster_nuts": lambda: cheap(kept_models.custom, nuts_sampler="pymc"),
    "step_methods": lambda: sampled(counts, nuts_sampler=None),
    "members": lambda: sampled(kept_models.regression, chains=1, cores=2, members_per_chain=2),
    "members_nuts": lambda: sampled(
        kept_models.regression, chains=1, cores=2, members_per_chain=2, nuts_sampler="pymc"
    ),
    "processes": lambda: sampled(kept_models.regression, cores=2, members_per_chain=1),
    "copy": copied,
    "prior": lambda: followed("prior"),
    "posterior": lambda: followed("posterior"),
    "likelihood": lambda: followed("likelihood"),
    "deterministics": lambda: followed("deterministics"),
    "fit": trained,
}

if __name__ == "__main__":
    logging.getLogger("pymc").setLevel(logging.ERROR)
    gain.FEW_ROWS = 0  # as in the process of the tests
    for each in sys.argv[1:]:
        print(each, WAYS[each](), flush=True)
