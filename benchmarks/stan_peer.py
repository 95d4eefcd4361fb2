"""stanli as a contender: an interpreter of Stan with compiled kernels (`pip install stanli`)."""

from __future__ import annotations

import importlib
import importlib.util
import time
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
from stan_programs import PROGRAMS

# (name, threads, fast mode)
MODES = (
    ("stanli", 1, False),
    ("stanli fast", 1, True),
    ("stanli fast, threads", 2, True),
)
MISSING = "stanli is not installed (pip install stanli): its columns are left out"


def installed() -> bool:
    return importlib.util.find_spec("stanli") is not None


def observed(model: pm.Model) -> np.ndarray:
    return np.asarray(model.rvs_to_values[model["y"]].data)


def compiled(name: str, model: pm.Model, threads: int, fast: bool) -> Any:
    """The Stan program of a model of the gallery, with the model's data."""
    program = PROGRAMS[name]
    return importlib.import_module("stanli").Model(
        stan_code=program.source(threads),
        data=program.values(observed(model), threads),
        fast_math=fast,
        threads_per_chain=threads,
    )


class StanFunction:
    """theta -> (value, gradient), both by Stan: theta is kept in Stan's order of its elements.

    Stan stores matrices by column. The value lacks terms that do not depend on parameters.
    """

    def __init__(self, name: str, model: pm.Model, threads: int, fast: bool) -> None:
        self._model = compiled(name, model, threads, fast)
        self._shapes = [np.shape(v) for v in model.initial_point(0).values()]
        self._given: np.ndarray | None = None
        self._theta = np.zeros(0)

    def __call__(self, theta: np.ndarray) -> Any:
        if theta is not self._given:
            self._given, self._theta = theta, self.ordered(theta)
        return self._model.log_prob_grad(self._theta)

    def ordered(self, theta: np.ndarray) -> np.ndarray:
        """A vector of all parameters of the PyMC model in Stan's order."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes])[:-1]
        pieces = zip(np.split(theta, ends), self._shapes, strict=True)
        return np.concatenate([np.ravel(a.reshape(shape), order="F") for a, shape in pieces])

    def check(self, name: str, theta: np.ndarray, gradient: np.ndarray) -> None:
        """Stan's gradient is that of the PyMC model."""
        value, found = self(theta)
        assert np.isfinite(value), name
        if PROGRAMS[name].same:
            expected = self.ordered(gradient)
            scale = np.abs(expected).max()
            assert np.allclose(found, expected, rtol=1e-6, atol=1e-8 * scale), name


def sample(
    name: str, model: pm.Model, draws: int, tune: int, chains: int, cores: int, random_seed: int
) -> Any:
    """Sample the Stan program in fast mode, by Stan's NUTS.

    Chains have threads of their own; more cores than chains are threads of each chain.

    Returns
    -------
    DataTree
        Its posterior has the parameters of the Stan program.
    """
    threads = max(1, cores // chains)
    program = compiled(name, model, threads, fast=True)
    began = time.perf_counter()
    fit = program.sample(
        chains=chains,
        parallel_chains=min(chains, cores),
        threads_per_chain=threads,
        warmup=tune,
        samples=draws,
        seed=random_seed,
        refresh=0,
    )
    seconds = time.perf_counter() - began
    found = az.from_dict({"posterior": {key: np.asarray(fit.draws(key)) for key in fit}})
    found.posterior.attrs["sampling_time"] = seconds
    return found
