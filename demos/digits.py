"""Train a classifier of handwritten digits: plain PyTensor, then 1, 2, ... members, then `fit`.

The network is written in plain PyTensor. Its gradient is one flat vector, so one all_reduce
averages the gradients of all members, and every member makes the same step with it. All runs in the
table start from the same weights and use the same batches, so all have to end with the same
weights. At the end `fit` trains the network in one call, and shows its progress.

    python demos/digits.py [--members 1 2] [--steps 100] [--batch 1024] [--hidden 512]
"""

import argparse
import functools
import os
import platform
import statistics
import sys
import threading
import time
from contextlib import contextmanager, nullcontext

import numpy as np
import pytensor
import pytensor.tensor as pt
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_info, threadpool_limits

import synkhronos as synk
from synkhronos.extensions import updates
from synkhronos.training import fit, metrics

TRAINING = 1437  # of the 1797 digits; the others are held out
COMPARED = 10  # steps after which weights are compared; rounding errors grow from step to step
TOLERANCE = 1e-5  # relative to the largest weight, in float32
EPOCHS = 12  # of fit
EVERY = 8  # seconds between two lines while PyTensor compiles
RATE = np.float32(0.2)
SERIAL = "plain, 1 thread"


class Net:
    """Two hidden layers and a softmax: the graph, its shared variables, its flat gradient."""

    def __init__(self, hidden):
        rng = np.random.default_rng(0)
        sizes = [64, hidden, hidden, 10]
        self.inputs = self.x, self.y = pt.fmatrix("x"), pt.ivector("y")
        self.params = []
        layer = self.x
        for i in range(3):
            scale = np.sqrt(2 / sizes[i])
            w = (scale * rng.standard_normal(sizes[i : i + 2])).astype("float32")
            b = np.zeros(sizes[i + 1], "float32")
            self.params += [pytensor.shared(w, f"w{i}"), pytensor.shared(b, f"b{i}")]
            layer = layer @ self.params[-2] + self.params[-1]
            if i < 2:
                layer = pt.maximum(layer, 0)
        self.scores = layer
        log_p = pt.special.log_softmax(layer, axis=1)
        self.loss = -log_p[pt.arange(self.y.shape[0]), self.y].mean()
        self.metrics = {"accuracy": metrics.accuracy(self.scores, self.y)}
        self.start = self.weights()

        flat = pt.concatenate([g.ravel() for g in pytensor.grad(self.loss, self.params)])
        size = sum(w.size for w in self.start)
        self.grad = pytensor.shared(np.zeros(size, "float32"), "grad")
        self.to_grad = [(self.grad, flat)]
        self.to_params, at = [], 0
        for p, w in zip(self.params, self.start, strict=True):
            step = RATE * self.grad[at : at + w.size].reshape(w.shape)
            self.to_params.append((p, p - step))
            at += w.size

    def begin(self):
        """Set the first weights again."""
        for p, w in zip(self.params, self.start, strict=True):
            p.set_value(w)

    def weights(self):
        return [p.get_value() for p in self.params]

    def accuracy(self, images, labels):
        """Share of right answers, computed by numpy and not by the code under test."""
        *hidden, (w, b) = zip(*[iter(self.weights())] * 2, strict=True)
        for v, c in hidden:
            images = np.maximum(images @ v + c, 0)
        return np.mean((images @ w + b).argmax(axis=1) == labels)


def plain_steps(net, images, labels):
    """A training step in plain PyTensor."""
    f_grad = pytensor.function([net.x, net.y], net.loss, updates=net.to_grad)
    f_step = pytensor.function([], updates=net.to_params)

    def step(batch):
        f_grad(images[batch], labels[batch])
        f_step()

    return step


def parallel_steps(net, images, labels):
    """The same step, made by all members of the group."""
    f_grad = synk.function([net.x, net.y], net.loss, updates=net.to_grad)
    f_step = synk.function([], updates=net.to_params)
    x, y = synk.data(images), synk.data(labels)

    def step(batch):
        f_grad(x, y, batch=batch)  # each member: the gradient of its part of the batch
        rows = synk.part_lengths(len(batch))
        synk.all_reduce(net.grad, "avg", weights=rows)  # the gradient of the whole batch
        f_step()

    return step


def train(net, make_steps, data, batches):
    """Train from the same start; returns ms per step, and the weights after a few steps."""
    net.begin()
    step = make_steps(net, *data)
    for batch in batches[:COMPARED]:
        step(batch)
    early = net.weights()
    times = []
    for batch in batches[COMPARED:]:
        begin = time.perf_counter()
        step(batch)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3, early


def fit_all(net, data, held_out, members):
    """Train in one call, and print the share of right answers."""
    print(f"\nfit, with {members} member{'s' * (members > 1)}:", flush=True)
    net.begin()
    synk.fork(members)
    fit(
        net,
        data,
        optimizer=functools.partial(updates.adam, learning_rate=1e-3),
        batch=96,
        epochs=EPOCHS,
        validation=held_out,
    )
    synk.close()
    print(f"held-out accuracy: {net.accuracy(*held_out):.1%}")


