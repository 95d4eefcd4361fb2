"""A run with and without `folder=`: seconds of sampling, processor seconds, and memory at its peak.

Each run is a process of its own, and samples two chains on two cores. Seconds are those that the
sampler notes. Processor seconds and memory are what a run adds to those of a run of ten draws. Runs
take turns, and figures are medians. The disk is that of the current folder.

    python benchmarks/long_runs.py [--draws 2000,20000] [--runs 3] [MODEL ...]
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import warnings
from typing import Any

import pymc as pm
from common import describe_machine, show
from pymc_gallery_models import MODELS, with_data
from pymc_gradient import MODELS as REGRESSIONS

import synkhronos as synk

warnings.filterwarnings("ignore")

QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}
NAMES = ("radon", "poisson")
WAYS = ("plain", "folder")


def model_named(name: str) -> pm.Model:
    return with_data(MODELS[name]) if name in MODELS else REGRESSIONS[name]()


def child(name: str, way: str, draws: int, seed: int) -> None:
    """Sample once; print seconds, processor seconds and megabytes."""
    given: dict[str, Any] = {"tune": 500, "chains": 2, "cores": 2, "random_seed": seed}
    with tempfile.TemporaryDirectory(dir=".") as place:
        folder = place if way == "folder" else None
        found = synk.pymc.sample(draws, model=model_named(name), folder=folder, **given, **QUIET)
        seconds = float(found.posterior.attrs["sampling_time"])
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3]))


def run(*given: object) -> list[float]:
    """The same, in a process."""
    command = [sys.executable, __file__, "--child", *map(str, given)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        name, way, draws, seed = sys.argv[2:]
        return child(name, way, int(draws), int(seed))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=NAMES, metavar="MODEL")
    parser.add_argument("--draws", default="2000,20000")
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    describe_machine()
    counts, rows = [int(n) for n in asked.draws.split(",")], []
    for name in asked.models:
        run(name, "plain", 10, 1)  # fills the caches
        before = {way: run(name, way, 10, 1) for way in WAYS}
        for draws in counts:
            found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
            for seed, way in itertools.product(range(asked.runs), WAYS):
                found[way].append(run(name, way, draws, seed))
            middle = {
                way: [statistics.median(m) for m in zip(*found[way], strict=True)] for way in WAYS
            }
            (plain, *others), (ours, *_) = (middle[way] for way in WAYS)
            rows.append([name, draws, plain, ours, f"{ours / plain:.3f}"])
            for i in range(len(others)):
                more = [middle[way][i + 1] - before[way][i + 1] for way in WAYS]
                rows[-1] += [*more, f"{more[1] / more[0]:.3f}"]
    columns = ["model", "draws"]
    for what in ("s", "processor s", "MB"):
        columns += [what, f"{what}, folder", "times"]
    show("Two chains, with and without folder=", columns, rows)


if __name__ == "__main__":
    main()
