"""A small Wasserstein GAN: two training functions over one graph; run it by `python gan.py`.

The generator learns to turn noise into points around (2, -1). Its critic makes 3 steps for each of
its own, and keeps its weights within a box (arXiv:1701.07875).
"""

import numpy as np
import pytensor
import pytensor.tensor as pt

import synkhronos as synk
from synkhronos.extensions import make_train_function, updates

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


def clipped(loss, params, learning_rate, limit=0.1):
    """RMSprop, with weights that stay within a box: an update rule like any other."""
    found = updates.rmsprop.rule(loss, params, learning_rate)
    return {v: pt.clip(new, -limit, limit) if v in params else new for v, new in found.items()}


size = synk.fork()
noise, points = pt.dmatrix("noise"), pt.dmatrix("points")
generator, critic = layers("g", 2, 16, 2), layers("c", 2, 32, 1)
made = network(noise, generator)
realness = network(made, critic).mean()  # of what the generator makes
critic_loss = realness - network(points, critic).mean()

train_critic = make_train_function(
    critic_loss, critic, [noise, points], None, clipped, learning_rate=2e-3
)
train_generator = make_train_function(
    -realness, generator, [noise], None, updates.rmsprop, learning_rate=5e-3
)
generate = synk.function([noise], made)

for turn in range(TURNS):
    for _ in range(3):
        real = CENTRE + 0.3 * rng.normal(size=(BATCH, 2))
        distance = -float(train_critic(rng.normal(size=(BATCH, 2)), real))
    train_generator(rng.normal(size=(BATCH, 2)))
    if turn % (TURNS // 5) == 0 or turn == TURNS - 1:
        mean = generate(rng.normal(size=(1000, 2))).mean(axis=0)
        print(f"turn {turn}: mean of the points {mean.round(2)}, distance {distance:.3f}")
print(f"{size} members; the mean should be near {CENTRE}")
synk.close()
