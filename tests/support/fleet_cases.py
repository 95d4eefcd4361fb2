"""Functions of items, for `synk.pymc.map`: processes import this module."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor

from synkhronos._host.launch_settings import launch_settings
from synkhronos._host.thread_pools import thread_pools

QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}
MAKERS: dict[str, Callable[[int, int], Any]] = {}


def maker(make: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    """A function of a seed and a number of rows, which returns a model."""
    MAKERS[make.__name__] = make
    return make


@maker
def arrays(seed: int, rows: int) -> Any:
    """Data as arrays; a transform that is made anew in each model."""
    r = np.random.default_rng(seed)
    x = r.normal(size=(rows, 3))
    with pm.Model() as model:
        slopes = pm.Normal("slopes", shape=3)
        factor = pm.Uniform("factor", 0, 2)
        pm.Poisson("y", pm.math.exp(factor + x @ slopes), observed=r.poisson(2, size=rows))
    return model


@maker
def named_data(seed: int, rows: int) -> Any:
    """`pm.Data` with dims, and an index."""
    r = np.random.default_rng(seed)
    with pm.Model(coords={"group": range(4), "row": range(rows)}) as model:
        x = pm.Data("x", r.normal(size=rows), dims="row")
        group = pm.Data("group_of", r.integers(0, 4, rows), dims="row")
        effects = pm.Normal("effects", 0, pm.HalfNormal("width"), dims="group")
        pm.Normal("y", effects[group] * x, 1, observed=r.normal(size=rows), dims="row")
    return model


@maker
def constant_index(seed: int, rows: int) -> Any:
    """An index and integers as arrays."""
    r = np.random.default_rng(seed)
    group, trials = r.integers(0, 4, rows), r.integers(5, 9, rows)
    with pm.Model() as model:
        effects = pm.Normal("effects", shape=4)
        pm.Binomial("y", trials, logit_p=effects[group], observed=r.integers(0, 5, rows))
    return model


@maker
def one_number(seed: int, rows: int) -> Any:
    """An observed number, and no array."""
    with pm.Model() as model:
        pm.Binomial("y", 20, pm.Beta("p", 1, 1), observed=seed % 20)
    return model


@maker
def shared_variable(seed: int, rows: int) -> Any:
    """A shared variable of PyTensor, which is no `pm.Data`."""
    r = np.random.default_rng(seed)
    with pm.Model() as model:
        model.plain = x = pytensor.shared(r.normal(size=rows), name="x")
        pm.Normal("y", pm.Normal("slope") * x, 1, observed=r.normal(size=rows))
    return model


def model_of(item: tuple[int, int]) -> Any:
    """The model of a seed and a number of rows."""
    return arrays(*item)


def tilted_of(item: tuple[int, int]) -> Any:
    """As `model_of`, of a regression."""
    return tilted(*item)


def tilted(seed: int, rows: int = 300) -> Any:
    """A regression whose intercept and slope correlate."""
    r = np.random.default_rng(seed)
    x = r.normal(100, 15, rows)
    with pm.Model() as model:
        b, sigma = pm.Normal("b", 0, 100, shape=2), pm.HalfNormal("sigma", 10)
        pm.Normal("y", b[0] + b[1] * x, sigma, observed=20 + 0.6 * x + r.normal(0, 5, rows))
    return model


def ended(item: str, random_seed: int) -> list[float]:
    """Ends as the item says, or with draws of both sources of randomness."""
    if item == "raises":
        raise ArithmeticError("this item raises")
    if item == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "late":
        time.sleep(60)
    return [np.random.default_rng(random_seed).normal(), np.random.rand()]


class Counted:
    """Notes each call in a folder; fails as long as the folder has a file of the item's name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, item: str) -> str:
        """The item, and its calls are one more."""
        with open(self.folder / "calls", "a") as file:
            file.write(f"{item}\n")
        if (self.folder / item).exists():
            raise LookupError(item)
        return item

    def calls(self) -> list[str]:
        """The items of all calls since the last time."""
        path = self.folder / "calls"
        found = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return found


def interrupts(item: int) -> int:
    """The second item sends Ctrl-C to the process that waits for it."""
    if item == 1:
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)
    return item


class SameModel:
    """One model for all items, which get other data."""

    def __init__(self) -> None:
        self.model = named_data(0, 30)

    def __call__(self, item: int) -> Any:
        """The model, and the data of a seed."""
        r = np.random.default_rng(item)
        return self.model, {"x": r.normal(size=30), "group_of": r.integers(0, 4, 30)}


def compiles(item: int, random_seed: int) -> tuple[int, int]:
    """Samples a model; says which process does, and how many models it has compiled by now."""
    import nutpie

    given = {**QUIET, "draws": 10, "tune": 10, "chains": 1, "cores": 1, "nuts_sampler": "nutpie"}
    pm.sample(model=arrays(item, 20 + item), random_seed=random_seed, **given)
    return os.getpid(), nutpie.compile_pymc_model.__self__.count


def slow(item: float) -> float:
    """Takes as many seconds as it says."""
    time.sleep(item)
    return item


def part(item: int) -> tuple[int, int]:
    """The part that a call of `map` would fit in this process."""
    del item
    return launch_settings().part


class Meeting:
    """Each of two items waits for the other one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, item: str) -> str:
        """The item."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / item).touch()
        while len(list(self.folder.iterdir())) < 2:
            time.sleep(0.01)
        return item


def threads(item: int) -> dict[str, object]:
    """The numbers of threads of the libraries of this process."""
    import numba

    pools = [pool for pool in thread_pools() if pool.info().get("user_api") == "blas"]
    return {
        "numba": numba.config.NUMBA_NUM_THREADS,
        "OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"],
        "blas": max(pool.get_num_threads() for pool in pools),
    }
