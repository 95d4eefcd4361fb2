"""Two pictures of divergences, of eight schools: divergences.svg and divergences_parallel.svg.

python docs/figures/divergences.py        # extras: pymc, bench; prints the line and the table
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from xarray import DataTree

import synkhronos as synk

HERE = Path(__file__).parent
GREEN, GREY = "#0b6e4f", "#b8bfc6"
EFFECTS = [28, 8, -3, 7, -1, 1, 18, 12]
ERRORS = [15, 10, 16, 11, 9, 11, 10, 18]
SCHOOL = 0


def schools(centred: bool) -> pm.Model:
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        if centred:
            theta = pm.Normal("theta", mu, tau, dims="school")
        else:
            z = pm.Normal("z", dims="school")
            theta = pm.Deterministic("theta", mu + tau * z, dims="school")
        pm.Normal("y", theta, ERRORS, observed=EFFECTS, dims="school")
    return model


def sampled(centred: bool) -> DataTree:
    return synk.pymc.sample(
        2000,
        model=schools(centred),
        chains=4,
        random_seed=1,
        nuts_sampler="nutpie",
        progressbar=False,
    )


def values_of(tree: DataTree) -> tuple[np.ndarray, list[str], np.ndarray]:
    """The draws of mu, log tau and theta, their names, and which ones diverged."""
    found = tree["posterior"].to_dataset().stack(sample=("chain", "draw"))
    diverging = tree["sample_stats"]["diverging"].stack(sample=("chain", "draw")).values
    rows = [found["mu"].values, np.log(found["tau"].values), *found["theta"].values]
    return np.array(rows), ["mu", "log tau", *(f"theta[{s}]" for s in "ABCDEFGH")], diverging


def funnel(trees: dict[str, DataTree]) -> None:
    """A scale and what it scales."""
    figure, panels = plt.subplots(
        1, 2, figsize=(9.5, 3.6), layout="constrained", sharex=True, sharey=True
    )
    for axes, (title, tree) in zip(panels, trees.items(), strict=True):
        values, _, diverging = values_of(tree)
        x, y = values[2 + SCHOOL], values[1]
        axes.plot(x[~diverging], y[~diverging], ".", color=GREY, ms=2, rasterized=True)
        axes.plot(x[diverging], y[diverging], "o", color=GREEN, ms=4.5, mec="white", mew=0.5)
        axes.set(title=f"{title}: {diverging.sum()} divergences", xlabel="theta[A]")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set(ylabel="log tau", xlim=(-25, 45))
    save(figure, "divergences.svg")


def parallel(tree: DataTree) -> None:
    """All variables at once, by their ranks."""
    values, names, diverging = values_of(tree)
    ranks = values.argsort(1).argsort(1) / values.shape[1]
    figure, axes = plt.subplots(figsize=(9.5, 3.2), layout="constrained")
    axes.plot(ranks[:, np.flatnonzero(~diverging)[::80]], color=GREY, lw=0.5)
    axes.plot(ranks[:, diverging], color=GREEN, lw=0.8, alpha=0.8)
    axes.set(xticks=range(len(names)), xticklabels=names, ylabel="rank", xlim=(0, len(names) - 0.9))
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, "divergences_parallel.svg")


def save(figure: plt.Figure, name: str) -> None:
    figure.savefig(HERE / name, metadata={"Date": None}, facecolor="white", dpi=150)


def main() -> None:
    plt.rcParams |= {"font.size": 10, "svg.hashsalt": "synkhronos", "svg.fonttype": "path"}
    trees = {"centred": sampled(True), "not centred": sampled(False)}
    synk.pymc.explain_divergences(trees["centred"], schools(True)).show()
    funnel(trees)
    parallel(trees["centred"])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
