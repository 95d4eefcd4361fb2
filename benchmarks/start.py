"""Start-up cost: a fork of 2 workers, and first calls with empty compile caches, in mode NUMBA.

A first call is timed from the making of the function to its first result, each in a process of its
own, with caches in a new folder; imports and the fork come before. Plain PyTensor, a group of one
and a group of two take turns.

    python benchmarks/start.py [CASE ...] [--rounds 3] [--no-compile]

Cases: small, mlp, adam (a training step), cnn, lstm, logistic (PyMC).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import describe_machine, show

FORKS = 15
STEPS, HIDDEN = 20, 32  # of the LSTM
CASES = ("small", "mlp", "adam", "cnn", "lstm", "logistic")


def forks() -> list[float]:
    """Milliseconds for a fork of 2 workers, imports done."""
    import synkhronos as synk

    synk.fork(3)
    synk.close()
    found = []
    for _ in range(FORKS):
        began = time.perf_counter()
        synk.fork(3)
        found.append(1e3 * (time.perf_counter() - began))
        synk.close()
    return found


def small() -> tuple[list[Any], Any, list[Any], list[Any]]:
    """A mean of squares: inputs, loss, parameters, data."""
    import pytensor.tensor as pt

    x = pt.fmatrix("x")
    return [x], (x**2).sum(axis=1).mean(), [], [np.ones((128, 784), "float32")]


def mlp() -> tuple[list[Any], Any, list[Any], list[Any]]:
    """784-800-800-10, batch 500."""
    sys.argv = [sys.argv[0], "synk", "", "", "1", "1"]  # which contenders.py reads
    import contenders

    x, y, params, loss = contenders.graph()
    return [x, y], loss, params, [a[:500] for a in contenders.data()]


def cnn() -> tuple[list[Any], Any, list[Any], list[Any]]:
    """The small CNN of cnn.py, batch 100."""
    sys.argv = [sys.argv[0], "synk", "", "", "1", "1"]
    import cnn_contenders

    x, y, params, loss = cnn_contenders.graph()
    return [x, y], loss, params, [a[:100] for a in cnn_contenders.data()]


def lstm() -> tuple[list[Any], Any, list[Any], list[Any]]:
    """An LSTM over 20 steps, as in demos/lstm."""
    import pytensor
    import pytensor.tensor as pt
    from pytensor_ml.layers import LSTM, Input, Linear
    from pytensor_ml.model import Model

    pytensor.config.floatX = "float32"
    x, y = Input("x", (None, STEPS, 2), "float32"), pt.ivector("y")
    scores = Linear("scores", n_in=HIDDEN, n_out=2)(LSTM("lstm", n_in=2, n_hidden=HIDDEN)(x)[:, -1])
    params = Model(scores).initialize(0).weights
    loss = -pt.special.log_softmax(scores, axis=1)[pt.arange(y.shape[0]), y].mean()
    rng = np.random.default_rng(0)
    data = [
        rng.normal(size=(256, STEPS, 2)).astype("float32"),
        rng.integers(0, 2, 256).astype("int32"),
    ]
    return [x, y], loss, params, data


def first_call(case: str, members: int) -> Callable[[], Any]:
    """A function that compiles and makes the first call; with 0 members, in plain PyTensor."""
    import synkhronos as synk

    if case == "logistic":
        return first_density(members)
    graph = {"small": small, "mlp": mlp, "adam": mlp, "cnn": cnn, "lstm": lstm}[case]
    inputs, loss, params, data = graph()
    if members:
        synk.fork(members)
    if case == "adam":
        from synkhronos import extensions
        from synkhronos.extensions import updates

        make = (
            extensions.make_train_function if members else extensions.make_train_function_pytensor
        )
        return lambda: make(loss, params, *inputs, updates.adam, 1e-3)(*data)
    import pytensor

    outputs = [loss, *pytensor.grad(loss, params)] if params else loss
    function = synk.function if members else pytensor.function
    return lambda: function(inputs, outputs)(*data)


def first_density(members: int) -> Callable[[], Any]:
    """The density and gradient of a logistic regression, 50,000 rows and 20 columns."""
    import pymc as pm

    import synkhronos as synk

    rng = np.random.default_rng(0)
    with pm.Model() as model:
        x = pm.Data("x", rng.normal(size=(50_000, 20)))
        y = pm.Data("y", (rng.random(50_000) < 0.5).astype("int64"))
        slopes, intercept = pm.Normal("slopes", 0, 1, shape=20), pm.Normal("intercept", 0, 1)
        pm.Bernoulli("seen", logit_p=x @ slopes + intercept, observed=y)
    if members:
        synk.fork(members)

    def call() -> Any:
        density = model.logp_dlogp_function(ravel_inputs=True)
        density.set_extra_values({})
        return density(np.full(21, 0.1))

    def divided() -> Any:
        with synk.pymc.parallel(model):
            return call()

    return divided if members else call


def cold(case: str, members: int) -> float:
    """Seconds of a first call with empty caches, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"base_compiledir={folder},mode=NUMBA"
        done = subprocess.run(
            [sys.executable, __file__, "--child", case, str(members)],
            env=os.environ | {"PYTENSOR_FLAGS": flags},
            capture_output=True,
            text=True,
            timeout=900,
        )
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1])


def child(case: str, members: int) -> None:
    """Print the seconds of a first call in this process."""
    import synkhronos as synk

    call = first_call(case, members)
    began = time.perf_counter()
    call()
    print(time.perf_counter() - began)
    synk.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], default=[])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true")
    arguments = parser.parse_args()
    describe_machine()
    found = forks()
    print(f"fork of 2 workers: {np.median(found):.1f} ms, at most {max(found):.1f} (goal 50)")
    if arguments.no_compile:
        return
    rows = []
    for case in arguments.cases or CASES:
        times = np.array([[cold(case, n) for n in (0, 1, 2)] for _ in range(arguments.rounds)])
        middle = np.median(times, axis=0)
        sooner = np.median(times[:, 0] / times[:, 2])
        rows.append([case, *map(float, middle), float(sooner)])
    columns = ["", "plain PyTensor, s", "1 member, s", "2 members, s", "times sooner"]
    show("Cold first calls in mode NUMBA, median", columns, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]))
    else:
        main()
