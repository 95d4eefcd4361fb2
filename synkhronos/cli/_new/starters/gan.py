"""A small Wasserstein GAN: two networks train in turn; run it by `python gan.py`.

The generator learns to turn noise into points around (2, -1). Its critic makes 3 steps for each of
its own, and keeps its weights within a box (arXiv:1701.07875).
"""

import functools

import numpy as np
import pytensor
import pytensor.tensor as pt

import synkhronos as synk
from synkhronos import nn
from synkhronos.extensions import updates
from synkhronos.training import Net, Pair, Trainer, clipped

BATCH, TURNS, CENTRE = 256, 300, np.array([2.0, -1.0])

rng = np.random.default_rng(0)


def layers(name, inputs, hidden, outputs):
    """Make the weights of a network with one hidden layer."""
    values = {
        "w1": rng.normal(size=(inputs, hidden)) / np.sqrt(inputs),
        "b1": np.zeros(hidden),
        "w2": rng.normal(size=(hidden, outputs)) / np.sqrt(hidden),
        "b2": np.zeros(outputs),
    }
    return [pytensor.shared(v, name=f"{name}.{k}") for k, v in values.items()]


def network(x, params):
    w1, b1, w2, b2 = params
    return pt.maximum(x @ w1 + b1, 0) @ w2 + b2


size = synk.fork()
points, words = pt.dmatrix("points"), pt.vector("words", dtype="uint64")
generator, critic = layers("g", 2, 16, 2), layers("c", 2, 32, 1)
made = network(nn.noise(words, 2, dtype="float64"), generator)  # of each row's random word
realness = network(made, critic).mean()  # of what the generator makes
pair = Pair(
    critic=Net(
        loss=realness - network(points, critic).mean(), params=critic, inputs=[points, words]
    ),
    generator=Net(loss=-realness, params=generator, inputs=[words]),
    critic_optimizer=clipped(functools.partial(updates.rmsprop, learning_rate=2e-3), 0.1),
    generator_optimizer=functools.partial(updates.rmsprop, learning_rate=5e-3),
    critic_steps=3,
    words=words,
)
rows = CENTRE + 0.3 * rng.normal(size=(BATCH * 4 * (TURNS // 5), 2))  # of an epoch
trainer = Trainer(pair.alternate(), augment=words, progress=False)
generate = synk.function([words], made)
some = rng.integers(0, 2**63, 1000, dtype="uint64")

for epoch in range(1, 6):
    history = trainer.fit(rows, batch=BATCH, epochs=epoch)
    mean, distance = generate(some).mean(axis=0), -history[-1]["loss_critic"]
    print(f"turn {epoch * (TURNS // 5)}: mean of the points {mean.round(2)}, {distance=:.3f}")
print(f"{size} members; the mean should be near {CENTRE}")
synk.close()
