"""What `fit` adds to a step: the trainer's own Python, the guard, averages of parameters, a folder.

    python benchmarks/fit.py [MEMBERS] [--rounds N]

The trainer's Python is the processor time of the master in a step of a tiny model, beside a plain
loop. The rest is the time of a step of an MLP 784-800-800-10 with Adam and 500 rows, each variant
taking turns with the plain one.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from common import describe_machine, show

import synkhronos as synk
from synkhronos.extensions import Batches, make_train_function, updates
from synkhronos.training import Trainer, ema, guarded

ADAM = functools.partial(updates.adam, learning_rate=1e-4)


def processor_time(call: Callable[[], Any], steps: int) -> float:
    """Microseconds of this process for a step."""
    began = time.process_time()
    call()
    return 1e6 * (time.process_time() - began) / steps


def own_python(rounds: int) -> list[list[Any]]:
    """The processor time of a step of a tiny model, least of all rounds."""
    x, w = pt.dmatrix("x"), pytensor.shared(np.zeros(5), name="w")
    train = make_train_function(((x - w) ** 2).mean(), [w], x, None, ADAM)
    data = synk.data(np.ones((4000, 5)))

    def plain() -> None:
        for rows in Batches(4000, 4):
            train(data, batch=rows)

    def fit(folder: Any = None, **options: Any) -> None:
        trainer = Trainer(train, folder=folder, progress=False)
        trainer.fit(data, batch=4, epochs=1, **options)

    def kept() -> None:
        with tempfile.TemporaryDirectory() as folder:
            fit(f"{folder}/run")

    def told() -> None:
        trainer = Trainer(train, callbacks=[lambda event: None], progress=False)
        trainer.fit(data, batch=4, epochs=1)

    ways = {"plain loop": plain, "fit": fit, "one callback": told, "a folder": kept}
    plain()
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(processor_time(way, 1000))
    least = {name: min(times) for name, times in found.items()}
    base = least["plain loop"]
    return [[name, t, f"{t - base:+.1f}"] for name, t in least.items()]


def mlp(rule: Any) -> tuple[Any, list[Any]]:
    """A training function, and its parameters."""
    rng = np.random.default_rng(0)
    x, y = pt.fmatrix("x"), pt.ivector("y")
    sizes = [784, 800, 800, 10]
    params, h = [], x
    for k, (i, o) in enumerate(pairwise(sizes)):
        w = pytensor.shared(rng.normal(0, i**-0.5, (i, o)).astype("f4"), name=f"w{k}")
        b = pytensor.shared(np.zeros(o, "f4"), name=f"b{k}")
        params += [w, b]
        h = h @ w + b
        h = pt.maximum(h, 0) if o != 10 else h
    log_p = pt.special.log_softmax(h, axis=1)
    loss = -log_p[pt.arange(y.shape[0]), y].mean()
    return make_train_function(loss, params, x, y, rule), params


def variants(rounds: int) -> list[list[Any]]:
    """Milliseconds of a step: medians, and the median of the ratios to the plain step beside it."""
    rng = np.random.default_rng(1)
    x = synk.data(rng.normal(size=(500, 784)).astype("f4"))
    y = synk.data(rng.integers(0, 10, 500).astype("i4"))
    rules = {"Adam": ADAM, "guarded": guarded(ADAM), "ema": ema(ADAM), "both": guarded(ema(ADAM))}
    trains = {name: mlp(rule)[0] for name, rule in rules.items()}
    for train in trains.values():
        for _ in range(3):
            train(x, y)
    times: dict[str, list[float]] = {name: [] for name in trains}
    for _ in range(40 * rounds):
        for name, train in trains.items():
            began = time.perf_counter()
            train(x, y)
            times[name].append(1e3 * (time.perf_counter() - began))
    plain = np.array(times["Adam"])
    return [
        [name, float(np.median(t)), f"{np.median(np.array(t) / plain):.3f}"]
        for name, t in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("members", nargs="?", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    describe_machine()
    with synk.Group(1):
        show("the master's processor time", ["a step", "us", "more"], own_python(options.rounds))
    with synk.Group(options.members):
        title = f"a step of the MLP, 500 rows, {options.members} members"
        show(title, ["rule", "ms", "ratio"], variants(options.rounds))


if __name__ == "__main__":
    main()
