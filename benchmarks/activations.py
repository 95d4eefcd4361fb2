"""A training step of networks with tanh and GELU: vectorised functions, libm's, and JAX.

    python benchmarks/activations.py [--batch 500] [--rounds 12] [--members 2]

A network 784-800-800-10 in float32, softmax, gradient descent. Contenders are processes that take
turns on the same cores: groups in mode NUMBA with and without `vectorised`, and JAX with its own
threads. A cell is the median over rounds of the milliseconds of a step, and the minimum.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import describe_machine, show

SIZES = (784, 800, 800, 10)
ACTIVATIONS = ("tanh", "gelu")
CONTENDERS = ("vectorised", "libm", "jax")
RATE = np.float32(0.01)


def weights() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    pairs = [
        (rng.normal(size=s) / np.sqrt(s[0]), np.zeros(s[1])) for s in itertools.pairwise(SIZES)
    ]
    return [w.astype("float32") for pair in pairs for w in pair]


def data(batch: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.eye(SIZES[-1], dtype="float32")[rng.integers(0, SIZES[-1], batch)]
    return rng.random((batch, SIZES[0]), dtype="float32"), labels


def of_group(activation: str, batch: int, members: int, vectorised: bool) -> Callable[[], Any]:
    import pytensor
    import pytensor.tensor as pt

    import synkhronos as synk
    from synkhronos.extensions import make_train_function, updates

    x, y = pt.fmatrix("x"), pt.fmatrix("y")
    params = [pytensor.shared(w) for w in weights()]
    hidden = x
    for w, b in zip(params[0::2], params[1::2], strict=True):
        scores = hidden @ w + b
        half = np.float32(0.5)
        hidden = (
            pt.tanh(scores)
            if activation == "tanh"
            else half * scores * (1 + pt.erf(scores * np.float32(np.sqrt(0.5))))
        )
    loss = -(y * pt.special.log_softmax(scores, axis=1)).sum(axis=1).mean()
    synk.fork(members, vectorised=vectorised)
    step = make_train_function(loss, params, [x], [y], updates.sgd, RATE)
    arrays = data(batch)
    return lambda: step(*arrays)


def of_jax(activation: str, batch: int) -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_platforms", "cpu")

    def loss(params: Any, x: Any, y: Any) -> Any:
        for w, b in zip(params[0::2], params[1::2], strict=True):
            scores = x @ w + b
            x = jnp.tanh(scores) if activation == "tanh" else jax.nn.gelu(scores, approximate=False)
        return -(y * jax.nn.log_softmax(scores)).sum(axis=1).mean()

    @jax.jit
    def step(params: Any, x: Any, y: Any) -> Any:
        found, gradient = jax.value_and_grad(loss)(params, x, y)
        return found, [p - RATE * g for p, g in zip(params, gradient, strict=True)]

    held: list[Any] = [[jnp.asarray(w) for w in weights()]]
    arrays = data(batch)

    def call() -> Any:
        found, held[0] = step(held[0], *arrays)
        return float(found)

    return call


def child(kind: str, activation: str, batch: int, members: int) -> None:
    """Print the loss after some steps, then for each line N the seconds of N steps."""
    if kind == "jax":
        call = of_jax(activation, batch)
    else:
        call = of_group(activation, batch, members, kind == "vectorised")
    for _ in range(5):
        loss = call()
    print(float(np.asarray(loss)), flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(int(line)):
            call()
        print(time.perf_counter() - began, flush=True)


class Contender:
    """A process that makes steps on request."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, __file__, "--child", *map(str, words)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.loss = self._number()
        self.times: list[float] = []

    def _number(self) -> float:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.args
        return float(line)

    def run(self, steps: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        self.times.append(1e3 * self._number() / steps)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--members", type=int, default=min(2, len(os.sched_getaffinity(0))))
    asked = parser.parse_args()
    describe_machine()
    rows = []
    for activation in ACTIVATIONS:
        all_ = {
            kind: Contender(kind, activation, asked.batch, asked.members) for kind in CONTENDERS
        }
        losses = [c.loss for c in all_.values()]
        assert np.allclose(losses, losses[0], rtol=1e-3), losses
        for _ in range(asked.rounds):
            for contender in all_.values():
                contender.run(10)
        medians = {kind: float(np.median(c.times)) for kind, c in all_.items()}
        minima = {kind: min(c.times) for kind, c in all_.items()}
        for c in all_.values():
            c.close()
        for what, found in (("median", medians), ("minimum", minima)):
            cells = [f"{found[kind]:.2f}" for kind in CONTENDERS]
            ratios = [f"{found[kind] / found['vectorised']:.2f}" for kind in ("libm", "jax")]
            rows.append([f"{activation}, {what}", *cells, *ratios])
    columns = ["ms of a step", *CONTENDERS, "libm over ours", "JAX over ours"]
    show(f"Batch {asked.batch}, {asked.members} members", columns, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
