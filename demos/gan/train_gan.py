"""Train a generative adversarial network: its points shall come from eight clouds on a ring.

    python demos/gan/train_gan.py [--loss log wasserstein squared] [--members 2] [--epochs 60] ...

`Alternate` lets the critic and the generator take turns. With `--swap 50` each member trains a pair
of its own, and pairs of members exchange critics after 50 steps. `--picture FILE.png` draws the
points of the data in grey and those of the generator in red.
"""

import argparse
import functools
import itertools
import struct
import zlib

import numpy as np
import pytensor
import pytensor.tensor as pt

import synkhronos as synk
from synkhronos import rules, zoo
from synkhronos.extensions import updates
from synkhronos.training import Trainer, clipped

CLOUDS, RADIUS, SIGMA = 8, 2.0, 0.02
CENTRES = RADIUS * np.exp(2j * np.pi * np.arange(CLOUDS) / CLOUDS)[:, None].view(float)
LATENT = 2
PIXELS, EDGE = 400, 3.0  # of the picture: its sides, and the largest coordinate


def points(rows):
    """Points of the eight clouds."""
    rng = np.random.default_rng(0)
    return CENTRES[rng.integers(0, CLOUDS, rows)] + SIGMA * rng.normal(size=(rows, 2))


def layers(name, sizes, rng):
    """Weights and biases of layers of units."""
    found = []
    for number, (old, new) in enumerate(itertools.pairwise(sizes)):
        w = rng.normal(size=(old, new)) * np.sqrt(2 / old)
        found.append(pytensor.shared(w, name=f"{name}.w{number}"))
        found.append(pytensor.shared(np.zeros(new), name=f"{name}.b{number}"))
    return found


def network(params, x):
    """The layers, with rectifiers between them."""
    for w, b in zip(params[:-2:2], params[1:-2:2], strict=True):
        x = pt.maximum(x @ w + b, 0)
    return x @ params[-2] + params[-1]


def make_pair(loss, hidden):
    """Two networks with two hidden layers, their losses and their optimizers."""
    rng = np.random.default_rng(0)
    generator = layers("generator", (LATENT, hidden, hidden, 2), rng)
    generator[-2].set_value(3 * generator[-2].get_value())  # first points around the whole ring
    critic = layers("critic", (2, hidden, hidden, 1), rng)
    if loss == "wasserstein":
        slow = functools.partial(updates.rmsprop, learning_rate=1e-3)
        fast = clipped(slow, 0.1)
    else:
        slow = functools.partial(updates.adam, learning_rate=5e-4, beta1=0.5)
        fast = functools.partial(updates.adam, learning_rate=1e-3, beta1=0.5)
    return zoo.adversarial(
        pt.dmatrix("x"),
        functools.partial(network, generator),
        functools.partial(network, critic),
        loss=loss,
        latent=LATENT,
        params=(critic, generator),
        critic_optimizer=fast,
        generator_optimizer=slow,
        critic_steps=3 if loss == "wasserstein" else 1,
    )


def found_clouds(made):
    """How many clouds have 2 % of the points close to their centre."""
    near = np.linalg.norm(made[:, None] - CENTRES, axis=2) < 0.3
    return int((near.mean(axis=0) > 0.02).sum())


def draw(path, made, data):
    """Write a PNG: the data in grey, what the generator makes in red."""
    pixels = np.full((PIXELS, PIXELS, 3), 255, np.uint8)
    for places, colour in ((made, (200, 30, 30)), (data, (120, 120, 120))):
        inside = places[abs(places).max(axis=1) < EDGE - 0.02]
        column, row = ((inside * [1, -1] + EDGE) * PIXELS / (2 * EDGE)).astype(int).T
        for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
            pixels[np.minimum(row + down, PIXELS - 1), np.minimum(column + right, PIXELS - 1)] = (
                colour
            )
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", PIXELS, PIXELS, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for kind, content in parts:
            check = zlib.crc32(kind + content)
            file.write(struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check))


def main():
    """Train, say how many clouds are found, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--loss", choices=["log", "wasserstein", "squared"], default="log")
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--swap", type=int, default=0, help="a pair for each member; steps")
    parser.add_argument("--picture", default="", help="a PNG file")
    options = parser.parse_args()
    data = points(options.rows)
    pair = make_pair(options.loss, options.hidden)
    swap = rules.Swap(options.swap) if options.swap else None
    with synk.Group(options.members):
        trainer = Trainer(pair.alternate(swap=swap), augment=pair.words)
        trainer.fit(data, batch=options.batch, epochs=options.epochs, last="drop")
        generate = synk.function([pair.latent], pair.samples)
        made = generate(np.random.default_rng(1).normal(size=(4000, LATENT)))
    if options.picture:
        draw(options.picture, made, data[:4000])
    print(f"{found_clouds(made)} of {CLOUDS} clouds found")


if __name__ == "__main__":
    main()
