"""Time of a search with one slot, and with two, of one core each; each trial trains an MLP.

The two take turns. A trial is a fresh process, with the imports and the compilation of a training
function; compile caches are warm after the first search, which is not counted.

    python benchmarks/search.py [--trials 20] [--rounds 1]
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

from common import describe_machine, show

from synkhronos._host.cores import available
from synkhronos.search import open_study, search


def objective(trial: Any) -> float:
    """The last loss of an MLP 784-100-10 after 3 epochs of 6,000 rows."""
    import functools

    import numpy as np
    import pytensor
    import pytensor.tensor as pt

    import synkhronos as synk
    from synkhronos.extensions import updates
    from synkhronos.training import Net, fit

    rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
    synk.fork()
    draw = np.random.default_rng(0)
    data = draw.normal(size=(6000, 784)).astype("float32"), draw.integers(10, size=6000)
    x, y = pt.fmatrix("x"), pt.lvector("y")
    w = pytensor.shared(draw.normal(0, 0.05, (784, 100)).astype("float32"), name="w")
    v = pytensor.shared(draw.normal(0, 0.1, (100, 10)).astype("float32"), name="v")
    log_p = pt.special.log_softmax(pt.maximum(x @ w, 0) @ v, axis=1)
    loss = -log_p[pt.arange(y.shape[0]), y].mean()
    trainer = fit(
        Net(loss=loss, params=[w, v], inputs=[x, y]),
        data,
        optimizer=functools.partial(updates.adam, learning_rate=rate),
        epochs=3,
        batch=100,
        progress=False,
    )
    return float(trainer.history[-1]["loss"])


def seconds(slots: int, trials: int) -> float:
    """For a search with so many slots of one core each."""
    cores = available()
    study = open_study("bench", seed=0, pruner=None)
    began = time.perf_counter()
    search(objective, study, trials=trials, slots=[[core] for core in cores[:slots]])
    found = time.perf_counter() - began
    assert all(trial.state.name == "COMPLETE" for trial in study.trials)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    describe_machine()
    seconds(1, 1)
    rounds = [[seconds(slots, options.trials) for slots in (1, 2)] for _ in range(options.rounds)]
    one, two = (median(each) for each in zip(*rounds, strict=True))
    rows = [["1", f"{one:.1f}", "1"], ["2", f"{two:.1f}", f"{two / one:.2f}"]]
    show(f"{options.trials} trials", ["slots of one core", "s", "of one slot's time"], rows)


if __name__ == "__main__":
    main()
