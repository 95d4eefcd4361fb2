"""After sampling: predictive draws, log-likelihoods and LOO, of PyMC and ArviZ and of Synkhronos.

Each contender is a process of its own; contenders take turns. Its first call, on a model of 100
rows, compiles and imports and is not counted. Then seconds and processor seconds of a call, and the
largest memory of all its processes above that before (PSS: shared pages count once).

    python benchmarks/after_sampling.py [--rows 50000] [--draws 1000] [--rounds 2]
        [--loo-rows 200000] [--loo-draws 4000] [--few-rows 4000]

The model is a logistic regression with 20 columns; its draws are made up. ArviZ gets the
log-likelihoods of `--few-rows` rows, which are computed before; so does the contender "given".
"one" has one process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from common import describe_machine, show

from synkhronos._host.polling import readable

LOOK_SECONDS = 0.02
MIB = 1 << 20


def model_and_draws(rows: int, draws: int) -> Any:
    import pymc as pm
    import xarray as xr

    r = np.random.default_rng(1)
    x, b = r.normal(size=(rows, 20)), 0.2 * r.normal(size=20)
    y = (r.random(rows) < 1 / (1 + np.exp(-x @ b))).astype(int)
    with pm.Model() as model:
        a = pm.Normal("a")
        slopes = pm.Normal("b", shape=20)
        pm.Bernoulli("y", logit_p=a + pm.math.dot(x, slopes), observed=y)
    near = 1 / np.sqrt(rows)
    posterior = xr.Dataset(
        {
            "a": (("chain", "draw"), near * r.normal(size=(2, draws // 2))),
            "b": (("chain", "draw", "k"), b + near * r.normal(size=(2, draws // 2, 20))),
        }
    )
    return model, xr.DataTree.from_dict({"posterior": posterior})


def call(what: str, model: Any, idata: Any, store: str) -> Any:
    """One contender's call: WHO-WHAT-OPTION."""
    import arviz_stats
    import pymc as pm

    import synkhronos as synk

    who, task, option = f"{what}-".split("-")[:3]
    ours = (
        {"cores": 1}
        if option in ("one", "given")
        else {"store": store}
        if option == "store"
        else {}
    )
    with model:
        if task == "predictive":
            if who == "PyMC":
                return pm.sample_posterior_predictive(idata, progressbar=False)
            return synk.pymc.sample_posterior_predictive(idata, random_seed=1, **ours)
        if task == "likelihood":
            if who == "PyMC":
                return pm.stats.compute_log_likelihood(idata.copy(), progressbar=False)
            return synk.pymc.compute_log_likelihood(idata.copy(), **ours)
        if who == "ArviZ":
            return arviz_stats.loo(idata, pointwise=True)
        return synk.pymc.loo(idata, True, **ours)


def processes(parent: int) -> list[int]:
    found = [parent]
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
                if int(file.read().rsplit(")", 1)[1].split()[1]) == parent:
                    found.append(int(name))
    return found


def memory(parent: int) -> int:
    total = 0
    for pid in processes(parent):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
            total += sum(1024 * int(s.split()[1]) for s in file if s.startswith("Pss:"))
    return total


@contextlib.contextmanager
def watched(found: dict[str, float]) -> Iterator[None]:
    """Note the largest memory, by a process that looks: a thread here would forbid forks."""
    stop, stopped = os.pipe()
    told, tell = os.pipe()
    me = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os.close(stopped)
        before = most = memory(me)
        while not readable(stop, seconds=LOOK_SECONDS):
            most = max(most, memory(me))
        os.write(tell, f"{before} {most}".encode())
        os._exit(0)
    os.close(stop)
    yield
    os.close(stopped)
    os.waitpid(child, 0)
    before, most = map(int, os.read(told, 100).split())
    found |= {"before": before / MIB, "more": (most - before) / MIB}


def measure(what: str, rows: int, draws: int) -> None:
    """In the contender's process: print its figures."""
    warnings.simplefilter("ignore")
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        first = what.removesuffix("-store")  # zarr's threads would forbid the forks that follow
        call(first, *prepared(first, 100, 100), "")
        model, idata = prepared(what, rows, draws)
        with watched(found):
            wall, cpu = time.perf_counter(), sum(os.times()[:4])
            result = call(what, model, idata, os.path.join(folder, "all.zarr"))
            found["seconds"] = time.perf_counter() - wall
            found["cpu"] = sum(os.times()[:4]) - cpu
        if hasattr(result, "elpd"):
            found["elpd"] = result.elpd
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)
    print(json.dumps(found))


def prepared(what: str, rows: int, draws: int) -> Any:
    import pymc as pm

    model, idata = model_and_draws(rows, draws)
    if what in ("ArviZ-loo", "Synkhronos-loo-given"):
        with model:
            pm.stats.compute_log_likelihood(idata, progressbar=False)
    return model, idata


def figures(what: str, rows: int, draws: int) -> dict[str, float]:
    line = [sys.executable, __file__, "--measure", what, str(rows), str(draws)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(title: str, contenders: list[tuple[str, int, int]], rounds: int, result: float) -> None:
    best: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for what, rows, draws in contenders:
            found = figures(what, rows, draws)
            kept = best.setdefault(what, found)
            for key in ("seconds", "cpu"):
                kept[key] = min(kept[key], found[key])
    lines = []
    for what, rows, _ in contenders:
        f = best[what]
        memory = [f"{f['before']:.0f}", f"{f['more']:.0f}"]
        lines.append([what, f"{rows:,}", f"{f['seconds']:.2f}", f"{f['cpu']:.2f}", *memory])
    show(
        f"{title}; result {result:.0f} MiB", ["", "rows", "s", "cpu s", "MiB before", "more"], lines
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--loo-rows", type=int, default=200_000)
    parser.add_argument("--loo-draws", type=int, default=4000)
    parser.add_argument("--few-rows", type=int, default=4000)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        what, rows, draws = given.measure
        measure(what, int(rows), int(draws))
        return
    describe_machine()
    size = 8 * given.rows * given.draws / MIB
    for task in ("likelihood", "predictive"):
        names = [f"PyMC-{task}", *(f"Synkhronos-{task}{o}" for o in ("", "-one", "-store"))]
        each = [(name, given.rows, given.draws) for name in names]
        table(f"{task}, {given.draws:,} draws", each, given.rounds, size)
    few, rows, draws = given.few_rows, given.loo_rows, given.loo_draws
    names = ("ArviZ-loo", "Synkhronos-loo-given", "Synkhronos-loo-one")
    each = [(name, few, draws) for name in names]
    table(f"loo, {draws:,} draws", each, given.rounds, 0)
    each = [("Synkhronos-loo", rows, draws), ("Synkhronos-loo-one", rows, draws)]
    table(f"loo, {draws:,} draws; as a matrix {8 * rows * draws / MIB:,.0f} MiB", each, 1, 0)


if __name__ == "__main__":
    main()
