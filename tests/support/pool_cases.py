"""What each pool does for `synk.pymc.map`, as cases; a program that runs all of them on one kind.

python pool_cases.py KIND FOLDER
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fleet_cases as cases
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import synkhronos as synk
from synkhronos._errors import InputError, SynkhronosError
from synkhronos.pymc._map import pooled
from synkhronos.pymc._map.fitted import Sampled
from synkhronos.pymc._map.names import seed_of

type Case = Callable[[Any, Path], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """One of the cases, which gets a pool and an empty folder."""
    CASES[function.__name__] = function
    return function


@case
def ends(pool: Any, folder: Path) -> None:
    """Results, order, seeds and failures are those of slots, whatever the pool."""
    items = {name: name for name in ("raises", "first", "dies", "second")}
    fits = synk.pymc.map(cases.ended, items, on=pool, folder=folder, random_seed=1)
    fit = Sampled(cases.ended, {}, 1)
    assert list(fits) == ["first", "second"]
    assert dict(fits) == {name: fit(name, seed_of(1, name)) for name in ("first", "second")}
    assert fits.failed.keys() == {"raises", "dies"}
    assert "ArithmeticError: this item raises" in fits.failed["raises"]
    assert "fleet_cases.py" in fits.failed["raises"]
    assert "killed by SIGKILL" in fits.failed["dies"]
    assert json.loads((folder / "failed.json").read_text()) == fits.failed


@case
def together(pool: Any, folder: Path) -> None:
    """Both of two workers fit an item at the same time."""
    meeting = cases.Meeting(folder / "there")
    fits = synk.pymc.map(meeting, list("ab"), on=pool, folder=folder, limit=120)
    assert fits.failed == {}


@case
def limit(pool: Any, folder: Path) -> None:
    """An item that is late is killed, and its worker goes on."""
    fits = synk.pymc.map(cases.ended, ["late", "first"], on=pool, folder=folder, limit=5)
    assert list(fits) == [1]
    assert "longer than limit=5 seconds" in fits.failed[0]


@case
def resume(pool: Any, folder: Path) -> None:
    """A folder goes on with another pool, or with slots."""
    place, results = folder / "place", folder / "results"
    place.mkdir()
    (place / "b").touch()
    fit = cases.Counted(place)
    first = synk.pymc.map(fit, {"a": "a", "b": "b"}, on=pool, folder=results, random_seed=1)
    assert (dict(first), list(first.failed)) == ({"a": "a"}, ["b"])
    (place / "b").unlink()
    items = {"c": "c", "b": "b", "a": "a"}
    again = synk.pymc.map(fit, items, on=pool, folder=results)
    assert (dict(again), again.failed) == (items, {})
    assert sorted(fit.calls()) == ["a", "b", "b", "c"]
    whole = synk.pymc.map(fit, items, folder=results, cores=1)
    assert (dict(whole), fit.calls()) == (items, [])


@case
def draws(pool: Any, folder: Path) -> None:
    """Bit by bit those of a slot, of models of one graph."""
    given: dict[str, Any] = {"draws": 20, "tune": 20, "chains": 2, "nuts_sampler": "nutpie"}
    items = {name: (ord(name), 20 + ord(name)) for name in "abcdef"}
    found = synk.pymc.map(cases.model_of, items, on=pool, folder=folder, random_seed=1, **given)
    slots = synk.pymc.map(cases.model_of, items, cores=1, random_seed=1, **given)
    assert found.failed == slots.failed == {}
    for name in items:
        for variable, values in slots[name]["posterior"].data_vars.items():
            assert np.array_equal(values, found[name]["posterior"][variable]), (name, variable)


@case
def compilations(pool: Any, folder: Path) -> None:
    """Each of at most two processes compiles the graph once, however many batches it has."""
    fits = synk.pymc.map(cases.compiles, range(12), on=pool, folder=folder)
    assert fits.failed == {}
    assert {count for _, count in fits.values()} == {1}
    assert len({process for process, _ in fits.values()}) <= 2


@case
def large(pool: Any, folder: Path) -> None:
    """Items and results that take several messages."""
    items = [np.arange(250_000) + i for i in range(4)]
    fits = synk.pymc.map(np.cumsum, items, on=pool, folder=folder)
    assert all((fits[i] == np.cumsum(item)).all() for i, item in enumerate(items))


@case
def threads(pool: Any, folder: Path) -> None:
    """The libraries of an item have a thread for each member."""
    fits = synk.pymc.map(cases.threads, [0], on=pool, folder=folder)
    assert fits[0] == {"numba": 1, "OMP_NUM_THREADS": "1", "blas": 1}


@case
def always_fails(pool: Any, folder: Path) -> None:
    """The call ends, and no worker is wrong after it."""
    with pytest.raises(
        SynkhronosError, match=r"the first 10 items have failed, .*this item raises"
    ):
        synk.pymc.map(cases.ended, ["raises"] * 12, on=pool, folder=folder)
    assert dict(synk.pymc.map(cases.ended, ["a"], on=pool, random_seed=1)).keys() == {0}


@case
def not_sent(pool: Any, folder: Path) -> None:
    """It is said before anything is submitted."""
    with pytest.raises(InputError, match="item 0 refers to what cannot be sent"):
        synk.pymc.map(cases.ended, [threading.Lock()], on=pool, folder=folder)


@case
def other_versions(pool: Any, folder: Path) -> None:
    """A worker with another version of a package fits nothing."""
    known = pooled.versions_here
    pooled.versions_here = lambda names: {**known(names), "pymc": "1.2.3"}
    try:
        with pytest.raises(SynkhronosError, match=r"in place of 1.2.3: install the same versions"):
            synk.pymc.map(cases.ended, ["a"], on=pool, folder=folder)
    finally:
        pooled.versions_here = known


@case
def interrupt(pool: Any, folder: Path) -> None:
    """Ctrl-C leaves what was done, and the pool goes on with another call."""
    done = threading.Event()

    def press() -> None:
        while not done.wait(0.1):
            if list(folder.glob("*.fit")):
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGINT)
                return

    keys = threading.Thread(target=press)
    keys.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            # some pools wait for the end of the second one
            synk.pymc.map(cases.slow, [0.0, 20.0], on=pool, folder=folder, random_seed=1)
    finally:
        done.set()
        keys.join()
    assert len(list(folder.glob("*.fit"))) == 1
    assert dict(synk.pymc.map(cases.slow, [0.0], on=pool, folder=folder)) == {0: 0.0}


@case
def rows(pool: Any, folder: Path) -> None:
    """`loo` and its moment matching have the bits of this process."""
    del folder
    r = np.random.default_rng(3)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("m", 0, 3), observed=[*r.normal(size=11), 6.0])
    posterior = xr.Dataset({"m": (("chain", "draw"), r.normal(0.5, 0.3, (2, 60)))})
    tree = xr.DataTree.from_dict({"posterior": posterior})
    given = {"model": model, "moment_match": True, "k_threshold": 0.2, "progressbar": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of large k
        here = synk.pymc.loo(tree, True, cores=1, **given)
        found = synk.pymc.loo(tree, True, on=pool, **given)
    for name in ("elpd_i", "pareto_k", "n_eff_i"):
        np.testing.assert_array_equal(getattr(found, name), getattr(here, name))


@contextlib.contextmanager
def opened(kind: str, workers: int) -> Iterator[Any]:
    """A pool of this kind with some workers, each of one core."""
    if kind == "threads":
        with ThreadPoolExecutor(workers) as executor:
            yield executor
    elif kind == "processes":
        with ProcessPoolExecutor(workers) as executor:
            yield executor
    elif kind in ("dask", "dask-threads"):
        from distributed import Client, LocalCluster

        given = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
        given["processes"] = kind == "dask"
        with LocalCluster(**given) as cluster, Client(cluster) as client:
            yield client
    elif kind == "ray":
        import ray

        # by default workers have niceness 15, and starve beside other tests
        os.environ.update(RAY_worker_niceness="0")
        paths = os.pathsep.join(path for path in sys.path if path)
        given = {"env_vars": {"PYTHONPATH": paths}}
        ray.init(num_cpus=workers, include_dashboard=False, runtime_env=given, log_to_driver=False)
        try:
            yield ray
        finally:
            ray.shutdown()
    elif kind == "mpi":
        from mpi4py.futures import MPIPoolExecutor

        with MPIPoolExecutor() as executor:
            yield executor


def main(kind: str, folder: str) -> None:
    """Run all cases on a pool of this kind, and say so."""
    logging.getLogger("synkhronos").setLevel(logging.ERROR)
    with opened(kind, 2) as pool:
        for name, function in CASES.items():
            began = time.monotonic()
            place = Path(folder) / name
            place.mkdir(mode=0o700)
            function(pool, place)
            sys.stdout.write(f"{kind}: {name}: {time.monotonic() - began:.1f} s\n")
            sys.stdout.flush()
    sys.stdout.write("all cases\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
