"""A process that trains the small CNN of `cnn.py` with one library, and makes steps on request.

    python benchmarks/cnn_contenders.py KIND RULE BATCH MEMBERS THREADS [CORE [FILE]]

KIND is synk-numba, synk-jax, pytensor-numba, pytensor-jax, pytensorml-jax (its own layers, of a
fixed batch, without which their padding has no gradient in mode JAX), jax-lax or torch; see
contenders.py. With FILE, of 128 zero bytes, the processes on cores 0 and 1 meet before each step.
"""

from __future__ import annotations

import itertools
import mmap
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import contenders
import numpy as np

SIDE, CLASSES, HIDDEN = 28, 10, 128
FILTERS = (1, 4, 8)
FLAT = (SIDE // 2) ** 2 * FILTERS[-1]
RATE, MOMENTUM = contenders.RATE, 0.9
MEETING_SECONDS = 120.0


def data() -> tuple[np.ndarray, np.ndarray]:
    """Random images and labels."""
    rng = np.random.default_rng(0)
    images = rng.random((contenders.ROWS, SIDE, SIDE, 1), dtype=np.float32)
    return images, rng.integers(0, CLASSES, contenders.ROWS).astype(np.int32)


def weights() -> list[np.ndarray]:
    """Kernels as (height, width, channels, filters), matrices as (in, out), biases after each."""
    rng = np.random.default_rng(1)
    shapes: list[tuple[int, ...]] = [(3, 3, a, b) for a, b in itertools.pairwise(FILTERS)]
    shapes += [(FLAT, HIDDEN), (HIDDEN, CLASSES)]
    found = []
    for shape in shapes:
        scale = np.sqrt(np.prod(shape[:-1]))
        found += [(rng.standard_normal(shape) / scale).astype(np.float32)]
        found += [np.zeros(shape[-1], np.float32)]
    return found


def graph(ours: bool = True, rows: int | None = None) -> tuple[Any, Any, list[Any], Any]:
    """The network, with this package's layers or with pytensor-ml's own."""
    import pytensor.tensor as pt
    from pytensor_ml import layers
    from pytensor_ml.activations import ReLU

    from synkhronos import nn

    kinds: Any = nn if ours else layers
    x = layers.Input("x", (rows, SIDE, SIDE, 1), "float32")
    y = pt.ivector("y")
    made: list[Any] = [
        kinds.Conv2D(f"c{i}", in_channels=a, out_channels=b, kernel_size=3, padding="same")
        for i, (a, b) in enumerate(itertools.pairwise(FILTERS))
    ]
    made += [layers.Linear("f0", n_in=FLAT, n_out=HIDDEN)]
    made += [layers.Linear("f1", n_in=HIDDEN, n_out=CLASSES)]
    c0, c1, f0, f1 = made
    images = kinds.MaxPool2D(kernel_size=2)(ReLU()(c1(ReLU()(c0(x)))))
    scores = f1(ReLU()(f0(images.reshape((x.shape[0], FLAT)))))
    params = [p for layer in made for p in (layer.W, layer.b)]
    for p, value in zip(params, weights(), strict=True):
        p.set_value(value)
    n = y.shape[0] if rows is None else rows
    return x, y, params, -pt.special.log_softmax(scores, axis=1)[pt.arange(n), y].mean()


def synk_steps(mode: str, members: int) -> tuple[contenders.Step, Callable[[], Any]]:
    """Ours."""
    import synkhronos as synk
    from synkhronos.extensions import make_train_function, updates

    synk.fork(members)
    x, y, params, loss = graph()
    how = updates.nesterov_momentum, RATE, MOMENTUM
    train = make_train_function(loss, params, x, y, *how, mode=mode)
    images, labels = map(synk.data, data())
    return (lambda rows: train(images, labels, batch=rows)), train.seconds


def plain_steps(kind: str, mode: str, batch: int) -> tuple[contenders.Step, Callable[[], Any]]:
    """Plain PyTensor: one function with the updates in it."""
    from synkhronos.extensions import make_train_function_pytensor, updates

    ours = kind == "pytensor"
    x, y, params, loss = graph(ours, None if ours else batch)
    how = updates.nesterov_momentum, RATE, MOMENTUM
    train = make_train_function_pytensor(loss, params, x, y, *how, mode=mode)
    images, labels = data()

    def step(rows: np.ndarray) -> Any:
        value = train(images[rows], labels[rows])
        return value.block_until_ready() if hasattr(value, "block_until_ready") else value

    return step, dict


def jax_steps() -> tuple[contenders.Step, Callable[[], Any]]:
    """JAX as its users write it: its own convolution and pooling, donated buffers."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def loss_of(p: list[Any], x: Any, y: Any) -> Any:
        h = x
        for i in (0, 2):
            names = ("NHWC", "HWIO", "NHWC")
            h = lax.conv_general_dilated(h, p[i], (1, 1), "SAME", dimension_numbers=names)
            h = jnp.maximum(h + p[i + 1], 0)
        h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        h = jnp.maximum(h.reshape(len(x), FLAT) @ p[4] + p[5], 0)
        scores = jax.nn.log_softmax(h @ p[6] + p[7])
        return -jnp.take_along_axis(scores, y[:, None], 1).mean()

    def made(state: Any, x: Any, y: Any) -> Any:
        p, v = state
        loss, g = jax.value_and_grad(loss_of)(p, x, y)
        v = [MOMENTUM * b - RATE * c for b, c in zip(v, g, strict=True)]
        return ([a + MOMENTUM * b - RATE * c for a, b, c in zip(p, v, g, strict=True)], v), loss

    compiled = jax.jit(made, donate_argnums=0)
    state = jax.device_put((weights(), [np.zeros_like(w) for w in weights()]))
    images, labels = data()

    def step(rows: np.ndarray) -> Any:
        nonlocal state
        state, loss = compiled(state, images[rows], labels[rows])
        return loss.block_until_ready()

    return step, dict


def meeting(step: contenders.Step, core: int, path: str) -> contenders.Step:
    """The step, once the process on the other core has come to its own."""
    with open(path, "r+b") as file:
        words = memoryview(mmap.mmap(file.fileno(), 128)).cast("q")
    mine, other = 8 * core, 8 * (1 - core)  # of 8 bytes; on cache lines of their own

    def met(rows: np.ndarray) -> Any:
        words[mine] += 1
        until = time.monotonic() + MEETING_SECONDS
        while words[other] < words[mine]:
            if time.monotonic() > until:
                raise TimeoutError("the process on the other core has not come")
        return step(rows)

    return met


def main() -> None:
    kind, _, batch, members, _, *place = sys.argv[1:]
    family, _, mode = kind.partition("-")
    if family == "synk":
        step, where = synk_steps(mode.upper(), int(members))
    elif family == "jax":
        step, where = jax_steps()
    else:
        step, where = plain_steps(family, mode.upper(), int(batch))
    if len(place) > 1:
        step = meeting(step, int(place[0]), place[1])
    contenders.serve(step, where, contenders.batches(int(batch)))


if __name__ == "__main__":
    os.environ["PYTENSOR_FLAGS"] = "floatX=float32," + os.environ.get("PYTENSOR_FLAGS", "")
    main()
