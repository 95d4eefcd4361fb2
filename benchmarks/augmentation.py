"""Augmentation inside of a training step: the time of a step with it, and without.

Images are padded by 4 pixels, cropped and flipped, and normalised from uint8. Three functions train
the same network, and take turns: with augmentation; only normalised; and on float32 images that
were normalised before. The table gives medians over the rounds, and ratios within rounds.

`small`     28x28x1, convolutions of 4 and 8 filters of 3x3, pooling, 128 units, 10 classes
`resnet20`  32x32x3, He et al., arXiv:1512.03385, section 4.2, without batch normalisation

    python benchmarks/augmentation.py [--members 2] [--batch 128] [--rounds 100] [--steps 1]
                                      [--nets small resnet20] [--modes jax numba]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from common import describe_machine, show

import synkhronos as synk
from synkhronos import nn
from synkhronos.extensions import Batches, make_train_function, updates
from synkhronos.training import augmentation_words

ROWS, CLASSES, GOAL = 4096, 10, 0.05
MEAN, SCALE = 120.0, 60.0
KINDS = "augmented", "normalised", "float32"


class Weights:
    """Shared variables with random values, as a network asks for them."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self._rng = np.random.default_rng(0)

    def __call__(self, *shape: int) -> Any:
        scale = np.sqrt(np.prod(shape[:-1]) / 2)
        value = (self._rng.standard_normal(shape) / scale).astype("float32")
        self.made.append(pytensor.shared(value, name=f"w{len(self.made)}", shape=shape))
        return self.made[-1]


def relu(x: Any) -> Any:
    return pt.maximum(x, 0)


def small(x: Any, weights: Weights) -> Any:
    """The network of cnn.py, without biases."""
    x = relu(nn.conv2d(x, weights(3, 3, 1, 4), padding="same"))
    x = nn.max_pool2d(relu(nn.conv2d(x, weights(3, 3, 4, 8), padding="same")))
    return relu(x.flatten(2) @ weights(14 * 14 * 8, 128)) @ weights(128, CLASSES)


def resnet20(x: Any, weights: Weights) -> Any:
    """Three stages of three blocks; half of a sum keeps values in range without normalisation."""
    x = relu(nn.conv2d(x, weights(3, 3, 3, 16), padding="same"))
    channels = 16
    for stage, block in itertools.product(range(3), range(3)):
        new, stride = 16 << stage, 2 if stage and not block else 1
        beside = x if new == channels else nn.conv2d(x, weights(1, 1, channels, new), stride)
        x = relu(nn.conv2d(x, weights(3, 3, channels, new), stride, padding=1))
        x = relu((nn.conv2d(x, weights(3, 3, new, new), padding="same") + beside) / 2)
        channels = new
    return x.mean(axis=(1, 2)) @ weights(64, CLASSES)


NETS: dict[str, tuple[Callable[..., Any], tuple[int, int, int]]] = {
    "small": (small, (28, 28, 1)),
    "resnet20": (resnet20, (32, 32, 3)),
}


class Contender:
    """A training function, and the seconds of its steps."""

    def __init__(self, kind: str, net: str, mode: str, batch: int) -> None:
        make, shape = NETS[net]
        self.drawn = kind == "augmented"
        dtype = "float32" if kind == "float32" else "uint8"
        x, y = pt.tensor("x", shape=(None, *shape), dtype=dtype), pt.ivector("y")
        words = pt.vector("words", dtype="uint64")
        if self.drawn:
            images = nn.augment(x, words, pad=4, flip=True, mean=MEAN, scale=SCALE)
        else:
            images = x if kind == "float32" else nn.augment(x, mean=MEAN, scale=SCALE)
        weights = Weights()
        log_p = pt.special.log_softmax(make(images, weights), axis=1)
        loss = -log_p[pt.arange(y.shape[0]), y].mean()
        inputs = [x, y, words] if self.drawn else [x, y]
        how = updates.momentum, 1e-4
        self.train = make_train_function(loss, weights.made, inputs, None, *how, mode=mode.upper())
        rng = np.random.default_rng(1)
        pixels = rng.integers(0, 256, (ROWS, *shape)).astype("uint8")
        if kind == "float32":
            pixels = (pixels.astype("float32") - np.float32(MEAN)) / np.float32(SCALE)
        labels = rng.integers(0, CLASSES, ROWS).astype("int32")
        self.data = [synk.data(pixels), synk.data(labels)]
        if self.drawn:
            self.data.append(synk.data(shape=(ROWS,), dtype="uint64"))
        self.batches = Batches(ROWS, batch, seed=2, last="drop")
        self._rows = self._all_rows()
        self.seconds: list[float] = []

    def _all_rows(self) -> Iterator[np.ndarray]:
        while True:
            if self.drawn:
                self.data[-1][...] = augmentation_words(ROWS, 2, self.batches.epoch)
            yield from self.batches

    def round(self, steps: int) -> None:
        """Make steps; keep the mean time of one."""
        began = time.perf_counter()
        for rows in itertools.islice(self._rows, steps):
            self.train(*self.data, batch=rows)
        self.seconds.append((time.perf_counter() - began) / steps)


def compare(net: str, mode: str, batch: int, rounds: int, steps: int) -> list[list[Any]]:
    """The rows of the table for one network and mode."""
    contenders = {kind: Contender(kind, net, mode, batch) for kind in KINDS}
    for c in contenders.values():
        c.round(3)
        c.seconds.clear()
    for number in range(rounds):
        order = list(contenders.values())
        for c in order if number % 2 else order[::-1]:
            c.round(steps)
    ours = contenders["augmented"].seconds
    found = []
    for kind, c in contenders.items():
        share = median(a / b - 1 for a, b in zip(ours, c.seconds, strict=True))
        text = "" if kind == "augmented" else f"{100 * share:+.1f} %"
        if kind == "normalised":
            text += " (goal met)" if share <= GOAL else f" (goal {100 * GOAL:.0f} %: MISSED)"
        found.append([f"{net}, {mode.upper()}, {kind}", f"{1e3 * median(c.seconds):.2f}", text])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128, help="rows of all members")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=1, help="of a round")
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS))
    parser.add_argument("--modes", nargs="+", default=["jax", "numba"])
    args = parser.parse_args()
    describe_machine()
    synk.fork(args.members)
    rows: list[list[Any]] = []
    for net, mode in itertools.product(args.nets, args.modes):
        rows += compare(net, mode, args.batch, args.rounds, args.steps)
    show(
        f"A step of {args.batch} rows, {args.members} members, median of {args.rounds} rounds",
        ("network, mode, images", "ms", "augmented / it - 1"),
        rows,
    )


if __name__ == "__main__":
    main()
