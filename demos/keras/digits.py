"""Train a Keras model of handwritten digits by rules with which members train apart.

Keras itself trains the same model in one process first. Each rule then starts from the same
weights and uses equally many rows. The trained weights go back into the Keras model, which tests
itself.

    python demos/keras/digits.py [--members 2] [--epochs 60]
"""

import argparse
import os
import time

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import Batches, make_train_function, updates
from synkhronos.interop import from_keras

TRAINING = 1437  # of the 1797 digits; the others are held out
BATCH, RATE = 32, 0.3
RULES = {
    "EASGD()": rules.EASGD(),
    "Average(5)": rules.Average(5),
    "DiLoCo(20)": rules.DiLoCo(20),
}


def model():
    keras.utils.set_random_seed(1)
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((64,), name="x"), layers.Dense(64, activation="relu"), layers.Dense(10)]
    )


def loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def by_keras(x, y, epochs):
    serial = model()
    serial.compile(optimizer=keras.optimizers.SGD(RATE), loss=loss())
    serial.fit(x, y.astype("int32"), batch_size=BATCH, epochs=epochs, verbose=0)
    return serial


def by_rule(rule, x, y, epochs):
    net = from_keras(model(), loss())
    train = make_train_function(
        net.loss, net.params, *net.inputs, updates.sgd, RATE, mode="JAX", rule=rule
    )
    data = train.build_inputs(x, y)
    if rule.meets:  # the batch of a step is that of all members
        batches = Batches(len(x), BATCH * synk.size(), seed=1)
        for _ in range(epochs):
            for batch in batches:
                train(*data, batch=batch)
        train.meet()
    else:
        with train.start(*data, Batches(len(x), BATCH, seed=1), epochs=epochs) as run:
            run.wait()
    return net.store()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=60)
    options = parser.parse_args()
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype("float32"), y.astype("int64")
    order = np.random.default_rng(0).permutation(len(x))
    learned, held_out = order[:TRAINING], order[TRAINING:]
    table = Table("training", "held-out accuracy", "seconds")

    def row(name, train, *args):
        start = time.perf_counter()
        trained = train(*args, x[learned], y[learned], options.epochs)
        seconds = time.perf_counter() - start
        right = trained.predict(x[held_out], verbose=0).argmax(1) == y[held_out]
        table.add_row(name, f"{right.mean():.1%}", f"{seconds:.1f}")

    synk.fork(options.members)
    row("Keras, one process", by_keras)
    for name, rule in RULES.items():
        row(f"{name}, {options.members} members", by_rule, rule)
    synk.close()
    Console().print(table)


if __name__ == "__main__":
    main()
