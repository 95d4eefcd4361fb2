"""A transposed convolution against the convolution that leads back, which has as many operations.

Layers of a DCGAN for images of 64 pixels, one with a stride of 1, and one with few channels; in
float32. Forward, and the gradients of images and kernel. numba has one core. Calls take turns, so
the load of the machine meets all alike; the table gives the least time of each, in ms.

    python benchmarks/transposed.py [--modes numba jax] [--rows 32] [--rounds 15]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from common import describe_machine, show
from threadpoolctl import threadpool_limits

from synkhronos.nn import conv2d, conv_transpose2d

# pixels to a side of the larger images and their channels, channels of the smaller ones, kernel,
# stride, padding
LAYERS = {
    "32 x 32 x 64, 16 x 16 x 128, 4 x 4, stride 2": (32, 64, 128, 4, 2, 1),
    "16 x 16 x 128, 8 x 8 x 256, 4 x 4, stride 2": (16, 128, 256, 4, 2, 1),
    "64 x 64 x 3, 32 x 32 x 64, 4 x 4, stride 2": (64, 3, 64, 4, 2, 1),
    "16 x 16 x 64, 16 x 16 x 64, 3 x 3, stride 1": (16, 64, 64, 3, 1, 1),
    "28 x 28 x 4, 14 x 14 x 8, 2 x 2, stride 2": (28, 4, 8, 2, 2, 0),
}
PASSES = "forward", "gradients"


def functions(layer: tuple[int, ...], rows: int, mode: str) -> list[Callable[[], Any]]:
    """Calls: forward of both kinds, then gradients of both."""
    larger, few, many, window, stride, around = layer
    smaller = (larger + 2 * around - window) // stride + 1
    rng = np.random.default_rng(0)

    def given(*shape: int) -> Any:
        return pytensor.shared(rng.standard_normal(shape).astype("float32"), shape=shape)

    wide, narrow = given(rows, larger, larger, few), given(rows, smaller, smaller, many)
    down, up = given(window, window, few, many), given(window, window, many, few)
    made = (
        (conv2d(wide, down, stride, around), wide, down, narrow),
        (conv_transpose2d(narrow, up, stride, around), narrow, up, wide),
    )
    assert all(found.eval().shape == to.get_value(borrow=True).shape for found, *_, to in made)
    outputs = [found for found, *_ in made]
    outputs += [pt.grad(None, [x, w], known_grads={found: to}) for found, x, w, to in made]
    return [pytensor.function([], v, mode=mode) for v in outputs]


def least(calls: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """The least time of each call, in ms; calls take turns."""
    found = [float("inf")] * len(calls)
    for call in calls:
        call()  # compiles, and loads the library of matrix products, whose threads are then limited
    with threadpool_limits(1):
        for _ in range(rounds):
            for i, call in enumerate(calls):
                began = time.perf_counter()
                made = call()
                for array in made if isinstance(made, list) else [made]:
                    np.asarray(array)  # waits for JAX
                found[i] = min(found[i], 1e3 * (time.perf_counter() - began))
    return found


def measured(mode: str, rows: int, rounds: int) -> list[list[Any]]:
    table = []
    for name, layer in LAYERS.items():
        times = least(functions(layer, rows, mode), rounds)
        for k, what in enumerate(PASSES):
            plain, transposed = times[2 * k : 2 * k + 2]
            ratio = f"{transposed / plain:.2f}"
            table.append([f"{name}, {what}", f"{plain:.2f}", f"{transposed:.2f}", ratio])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--modes", nargs="+", default=["numba", "jax"])
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    describe_machine()
    for mode in options.modes:
        table = measured(mode.upper(), options.rows, options.rounds)
        columns = ["larger images, smaller images, kernel", "convolution", "transposed", "ratio"]
        show(f"Mode {mode.upper()}, {options.rows} rows, ms", columns, table)


if __name__ == "__main__":
    main()
