"""Eight small clouds of points on a ring, and pairs of small networks that learn to make them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from synkhronos import zoo
from synkhronos.extensions import Batches, updates
from synkhronos.training import Pair, augmentation_words, clipped

MODES, RADIUS, SIGMA = 8, 2.0, 0.02
CENTRES = RADIUS * np.exp(2j * np.pi * np.arange(MODES) / MODES)[:, None].view(float)

# rates of the generator and of the critic, and the critic's largest weight
RATES: dict[str, tuple[float, float, float | None]] = {
    "log": (5e-4, 1e-3, None),
    "wasserstein": (1e-3, 1e-3, 0.1),
    "squared": (5e-4, 1e-3, None),
}
STEPS = {"log": 1, "wasserstein": 3, "squared": 1}  # of the critic
WIDE = 3.0  # the first points lie around the whole ring, so that each cloud draws its neighbours


def points(rows: int, seed: int = 0) -> np.ndarray:
    """Points of the eight clouds, of shape (rows, 2)."""
    rng = np.random.default_rng(seed)
    return CENTRES[rng.integers(0, MODES, rows)] + SIGMA * rng.normal(size=(rows, 2))


def found_modes(made: np.ndarray, share: float = 0.02) -> int:
    """How many centres have a share of the points within a fifth of the distance to the next."""
    near = 0.2 * np.linalg.norm(CENTRES[1] - CENTRES[0])
    distances = np.linalg.norm(made[:, None] - CENTRES, axis=2)
    return int(((distances < near).mean(axis=0) > share).sum())


def layers(name: str, sizes: tuple[int, ...], seed: int, dtype: str = "float64") -> list[Any]:
    """Weights and biases of layers of units."""
    rng = np.random.default_rng(seed)
    found = []
    for number, (old, new) in enumerate(itertools.pairwise(sizes)):
        w = rng.normal(size=(old, new)) * np.sqrt(2 / old)
        found.append(pytensor.shared(w.astype(dtype), name=f"{name}.w{number}"))
        found.append(pytensor.shared(np.zeros(new, dtype), name=f"{name}.b{number}"))
    return found


def network(params: list[Any], x: Any) -> Any:
    """The layers with rectifiers between them."""
    for w, b in zip(params[:-2:2], params[1:-2:2], strict=True):
        x = pt.maximum(x @ w + b, 0)
    return x @ params[-2] + params[-1]


def pair(loss: str, hidden: int = 6, steps: int = 2, seed: int = 0) -> Pair:
    """A generator and a critic of two hidden layers each, for points."""
    latent, x = 2, pt.dmatrix("x")
    made = layers("generator", (latent, hidden, hidden, 2), seed)
    made[-2].set_value(WIDE * made[-2].get_value())
    critic = layers("critic", (2, hidden, hidden, 1), seed + 1)
    slow, fast, limit = RATES[loss]
    rule = updates.rmsprop if loss == "wasserstein" else functools.partial(updates.adam, beta1=0.5)
    judged = functools.partial(rule, learning_rate=fast)
    found = zoo.adversarial(
        x,
        functools.partial(network, made),
        functools.partial(network, critic),
        loss=loss,
        latent=latent,
        params=(critic, made),
        critic_steps=steps,
    )
    return dataclasses.replace(
        found,
        critic_optimizer=judged if limit is None else clipped(judged, limit),
        generator_optimizer=functools.partial(rule, learning_rate=slow),
    )


def batches(rows: int, size: int, epochs: int, seed: int = 0) -> Any:
    """The numbers of the rows of each batch, as a trainer takes them, and the words of these."""
    order = Batches(rows, size, seed)
    for epoch in range(epochs):
        words = augmentation_words(rows, seed, epoch)
        for chosen in order:
            yield np.array(chosen), words[chosen]
