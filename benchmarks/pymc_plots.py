"""The plots of docs/benchmarks.rst: speed-ups predicted and measured by rows; overlaid posteriors.

    python benchmarks/pymc_plots.py [--rounds 5] [--draws 1000] [--folder docs/figures]

The model is a logistic regression with 20 covariates; its gradient is compiled in mode NUMBA.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from common import describe_machine
from pymc_gradient import compiled, logistic
from threadpoolctl import threadpool_limits

import synkhronos as synk

warnings.filterwarnings("ignore")

ROWS = (500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000)
SHOWN = 6  # parameters whose posteriors are drawn


def fastest(functions: list[Any], theta: np.ndarray, rounds: int) -> list[float]:
    """Seconds of each function, in turns: the smallest median of the rounds."""
    found: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, times in zip(functions, found, strict=True):
            spent = []
            until = time.perf_counter() + 0.1
            while (began := time.perf_counter()) < until:
                function(theta)
                spent.append(time.perf_counter() - began)
            times.append(float(np.median(spent)))
    return [min(times) for times in found]


def speedup(rows: int, rounds: int) -> tuple[float, float]:
    """Speed-up of a gradient with 2 members over the plain model: predicted and measured."""
    model = logistic(rows)
    theta = np.random.default_rng(3).normal(size=21) * 0.3
    with threadpool_limits(1), synk.Group(2) as group, group.active():
        [timing] = synk.pymc.advise(model, modes=["NUMBA"]).modes
        predicted = timing.plain / timing.seconds(2)
        plain = compiled(model, "NUMBA")
        with synk.pymc.parallel(model, mode="NUMBA"):
            divided = compiled(model, "NUMBA")
            for function in (plain, divided):
                function.trust_input = True
            alone, together = fastest([plain, divided], theta, rounds)
    return predicted, alone / together


def plot_speedups(rounds: int, path: Path) -> None:
    found = []
    for rows in ROWS:
        found.append(speedup(rows, rounds))
        print(f"{rows:,} rows: predicted {found[-1][0]:.2f}, measured {found[-1][1]:.2f}")
    figure, axes = plt.subplots(figsize=(6, 3.6))
    axes.axhline(1.0, color="0.7", linewidth=1)
    for values, name, style in zip(
        zip(*found, strict=True), ("predicted by advise", "measured"), ("o--", "s-"), strict=True
    ):
        axes.plot(ROWS, values, style, label=name)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows of a logistic regression with 20 covariates")
    axes.set_ylabel("speed-up with 2 members")
    axes.legend(frameon=False)
    save(figure, path)


def plot_posteriors(draws: int, path: Path) -> None:
    """The same seed, plain and divided."""
    model = logistic(5_000)
    how = {"draws": draws, "tune": draws, "chains": 2, "cores": 1, "progressbar": False}
    how |= {"random_seed": 1, "nuts_sampler": "pymc", "quiet": True}
    plain = pm.sample(model=model, **how)
    with synk.Group(2) as group, group.active(), synk.pymc.parallel(model):
        divided = pm.sample(model=model, **how)
    figure, panels = plt.subplots(2, SHOWN // 2, figsize=(8, 4), sharey=True)
    for i, axes in enumerate(panels.flat):
        for trace, name, look in (
            (plain, "plain", {"histtype": "stepfilled", "color": "0.8"}),
            (divided, "2 members", {"histtype": "step", "color": "C0"}),
        ):
            values = np.asarray(trace.posterior["b"])[..., i].ravel()
            axes.hist(values, bins=40, density=True, label=name, **look)
        axes.set_title(f"b[{i}]", fontsize=9)
        axes.set_yticks([])
    panels.flat[0].legend(frameon=False, fontsize=8)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("docs/figures"))
    args = parser.parse_args()
    describe_machine()
    args.folder.mkdir(parents=True, exist_ok=True)
    plot_speedups(args.rounds, args.folder / "pymc_speedup.svg")
    plot_posteriors(args.draws, args.folder / "pymc_posterior.svg")


if __name__ == "__main__":
    main()