def difference(weights, others):
    """The largest difference, relative to the largest value of each array."""
    pairs = zip(weights, others, strict=True)
    return max(float(abs(a - b).max() / abs(b).max()) for a, b in pairs)


def machine():
    """The versions, cores and load on which the figures depend."""
    blas = {f"{i['internal_api']} {i.get('architecture') or ''}".strip() for i in threadpool_info()}
    versions = ", ".join(f"{m.__name__} {m.__version__}" for m in (pytensor, np, synk))
    linker = type(pytensor.compile.mode.get_default_mode().linker).__name__
    load = os.getloadavg()[0]
    busy = " (busy: expect less speed-up)" if load > 0.5 else ""
    return (
        f"{len(os.sched_getaffinity(0))} cores, load {load:.1f}{busy}; "
        f"{', '.join(sorted(blas))}, OPENBLAS_CORETYPE={os.environ.get('OPENBLAS_CORETYPE', '')}"
        f"\nPython {platform.python_version()}, {versions}, {linker}"
    )


@contextmanager
def telling(text):
    """Print how long the work inside goes on, since PyTensor prints nothing while it compiles."""
    begin, over = time.perf_counter(), threading.Event()

    def tell():
        while not over.wait(EVERY):
            print(f"... {time.perf_counter() - begin:.0f} s", flush=True)

    print(text, flush=True)
    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    print(f"... took {time.perf_counter() - begin:.1f} s", flush=True)


def group_sizes():
    """1, 2, ... up to the default size of a group, which is one member per physical core."""
    most = synk.fork()
    synk.close()
    return [n for n in range(1, most + 1) if n <= 4 or n % 4 == 0 or n == most]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, nargs="+", help="group sizes (1, 2, ... cores)")
    parser.add_argument("--steps", type=int, default=100, help="timed steps of each run")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=512, help="units in each hidden layer")
    return parser.parse_args()


def main():
    args = arguments()
    print(machine(), flush=True)
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype("float32"), labels.astype("int32")
    rng = np.random.default_rng(1)
    training, held_out = np.split(rng.permutation(len(images)), [TRAINING])
    data = images[training], labels[training]
    batches = [rng.integers(TRAINING, size=args.batch) for _ in range(COMPARED + args.steps)]
    net = Net(args.hidden)
    print(f"{net.grad.get_value().size:,} weights, batches of {args.batch} of {TRAINING} digits")
    with telling("compiling the gradient (about a minute, the first time) ..."):
        plain_steps(net, *data)(batches[0])

    runs = {}

    def run(label, make_steps):
        ms, early = train(net, make_steps, data, batches)
        runs[label] = ms, early, net.accuracy(images[held_out], labels[held_out])
        print(f"{label}: {ms:.2f} ms per step", flush=True)

    run("plain, all threads", plain_steps)
    with threadpool_limits(1):
        run(SERIAL, plain_steps)
    cores = sorted(os.sched_getaffinity(0))
    for n in args.members or group_sizes():
        synk.fork(n, devices=[[cores[rank % len(cores)]] for rank in range(n)])  # a core for each
        # a group of one has no workers to share the cores with, and leaves the threads as they are
        with threadpool_limits(1) if n == 1 else nullcontext():
            run(f"{n} member{'s' * (n > 1)}", parallel_steps)
        synk.close()
    failed = report(runs)
    if not failed:
        fit_all(net, data, (images[held_out], labels[held_out]), n)
    return failed


def report(runs):
    """Print the table; returns the exit code."""
    serial_ms, serial, _ = runs[SERIAL]
    one_ms = runs.get("1 member", (None,))[0]
    table = Table(title="A training step: plain PyTensor and groups of members")
    table.add_column("")
    columns = "ms/step", "x plain\n1 thread", "x 1\nmember", "held-out\naccuracy"
    for column in (*columns, f"weights differ\nafter {COMPARED} steps"):
        table.add_column(column, justify="right")
    equal = True
    for label, (ms, weights, accuracy) in runs.items():
        apart = difference(weights, serial)
        equal &= apart <= TOLERANCE
        verdict = "" if label == SERIAL else f"{apart:.0e} {'ok' if apart <= TOLERANCE else 'NO'}"
        faster = f"{one_ms / ms:.2f}" if one_ms and "member" in label else ""
        table.add_row(
            label, f"{ms:.2f}", f"{serial_ms / ms:.2f}", faster, f"{accuracy:.1%}", verdict
        )
    Console().print(table)
    if equal:
        print("All runs are equal to the serial run.")
        return 0
    print(f"A run differs from the serial run by more than {TOLERANCE:.0e}.", file=sys.stderr)
    return 1


sys.exit(main())
