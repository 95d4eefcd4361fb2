"""Many small models: a loop of `pm.sample`, and `synk.pymc.map`.

Each contender is a process of its own; contenders take turns. Imports are not counted; compiling
and the start of processes are. The loop samples fewer models; what it takes for all follows from
these. Seconds and processor seconds, of all processes of a contender.

    python benchmarks/pymc_fleet.py [--models 200] [--loop 10] [--graphs 1 10] [--rounds 1]
        [--draws 500] [--rows 200]

The models are Poisson regressions with 2 to 11 columns, sampled by nutpie with 2 chains. With 10
graphs they have 10 numbers of columns, in turn.
"""

from __future__ import annotations

import argparse
import functools
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
from common import describe_machine, show


def model_of(number: int, *, graphs: int, rows: int) -> Any:
    import pymc as pm

    r = np.random.default_rng(number)
    columns = 2 + number % graphs
    x, slopes = r.normal(size=(rows, columns)), 0.2 * r.normal(size=columns)
    y = r.poisson(np.exp(0.3 + x @ slopes))
    with pm.Model() as model:
        a = pm.Normal("a")
        b = pm.Normal("b", shape=columns)
        pm.Poisson("y", pm.math.exp(a + x @ b), observed=y)
    return model


def processor_seconds() -> float:
    found = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in found)


def contend(who: str, models: int, graphs: int, rows: int, draws: int) -> None:
    import pymc as pm

    from synkhronos.pymc import map as fleet

    make = functools.partial(model_of, graphs=graphs, rows=rows)
    given: dict[str, Any] = {"draws": draws, "tune": draws, "chains": 2, "nuts_sampler": "nutpie"}
    before, began = processor_seconds(), time.perf_counter()
    if who == "map":
        failed = fleet(make, range(models), random_seed=1, progressbar=False, **given).failed
        assert not failed, failed
    else:
        quiet = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}
        for number in range(models):
            pm.sample(model=make(number), random_seed=number, **given, **quiet)
    print(json.dumps([time.perf_counter() - began, processor_seconds() - before]))


def measured(who: str, models: int, graphs: int, options: argparse.Namespace) -> list[float]:
    given = [who, models, graphs, options.rows, options.draws]
    command = [sys.executable, __file__, "--contend", json.dumps(given)]
    found = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return [float(value) for value in json.loads(found.stdout.splitlines()[-1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("models", 200), ("loop", 10), ("rounds", 1), ("draws", 500)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--graphs", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--contend", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        contend(*json.loads(options.contend))
        return
    describe_machine()
    lines = []
    for graphs in options.graphs:
        counts = {"loop": options.loop, "map": options.models}
        runs: dict[str, list[list[float]]] = {who: [] for who in counts}
        for _ in range(options.rounds):
            for who, count in counts.items():
                runs[who].append(measured(who, count, graphs, options))
        best = {who: np.min(found, axis=0) for who, found in runs.items()}
        best["loop"] = best["loop"] * options.models / options.loop
        for who, (seconds, busy) in best.items():
            gain = best["loop"] / (seconds, busy)
            lines.append(
                [
                    f"{options.models} models, {graphs} graphs",
                    f"{who} ({counts[who]} measured)",
                    float(seconds),
                    float(busy),
                    *(float(value) for value in gain),
                ]
            )
    columns = ["work", "contender", "s", "CPU s", "times faster", "times less CPU"]
    show("Many models", columns, lines)


if __name__ == "__main__":
    main()
