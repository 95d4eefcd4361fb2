"""Pictures of the gallery: parts.svg, losses.svg and local_updates.svg, in about a minute.

python docs/figures/gallery.py        # extra: bench
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
import pytensor
import pytensor.tensor as pt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

import synkhronos as synk
from synkhronos.extensions import Batches, make_train_function, updates

HERE = Path(__file__).parent
GREEN, BLUE, GREY = "#0b6e4f", "#2f6db5", "#b8bfc6"
MODE = "FAST_COMPILE"


def save(figure: plt.Figure, name: str) -> None:
    figure.savefig(HERE / name, metadata={"Date": None}, facecolor="white")


def box(
    axes: Axes, x: float, y: float, wide: float, high: float, color: str, text: str, size: int = 10
) -> None:
    shape = FancyBboxPatch((x, y), wide, high, boxstyle="round,pad=0.02", fc=color, ec="white")
    axes.add_patch(shape)
    ink = "0.15" if color == GREY else "white"
    axes.text(x + wide / 2, y + high / 2, text, ha="center", va="center", color=ink, fontsize=size)


def parts() -> None:
    """Seven rows and a vector, two members, one result."""
    figure, axes = plt.subplots(figsize=(9.5, 3.4), layout="constrained")
    for i in range(7):
        color = GREEN if i < 4 else BLUE
        box(axes, 0, 2.6 - 0.4 * i, 1.4, 0.34, color, f"row {i}", 9)
    box(axes, 0, -0.75, 1.4, 0.34, GREY, "w", 9)
    axes.text(0.7, 3.12, "inputs of the call", ha="center", fontsize=10)
    for color, high, name, rows, mean, count in (
        (GREEN, 1.55, "master, rank 0", "rows 0 to 3, and w", "a", 4),
        (BLUE, -0.25, "worker, rank 1", "rows 4 to 6, and w", "b", 3),
    ):
        text = f"{name}\n{rows}\n{mean} = mean over {count} rows"
        box(axes, 3.0, high, 2.5, 1.2, color, text)
        arrow(axes, (1.5, high + 0.6 if high > 0 else 0.8), (2.95, high + 0.6), color)
        arrow(axes, (5.55, high + 0.6), (7.0, 1.25 if high > 0 else 0.95), color)
        arrow(axes, (1.5, -0.6), (2.95, high + 0.25), GREY)
    box(axes, 7.1, 0.55, 2.3, 1.1, "0.3", "mean over 7 rows\n(4 a + 3 b) / 7")
    axes.text(8.25, 1.85, "result, in the script", ha="center", fontsize=10)
    axes.set(xlim=(-0.1, 9.6), ylim=(-0.85, 3.35))
    axes.axis("off")
    save(figure, "parts.svg")


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str) -> None:
    style = {"arrowstyle": "->", "color": color, "lw": 1.6}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)


def losses_with(members: int) -> np.ndarray:
    """The losses of the tutorial's network: 1000 points, batches of 100, 20 epochs."""
    rng = np.random.default_rng(0)
    points = rng.uniform(-1, 1, size=(1200, 2))
    labels = (np.hypot(*points.T) < 0.7).astype("int64")
    x, y = pt.matrix("x", dtype="float64"), pt.lvector("y")
    w1, w2 = (
        pytensor.shared(rng.normal(size=s) / np.sqrt(s[0]), name=n)
        for n, s in (("w1", (2, 32)), ("w2", (32, 2)))
    )
    b1, b2 = pytensor.shared(np.zeros(32), name="b1"), pytensor.shared(np.zeros(2), name="b2")
    scores = pt.tanh(x @ w1 + b1) @ w2 + b2
    loss = -pt.special.log_softmax(scores, axis=1)[pt.arange(y.shape[0]), y].mean()
    with synk.Group(members):
        params = [w1, b1, w2, b2]
        train = make_train_function(loss, params, x, y, updates.adam, 0.02, mode=MODE)
        batches = Batches(1000, 100, seed=1)
        values = [train(points, labels, batch=rows) for _ in range(20) for rows in batches]
    return np.array(values, dtype=float)


def losses() -> None:
    found = {n: losses_with(n) for n in (1, 2, 3)}
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.2), layout="constrained")
    left.plot(found[1], color="0.2", label="1 member")
    for n, color, style in ((2, GREEN, "--"), (3, BLUE, ":")):
        left.plot(found[n], color=color, ls=style, label=f"{n} members")
        apart = abs(found[n] - found[1])
        steps = apart.nonzero()[0]
        right.semilogy(steps, apart[steps], ".", color=color, label=f"{n} members")
    left.set(title="loss", xlabel="step")
    right.set(title="difference from 1 member, where there is one", xlabel="step")
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, "losses.svg")


def weight_in_each(over: tuple[str, ...]) -> np.ndarray:
    """One weight in both members, step by step, with updates that end with `over`."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 2))
    values = rows @ [1.0, -1.0] + rng.normal(size=20)
    x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
    w = pytensor.shared(np.zeros(2), name="w")
    loss = ((x @ w - y) ** 2).mean()
    with synk.Group(2):
        new = w - 0.1 * pytensor.grad(loss, w)
        step = synk.function([x, y], loss, updates=[(w, new, *over)], mode=MODE)
        found = []
        for _ in range(25):
            step(rows, values)
            found.append([float(synk.get_value(rank, w)[0]) for rank in (0, 1)])
    return np.array(found)


def local_updates() -> None:
    figure, panels = plt.subplots(1, 2, figsize=(9.5, 3.2), layout="constrained", sharey=True)
    titles = ('"avg", "local": each member has its own', '"avg", "all": one value')
    for axes, over, title in zip(panels, (("avg", "local"), ("avg", "all")), titles, strict=True):
        found = weight_in_each(over)
        axes.plot(found[:, 0], color=GREEN, label="w in rank 0", lw=3.5, alpha=0.6)
        axes.plot(found[:, 1], color=BLUE, label="w in rank 1", ls="--")
        axes.set(title=title, xlabel="step")
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, "local_updates.svg")


def main() -> None:
    plt.rcParams |= {"font.size": 10, "svg.hashsalt": "synkhronos", "svg.fonttype": "path"}
    parts()
    losses()
    local_updates()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
