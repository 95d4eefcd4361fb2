"""Train a classifier of sequences: which of two marked numbers in a noisy sequence is larger.

    python demos/lstm/train_lstm.py [--members 2] [--batch 256] [--epochs 20] [--mode NUMBA] ...

A sequence has two channels: random numbers, and marks, which are 1 at two places. An LSTM has to
remember the number at the first mark until it sees the second. Members divide the sequences of each
batch. `--serial` trains the same network in one process with plain PyTensor, with the same losses.
"""

import argparse

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor_ml.layers import LSTM, Input, Linear
from pytensor_ml.model import Model

import synkhronos as synk
from synkhronos.extensions import (
    Batches,
    make_train_function,
    make_train_function_pytensor,
    updates,
)

TEST = 2000  # sequences


def sequences(rows, steps, seed):
    """Sequences (rows, steps, 2) and labels: 1 where the second marked number is the larger."""
    rng = np.random.default_rng(seed)
    found = np.zeros((rows, steps, 2), "float32")
    found[:, :, 0] = rng.uniform(-1, 1, (rows, steps))
    half = steps // 2
    places = rng.integers(0, half, rows), rng.integers(half, steps, rows)
    for place in places:
        found[np.arange(rows), place, 1] = 1
    first, second = (found[np.arange(rows), place, 0] for place in places)
    return found, (second > first).astype("int32")


def network(steps, hidden, seed):
    """Inputs, parameters, loss and accuracy."""
    x, y = Input("x", (None, steps, 2), "float32"), pt.ivector("y")
    states = LSTM("lstm", n_in=2, n_hidden=hidden)(x)
    scores = Linear("scores", n_in=hidden, n_out=2)(states[:, -1])
    params = Model(scores).initialize(seed).weights
    log_p = pt.special.log_softmax(scores, axis=1)
    loss = -log_p[pt.arange(y.shape[0]), y].mean()
    return x, y, params, loss, pt.eq(scores.argmax(axis=1), y).astype("float32").mean()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default, text in [
        ("batch", 256, "rows of a step"),
        ("epochs", 20, "over all sequences"),
        ("rows", 8000, "sequences to train on"),
        ("steps", 20, "of a sequence"),
        ("hidden", 32, "units"),
        ("seed", 0, "of sequences, weights and order"),
    ]:
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} ({default})")
    parser.add_argument("--rate", type=float, default=0.01, help="of Adam (0.01)")
    parser.add_argument("--members", type=int, help="in the group")
    parser.add_argument("--mode", help="of PyTensor, such as NUMBA or JAX")
    parser.add_argument("--serial", action="store_true", help="plain PyTensor in one process")
    return parser.parse_args()


def main():
    args = arguments()
    if not args.serial:
        print(f"{synk.fork(args.members)} members")
    pytensor.config.floatX = "float32"  # of the layers, and of JAX when it compiles them
    x, y, params, loss, right = network(args.steps, args.hidden, args.seed)
    rule = updates.adam, args.rate
    data = sequences(args.rows, args.steps, args.seed)
    test = sequences(TEST, args.steps, args.seed + 1)
    if args.serial:
        train = make_train_function_pytensor(loss, params, x, y, *rule, mode=args.mode)
        accuracy = pytensor.function([x, y], right, mode=args.mode)
    else:
        train = make_train_function(loss, params, x, y, *rule, mode=args.mode)
        accuracy = synk.function([x, y], right, mode=args.mode)
        data = [synk.data(array) for array in data]
    for epoch in range(args.epochs):
        losses = [float(train(*data, batch=rows)) for rows in Batches(args.rows, args.batch, epoch)]
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.5f}", flush=True)
    print(f"test accuracy: {100 * float(accuracy(*test)):.2f} %")
    synk.close()


main()
