"""A run with and without `folder=`: seconds of sampling, processor seconds, and memory at its peak.

Each run is a process of its own: it samples ten draws, and then those that are measured, in two
chains on two cores. Seconds are those that the sampler notes. Processor seconds are of the call,
whose model is compiled by then, and memory is what the call adds. Runs take turns, and figures are
medians. The disk is that of the current folder.

With a folder chains have other seeds, so other numbers of gradients. Seconds are compared by those
of the longest chain, and processor seconds by those of both.

    python benchmarks/long_runs.py [--draws 4000,16000] [--tune 300] [--runs 3] [MODEL ...]
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
import time
import warnings
from typing import Any

import pymc as pm
from common import describe_machine, show
from pymc_gallery_models import MODELS, with_data
from pymc_gradient import MODELS as REGRESSIONS

import synkhronos as synk

warnings.filterwarnings("ignore")

QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}
NAMES = ("radon", "irt")
WAYS = ("plain", "folder")


def model_named(name: str) -> pm.Model:
    return with_data(MODELS[name]) if name in MODELS else REGRESSIONS[name]()


def child(name: str, way: str, tune: int, draws: int, seed: int) -> None:
    """Sample; print seconds, processor seconds, megabytes, and gradients: the most, and all."""
    given: dict[str, Any] = {"tune": tune, "chains": 2, "cores": 2, "random_seed": seed}
    given["discard_tuned_samples"] = False
    model, before = model_named(name), 0.0
    for count in (10, draws):
        with tempfile.TemporaryDirectory(dir=".") as place:
            folder = place if way == "folder" else None
            before, began = peak(), time.process_time()
            found = synk.pymc.sample(count, model=model, folder=folder, **given, **QUIET)
            used, added = time.process_time() - began, peak() - before
            seconds = float(found.posterior.attrs["sampling_time"])
            groups = (found[f"{group}sample_stats"] for group in ("warmup_", ""))
            steps = sum(group["n_steps"].sum("draw").load() for group in groups)
    print(json.dumps([seconds, used, added, int(steps.max()), int(steps.sum())]))


def peak() -> float:
    """The most megabytes that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def run(*given: object) -> list[float]:
    """The same, in a process."""
    command = [sys.executable, __file__, "--child", *map(str, given)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        name, way, *numbers = sys.argv[2:]
        return child(name, way, *map(int, numbers))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=NAMES, metavar="MODEL")
    parser.add_argument("--draws", default="4000,16000")
    parser.add_argument("--tune", type=int, default=300)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    describe_machine()
    rows = []
    for name, draws in itertools.product(asked.models, map(int, asked.draws.split(","))):
        found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
        for seed, way in itertools.product(range(asked.runs), WAYS):
            found[way].append(run(name, way, asked.tune, draws, seed))
        plain, ours = ([statistics.median(m) for m in zip(*found[w], strict=True)] for w in WAYS)
        rows.append([name, draws])
        for at, by in ((0, 3), (1, 4), (2, None)):
            work = 1.0 if by is None else ours[by] / plain[by]
            rows[-1] += [plain[at], ours[at], f"{ours[at] / plain[at] / work:.3f}"]
    columns = ["model", "draws"]
    for what in ("s", "processor s", "MB"):
        columns += [what, f"{what}, folder", "times" if what == "MB" else "times, by gradient"]
    show("Two chains, with and without folder=", columns, rows)


if __name__ == "__main__":
    main()
