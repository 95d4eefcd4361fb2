"""A process that trains the benchmark's network with one library, and makes steps on request.

    python benchmarks/contenders.py KIND RULE BATCH MEMBERS THREADS [CORE]

KIND is synk-numba, synk-jax, pytensor-numba, pytensor-jax or jax. It prints `ready` and what it
runs on; then for each line `N` it makes N steps and prints the seconds they took.
"""

from __future__ import annotations

import itertools
import json
import os
import sys

if "--help" in sys.argv:
    raise SystemExit(print(sys.modules["__main__"].__doc__))

# before any library starts its threads
if not sys.argv[1].startswith("synk"):
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = sys.argv[5]
if len(sys.argv) > 6:
    os.sched_setaffinity(0, {int(sys.argv[6])})

import time
from collections.abc import Callable
from typing import Any

import numpy as np

SIZES = (784, 800, 800, 10)
ROWS = 20_000
RATE = 0.01
Step = Callable[[np.ndarray], Any]


def data() -> tuple[np.ndarray, np.ndarray]:
    """Random images and one-hot labels."""
    rng = np.random.default_rng(0)
    images = rng.random((ROWS, SIZES[0]), dtype=np.float32)
    labels = np.eye(10, dtype=np.float32)[rng.integers(0, 10, ROWS)]
    return images, labels


def weights() -> list[np.ndarray]:
    """The initial weights, the same for all contenders."""
    rng = np.random.default_rng(1)
    found = []
    for a, b in itertools.pairwise(SIZES):
        found += [(rng.standard_normal((a, b)) / np.sqrt(a)).astype(np.float32)]
        found += [np.zeros(b, np.float32)]
    return found


def batches(size: int) -> Any:
    """Shuffled index batches, epoch after epoch, without the short last one."""
    rng = np.random.default_rng(2)
    while True:
        order = rng.permutation(ROWS)
        for start in range(0, ROWS - size + 1, size):
            yield order[start : start + size]


def graph() -> tuple[Any, Any, list[Any], Any]:
    """The network in PyTensor."""
    import pytensor
    import pytensor.tensor as pt

    x, y = pt.fmatrix("x"), pt.fmatrix("y")
    names = ("w0", "b0", "w1", "b1", "w2", "b2")
    params = [pytensor.shared(v, name=n) for v, n in zip(weights(), names, strict=True)]
    h = x
    for i in range(0, len(params), 2):
        h = h @ params[i] + params[i + 1]
        if i < 4:
            h = pt.maximum(h, 0)
    return x, y, params, -(pt.special.log_softmax(h, axis=1) * y).sum(axis=1).mean()


def rule_of(name: str) -> tuple[Any, dict[str, Any]]:
    """An update rule and its arguments."""
    from synkhronos.extensions import updates

    if name == "nesterov":
        return updates.nesterov_momentum, {"learning_rate": RATE, "momentum": 0.9}
    return updates.adam, {"learning_rate": 0.001}


def synk_steps(mode: str, rule: str, members: int) -> tuple[Step, Callable[[], Any]]:
    """Synkhronos; the second callable returns the seconds by phase."""
    import synkhronos as synk
    from synkhronos.extensions import make_train_function

    synk.fork(members)
    x, y, params, loss = graph()
    how, arguments = rule_of(rule)
    train = make_train_function(loss, params, x, y, how, mode=mode, **arguments)
    images, labels = map(synk.data, data())
    return (lambda rows: train(images, labels, batch=rows)), train.seconds


def plain_steps(mode: str, rule: str) -> tuple[Step, Callable[[], Any]]:
    """Plain PyTensor: one function with the updates in it."""
    from synkhronos.extensions import make_train_function_pytensor

    x, y, params, loss = graph()
    how, arguments = rule_of(rule)
    train = make_train_function_pytensor(loss, params, x, y, how, mode=mode, **arguments)
    images, labels = data()

    def step(rows: np.ndarray) -> Any:
        value = train(images[rows], labels[rows])
        return value.block_until_ready() if hasattr(value, "block_until_ready") else value

    return step, dict


def jax_steps(rule: str) -> tuple[Step, Callable[[], Any]]:
    """JAX as its users write it, with donated buffers."""
    import jax
    import jax.numpy as jnp

    def loss_of(p: Any, x: Any, y: Any) -> Any:
        h = x
        for i in range(0, len(p), 2):
            h = h @ p[i] + p[i + 1]
            h = jnp.maximum(h, 0) if i < 4 else h
        return -(jax.nn.log_softmax(h) * y).sum(axis=1).mean()

    def nesterov(state: Any, x: Any, y: Any) -> Any:
        p, v, t = state
        loss, g = jax.value_and_grad(loss_of)(p, x, y)
        v = [0.9 * b - RATE * c for b, c in zip(v, g, strict=True)]
        p = [a + 0.9 * b - RATE * c for a, b, c in zip(p, v, g, strict=True)]
        return (p, v, t), loss

    def adam(state: Any, x: Any, y: Any) -> Any:
        p, (m, v), t = state
        loss, g = jax.value_and_grad(loss_of)(p, x, y)
        t = t + 1
        rate = 0.001 * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        m = [0.9 * b + 0.1 * c for b, c in zip(m, g, strict=True)]
        v = [0.999 * b + 0.001 * c * c for b, c in zip(v, g, strict=True)]
        p = [a - rate * b / (jnp.sqrt(c) + 1e-8) for a, b, c in zip(p, m, v, strict=True)]
        return (p, (m, v), t), loss

    start = weights()
    zeros = [np.zeros_like(w) for w in start]
    second = zeros if rule == "nesterov" else (zeros, [np.zeros_like(w) for w in start])
    made = jax.jit(nesterov if rule == "nesterov" else adam, donate_argnums=0)
    state = jax.device_put((start, second, np.float32(0)))
    images, labels = data()

    def step(rows: np.ndarray) -> Any:
        nonlocal state
        state, loss = made(state, images[rows], labels[rows])
        return loss.block_until_ready()

    return step, dict


def settings() -> dict[str, Any]:
    """OpenBLAS's core type and threads, and the cores, on which the figures depend."""
    from threadpoolctl import threadpool_info

    blas = [p for p in threadpool_info() if p["user_api"] == "blas"]
    return {
        "core type": sorted({p.get("architecture") for p in blas}),
        "threads": sorted({p["num_threads"] for p in blas}),
        "cores": sorted(os.sched_getaffinity(0)),
    }


def main() -> None:
    kind, rule = sys.argv[1:3]
    batch, members = map(int, sys.argv[3:5])
    if kind == "jax":
        step, where = jax_steps(rule)
    elif kind.startswith("synk"):
        step, where = synk_steps(kind.removeprefix("synk-").upper(), rule, members)
    else:
        step, where = plain_steps(kind.removeprefix("pytensor-").upper(), rule)
    serve(step, where, batches(batch))


def serve(step: Step, where: Callable[[], Any], rows: Any) -> None:
    """Make as many steps as each line of the input says, and print their seconds."""
    step(next(rows))
    print("ready", json.dumps(settings()), flush=True)
    for line in sys.stdin:
        n = int(line)
        before = where()
        began = time.perf_counter()
        for _ in range(n):
            step(next(rows))
        took = time.perf_counter() - began
        after = where()
        spent = {k: [b - a for a, b in zip(before[k], after[k], strict=True)] for k in after}
        print(json.dumps({"seconds": took, "phases": spent}), flush=True)


if __name__ == "__main__":
    main()
