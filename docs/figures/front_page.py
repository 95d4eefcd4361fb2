"""The figure of the front page, from the tables of the page on benchmarks (docs/figures/measured).

    python docs/figures/front_page.py        # extra: bench

benchmarks/training.py and benchmarks/pymc_gradient.py print these tables.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

HERE = Path(__file__).parent
OURS, OTHERS = "#0b6e4f", "#b8bfc6"
PYMC = {
    "plain, NUMBA, 1 thread": "PyMC (NUMBA)",
    "plain, JAX, 2 cores": "PyMC (JAX, 2 cores)",
    "Stan 2.35 reduce_sum, 2 threads": "Stan, 2 threads",
    "divided, NUMBA, 2 members": "Synkhronos, 2 members",
}
TRAINING = {
    "torch DDP (gloo), 2 processes": "torch DDP, 2 processes",
    "JAX, 2 cores": "JAX, 2 cores",
    "PyTensor, NUMBA, 2 threads": "PyTensor, 2 threads",
    "2 members, NUMBA": "Synkhronos, 2 members",
}


def read(table: str, column: str) -> dict[str, float]:
    """One column of a table, by the names in its first column; medians without their minima."""
    with (HERE / "measured" / f"{table}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["way"]: float(row[column].split()[0].replace(",", "")) for row in rows}


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
    models = {
        "logistic, 50,000 x 20": "logistic regression, 50,000 x 20",
        "Poisson-gamma, 200,000 rows, 1,000 groups": "Poisson-gamma, 200,000 rows, 1,000 groups",
    }
    for axes, (column, title) in zip(panels[:, 0], models.items(), strict=True):
        microseconds = read("pymc_gradient", column)
        bars(axes, {k: v / 1000 for k, v in microseconds.items()}, PYMC, "{:.2f}")
        axes.set_title(title, fontsize=9, loc="left", color="0.35")
    for axes, batch in zip(panels[:, 1], (4096, 500), strict=True):
        bars(axes, read("training", f"Adam {batch}"), TRAINING, "{:,.0f}")
        title = f"784-800-800-10, Adam, batches of {batch:,} rows"
        axes.set_title(title, fontsize=9, loc="left", color="0.35")
    heads = (
        "PyMC: ms for one gradient (less is better)",
        "Training: rows per second (more is better)",
    )
    for axes, head in zip(panels[0], heads, strict=True):
        axes.annotate(head, (-0.52, 1.2), xycoords="axes fraction", fontsize=12, weight="bold")
    figure.savefig(HERE / "front_page.svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
