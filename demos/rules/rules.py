"""Train a classifier of handwritten digits by every training rule, with one member slowed twice.

An operation in the graph sleeps: each step of a member takes `--pause` milliseconds, and a step of
the last member twice as many. So members are about as fast as on cores of their own, also where
there are fewer cores than members. Synchronous training and the round rules wait for the slow
member in each step. The other rules do not.

All runs use equally many rows, from the same start. Accuracy and loss are those of the centre. With
several seeds, each rule trains once with each of them. The plot, which needs matplotlib, shows the
loss over all training rows: per row and per second.

    python demos/rules/rules.py [--members 4] [--epochs 40] [--seeds 1] [--rules all]
"""

import argparse
import time
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import Batches, make_train_function, updates

TRAINING = 1437  # of the 1797 digits; the others are held out
POINTS = 20  # of each curve
SYNCHRONOUS = "synchronous"
MORE = {
    "Average()": rules.Average(),
    "DiLoCo()": rules.DiLoCo(),
    "Downpour(bound=3)": rules.Downpour(bound=3),
    "Downpour(quorum=3)": rules.Downpour(quorum=3),
    "GoSGD(0.1)": rules.GoSGD(0.1),
}
RULES = {
    SYNCHRONOUS: None,
    "Average(10)": rules.Average(10),
    "SlowMo()": rules.SlowMo(),
    "DiLoCo(50)": rules.DiLoCo(50),
    "EASGD(meet=True)": rules.EASGD(meet=True),
    "Swap()": rules.Swap(),
    "EASGD()": rules.EASGD(),
    "Downpour()": rules.Downpour(),
    "Hogwild()": rules.Hogwild(),
    "GoSGD()": rules.GoSGD(),
    "GEM()": rules.GEM(),
}
EVERY = RULES | MORE


class Pause(Op):
    """The input, after a pause of `seconds`."""

    __props__ = ()

    def make_node(self, x, seconds):
        return Apply(self, [x, seconds], [x.type()])

    def perform(self, node, inputs, outputs):
        time.sleep(float(inputs[1]))
        outputs[0][0] = inputs[0].copy()


class Net:
    """One hidden layer and a softmax: the graph, its shared variables, its figures."""

    def __init__(self, hidden):
        self.x, self.y = pt.fmatrix("x"), pt.ivector("y")
        self.pause = pytensor.shared(0.0, "pause")
        shapes = {"w": (64, hidden), "b": (hidden,), "v": (hidden, 10), "c": (10,)}
        self.params = [pytensor.shared(np.zeros(n, "float32"), name) for name, n in shapes.items()]
        w, b, v, c = self.params
        layer = pt.tanh(Pause()(self.x, self.pause) @ w + b)
        log_p = pt.special.log_softmax(layer @ v + c, axis=1)
        self.loss = -log_p[pt.arange(self.y.shape[0]), self.y].mean()

    def begin(self, seed):
        """Set the parameters' first values."""
        rng = np.random.default_rng(seed)
        for p in self.params:
            shape = p.get_value().shape
            scale = 1 / np.sqrt(shape[0]) if len(shape) == 2 else 0
            p.set_value((scale * rng.standard_normal(shape)).astype("float32"))

    def figures(self, values, data):
        """The loss and the share of right answers, computed by numpy."""
        (w, b, v, c), (images, labels) = values, data
        z = np.tanh(images @ w + b) @ v + c
        z -= z.max(axis=1, keepdims=True)
        log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        right = np.mean(z.argmax(axis=1) == labels)
        return float(-log_p[np.arange(len(labels)), labels].mean()), float(right)


class Result(NamedTuple):
    """What a run has reached."""

    rate: float  # rows a second
    accuracy: float  # of digits held out
    loss: float
    staleness: float  # nan for rules without turns
    curve: list  # rows, seconds, loss


def train(net, rule, data, held_out, args, seed):
    """One run."""
    net.begin(seed)
    step = make_train_function(
        *(net.loss, net.params, net.x, net.y, updates.sgd, np.float32(args.rate)),
        reduction="avg",
        rule=rule,
        mode="FAST_COMPILE",
    )
    inputs = step.build_inputs(*data)
    slow = synk.size() - 1
    for rank in range(synk.size()):
        synk.set_value(rank, net.pause, args.pause / 1e3 * (2 if rank == slow else 1))
    interval = args.epochs * TRAINING // POINTS
    run = together if rule is None or rule.meets else apart
    rows, seconds, staleness, points = run(net, step, inputs, args, seed, interval)
    curve = [(n, s, net.figures(values, data)[0]) for n, s, values in points]
    _, accuracy = net.figures([p.get_value() for p in net.params], held_out)
    return Result(rows / seconds, accuracy, curve[-1][2], staleness, curve)


