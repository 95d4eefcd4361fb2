"""Handwritten digits: a training step, and `fit`, beside plain PyTensor.

python demos/tour/digits.py compiles both functions once, so that PyTensor's cache has them.
"""

import argparse
import time

import numpy as np
import pytensor
import pytensor.tensor as pt
from comparing import Compared, check, in_turn, relative
from telling import say, telling

import synkhronos as synk
from synkhronos.extensions import Batches, make_train_function
from synkhronos.training import Net, fit, sources

RATE = np.float32(0.2)
BATCH = 240  # of fit
STEPS = 10  # after which weights are compared


def network(hidden):
    """One hidden layer of tanh units, and a logistic output for each digit."""
    rng = np.random.default_rng(0)

    def weights(*shape):
        values = rng.normal(size=shape) / np.sqrt(shape[0])
        return pytensor.shared(values.astype("float32"))

    x, y = pt.fmatrix("x"), pt.fmatrix("y")
    w, b = weights(64, hidden), pytensor.shared(np.zeros(hidden, "float32"))
    v, c = weights(hidden, 10), pytensor.shared(np.zeros(10, "float32"))
    scores = pt.tanh(x @ w + b) @ v + c
    loss = (pt.softplus(scores) - y * scores).sum(axis=1).mean()
    return Net(loss=loss, params=[w, b, v, c], inputs=[x, y])


def sgd(loss, params):
    """The update rule, for PyTensor and for Synkhronos."""
    grads = loss if isinstance(loss, list) else pytensor.grad(loss, params)
    return [(p, p - RATE * g) for p, g in zip(params, grads, strict=True)]


def images():
    """Images and labels, to train and held out."""
    train, held_out, _ = sources.known("digits")
    return [(x, np.eye(10, dtype="float32")[labels]) for x, labels in (train, held_out)]


def step(data, hidden, batch):
    """Compare a step of plain PyTensor, which uses all threads of BLAS, with one of all members."""
    images, labels = data
    net, ours = network(hidden), network(hidden)  # with equal weights
    rng = np.random.default_rng(1)
    batches = rng.integers(len(images), size=(STEPS, batch))

    plain = pytensor.function(net.inputs, net.loss, updates=sgd(net.loss, net.params))
    members = synk.fork()
    train = make_train_function(ours.loss, ours.params, *ours.inputs, sgd)
    x, y = train.build_inputs(images, labels)  # in memory that all members read

    with telling("the first step of plain PyTensor, with compiling"):
        plain(images[batches[0]], labels[batches[0]])
    say(f"the first step of {members} members ...")
    train(x, y, batch=batches[0])
    for rows in batches[1:]:
        plain(images[rows], labels[rows])
        train(x, y, batch=rows)
    check(f"weights after {STEPS} steps", difference(net, ours), 1e-5)
    rows = batches[0]
    ms = in_turn(15, lambda: plain(images[rows], labels[rows]), lambda: train(x, y, batch=rows))
    synk.close()
    yield Compared(f"a training step, {members} members", *ms, "ms")


def fitting(data, held_out, hidden, epochs):
    """Compare a loop over shuffled batches in plain PyTensor with `fit`."""
    images, labels = data
    net, ours = network(hidden), network(hidden)
    plain = pytensor.function(net.inputs, net.loss, updates=sgd(net.loss, net.params))
    order, seconds = Batches(len(images), BATCH, seed=0), []
    with telling(f"{epochs} epochs of plain PyTensor"):
        for _ in range(epochs):
            begin = time.perf_counter()
            for rows in order:
                plain(images[rows], labels[rows])
            seconds.append(time.perf_counter() - begin)
    members = synk.fork()
    trainer = fit(ours, data, optimizer=sgd, batch=BATCH, epochs=epochs, validation=held_out)
    synk.close()
    check(f"weights after {epochs} epochs", difference(net, ours), 1e-3)
    right = [f"{accuracy(each, *held_out):.1%}" for each in (net, ours)]
    say(f"held-out accuracy: {right[0]} plain, {right[1]} by fit")
    fastest = min(seconds), min(trainer.history["seconds"])  # the first one also compiles
    yield Compared(f"an epoch of fit, {members} members", *(1e3 * s for s in fastest), "ms")


def accuracy(net, images, labels):
    """The share of right answers, by numpy."""
    w, b, v, c = (p.get_value() for p in net.params)
    scores = np.tanh(images @ w + b) @ v + c
    return (scores.argmax(axis=1) == labels.argmax(axis=1)).mean()


def difference(net, other):
    """The largest difference of weights."""
    pairs = zip(net.params, other.params, strict=True)
    return max(relative(p.get_value(), q.get_value()) for p, q in pairs)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    list(step(images()[0], hidden=8, batch=100))
