"""The figure of the front page, from the tables of the page on benchmarks (docs/figures/measured).

    python docs/figures/front_page.py        # extra: bench

The benchmarks pymc_sampling, pymc_gallery and training print these tables.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

HERE = Path(__file__).parent
OURS, OTHERS = "#0b6e4f", "#b8bfc6"
SAMPLING = {
    "irt, ``pm.sample``": "pm.sample (nutpie)",
    "irt, ``synk.pymc.sample``": "Synkhronos",
}
GRADIENT = {
    "plain, best mode": "PyMC, best mode",
    "stanli, fast, 2 threads": "stanli, 2 threads",
    "fast, one core": "Synkhronos, 1 core",
    "2 members": "Synkhronos, 2 members",
}
TRAINING = {
    "torch DDP (gloo), 2 processes": "torch DDP, 2 processes",
    "JAX, 2 cores": "JAX, 2 cores",
    "PyTensor, NUMBA, 2 threads": "PyTensor, 2 threads",
    "2 members, NUMBA": "Synkhronos, 2 members",
}


def table(name: str) -> list[dict[str, str]]:
    with (HERE / "measured" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def number(cell: str) -> float:
    """The median of a cell, without its minimum."""
    return float(cell.split()[0].replace(",", ""))


def column(name: str, names: str, values: str) -> dict[str, float]:
    """One column of a table, by the names in another one."""
    return {row[names]: number(row[values]) for row in table(name)}


def bars(axes: Axes, values: dict[str, float], names: dict[str, str], form: str) -> None:
    """Horizontal bars with their values, ours in green."""
    shown = [values[way] for way in names]
    colors = [OURS if name.startswith("Synkhronos") else OTHERS for name in names.values()]
    drawn = axes.barh(list(names.values()), shown, color=colors, height=0.68)
    axes.bar_label(drawn, [form.format(value) for value in shown], padding=4, fontsize=9)
    axes.set_xlim(0, 1.2 * max(shown))
    axes.xaxis.set_visible(False)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(left=False)


def main() -> None:
    plt.rcParams |= {"font.size": 10, "svg.hashsalt": "synkhronos", "svg.fonttype": "path"}
    figure, panels = plt.subplots(2, 2, figsize=(10.5, 4.6), layout="constrained")
    sampling, gradient = panels[:, 0]
    bars(
        sampling,
        column("pymc_sampling", "model, and what samples it", "warm, s"),
        SAMPLING,
        "{:.1f}",
    )
    sampling.set_title("2 chains, seconds with compiling", fontsize=9, loc="left", color="0.35")
    (row,) = [row for row in table("pymc_gallery") if row["model"] == "irt"]
    bars(gradient, {way: number(row[way]) / 1000 for way in GRADIENT}, GRADIENT, "{:.2f}")
    gradient.set_title("ms for one gradient", fontsize=9, loc="left", color="0.35")
    for axes, batch in zip(panels[:, 1], (4096, 500), strict=True):
        bars(axes, column("training", "way", f"Adam {batch}"), TRAINING, "{:,.0f}")
        title = f"784-800-800-10, Adam, batches of {batch:,} rows"
        axes.set_title(title, fontsize=9, loc="left", color="0.35")
    heads = (
        "A PyMC model, item responses (less is better)",
        "Training: rows per second (more is better)",
    )
    for axes, head in zip(panels[0], heads, strict=True):
        axes.annotate(head, (-0.52, 1.2), xycoords="axes fraction", fontsize=12, weight="bold")
    figure.savefig(HERE / "front_page.svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