def together(net, step, inputs, args, seed, interval):
    """Train by steps that all members make at the same time."""
    batches = Batches(TRAINING, args.batch * synk.size(), seed=seed)
    meet = getattr(step, "meet", lambda: None)
    rows, points, due = 0, [], interval
    step(*inputs, batch=np.arange(args.batch * synk.size()))
    net.begin(seed)
    begin = time.perf_counter()
    for _ in range(args.epochs):
        for batch in batches:
            step(*inputs, batch=batch)
            rows += len(batch)
            if rows >= due:
                due += interval
                points.append((rows, time.perf_counter() - begin, values_of(net)))
    meet()
    seconds = time.perf_counter() - begin
    return rows, seconds, np.nan, [*points, (rows, seconds, values_of(net))]


def apart(net, step, inputs, args, seed, interval):
    """Train by steps that each member makes when it is ready."""
    batches, points = Batches(TRAINING, args.batch, seed=seed), []
    with step.start(*inputs, batches, epochs=args.epochs) as run:
        begin = time.perf_counter()
        for point in run.every(rows=interval):
            points.append((point.rows, point.seconds, [point.values[p] for p in net.params]))
        run.wait()
        seconds = time.perf_counter() - begin
    found = run.progress()
    exchanges = sum(f["exchanges"] for f in found)
    stale = sum(f["staleness"] * f["exchanges"] for f in found) / max(1, exchanges)
    turns = not isinstance(step.rule, rules.Hogwild | rules.GoSGD)
    points.append((run.rows, seconds, values_of(net)))
    return run.rows, seconds, stale if turns else np.nan, points


def values_of(net):
    return [p.get_value() for p in net.params]


def report(results):
    """Print the table."""
    table = Table(title="One member slowed twice, equal rows")
    table.add_column("")
    for column in ("rows/s", "x first", "accuracy", "+- seeds", "loss", "staleness"):
        table.add_column(column, justify="right")
    base = np.median([r.rate for r in next(iter(results.values()))])
    for label, runs in results.items():
        rate = np.median([r.rate for r in runs])
        accuracy = [r.accuracy for r in runs]
        stale = np.mean([r.staleness for r in runs])
        table.add_row(
            *(label, f"{rate:,.0f}", f"{rate / base:.2f}", f"{np.mean(accuracy):.1%}"),
            f"{np.std(accuracy):.1%}" if len(runs) > 1 else "",
            f"{np.mean([r.loss for r in runs]):.3f}",
            "" if np.isnan(stale) else f"{stale:.1f}",
        )
    Console(width=100).print(table)


def plot(results, path):
    """Draw the loss per row and per second."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), sharey=True, layout="constrained")
    colors = plt.get_cmap("tab20").colors
    for color, (label, runs) in zip(colors, results.items(), strict=False):
        rows, seconds, losses = zip(*runs[0].curve, strict=True)
        style = {"color": "black", "lw": 2.5} if label == SYNCHRONOUS else {"color": color}
        axes[0].semilogy(np.array(rows) / 1000, losses, label=label, **style)
        axes[1].semilogy(seconds, losses, **style)
    axes[0].set(xlabel="thousand rows", ylabel="loss over all training rows")
    axes[1].set(xlabel="seconds")
    figure.legend(loc="outside right center", fontsize=8)
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    print(f"The plot is in {path}.")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32, help="rows of a member's step")
    parser.add_argument("--hidden", type=int, default=64, help="units of the hidden layer")
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate")
    parser.add_argument("--pause", type=float, default=2.0, help="ms of a step; 0: no member waits")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each rule")
    parser.add_argument("--rules", nargs="+", choices=[*EVERY, "all"], default=[*RULES])
    parser.add_argument("--plot", default="rules.svg", help="a file; '' for none")
    return parser.parse_args()


def main():
    args = arguments()
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype("float32"), labels.astype("int32")
    order = np.random.default_rng(0).permutation(len(images))
    training, others = np.split(order, [TRAINING])
    data, held_out = (images[training], labels[training]), (images[others], labels[others])
    net, chosen = Net(args.hidden), [*EVERY] if "all" in args.rules else args.rules
    results = {label: [] for label in chosen}
    synk.fork(args.members)
    for seed in range(args.seeds):
        for label in chosen:
            begin = time.perf_counter()
            results[label].append(train(net, EVERY[label], data, held_out, args, seed))
            print(f"{label}: {time.perf_counter() - begin:.1f} s", flush=True)
    synk.close()
    report(results)
    if args.plot and find_spec("matplotlib"):
        plot(results, args.plot)


main()
