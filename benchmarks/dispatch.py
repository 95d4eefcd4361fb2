"""What a call costs beyond its compute, on an idle machine and beside busy processes.

Tiny inputs, pauses between calls, 1 MB summed, all_reduce and a training step. All cases run in
alternating blocks of one run, so that they can be compared; figures are medians of the blocks.

    python benchmarks/dispatch.py [--busy 0,1,2,3] [--blocks 5]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing as mp
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from common import describe_machine, microseconds, show

import synkhronos as synk
from synkhronos.extensions import make_train_function, updates

FORK = mp.get_context("fork")
Case = tuple[Callable[[], Any], int, float]  # the call, repeats in a block, seconds of pause


def serve_pipe(end: Connection, work: Callable[[], Any]) -> None:
    """Do the work for every message and send its result, as a worker behind a Pipe does."""
    while end.recv() is not None:
        end.send(float(work()))


def keep_busy() -> None:
    """Use a core without end."""
    while True:
        pass


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that use a core each, on whatever cores the scheduler puts them."""
    processes = [FORK.Process(target=keep_busy, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()


def measure(cases: dict[str, Case], blocks: int) -> dict[str, list[float]]:
    """Microseconds per call of each case, a median for each block."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(blocks):
        for name, (call, repeats, pause) in cases.items():
            times[name].append(microseconds(call, repeats, pause))
    return times


def training_step(rows: int = 512) -> Callable[[], Any]:
    """A step of a net 200-400-400-10, of the current group."""
    rng = np.random.default_rng(0)
    x, y = pt.fmatrix("x"), pt.lvector("y")
    hidden, params = x, []
    for n_in, n_out in ((200, 400), (400, 400), (400, 10)):
        w = pytensor.shared(rng.normal(0, 0.05, (n_in, n_out)).astype("float32"))
        params.append(w)
        hidden = pt.dot(pt.maximum(hidden, 0), w)
    loss = -pt.log(pt.special.softmax(hidden, axis=1)[pt.arange(y.shape[0]), y]).mean()
    train = make_train_function(loss, params, x, y, updates.sgd, 1e-3)
    data = synk.data(rng.normal(size=(rows, 200)).astype("float32"))
    labels = synk.data(rng.integers(0, 10, rows))
    return lambda: train(data, labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", default="0,1,2,3", help="numbers of busy processes")
    parser.add_argument("--blocks", type=int, default=5)
    options = parser.parse_args()
    loads = [int(n) for n in options.busy.split(",")]
    describe_machine()
    cores = len(os.sched_getaffinity(0))

    x = pt.fvector("x")
    plain = pytensor.function([x], x.sum(), trust_input=True)
    tiny, large = np.ones(1000, "float32"), np.ones(1 << 18, "float32")
    half = tiny[:500]
    plain(tiny)
    ours, theirs = mp.Pipe()
    process = FORK.Process(target=serve_pipe, args=(theirs, lambda: plain(half)), daemon=True)
    process.start()

    def ping_pong() -> float:
        """The same work by hand: half the sum here, half behind a Pipe, added."""
        ours.send(1)
        return float(plain(half)) + ours.recv()

    assert ping_pong() == 1000

    with contextlib.ExitStack() as stack:
        four = stack.enter_context(synk.Group(4))
        f4 = synk.function([x], (x.sum(), "sum"))
        d4 = synk.data(tiny)
        assert f4(d4) == 1000
        one = stack.enter_context(synk.Group(1))
        f1 = synk.function([x], (x.sum(), "sum"))
        d1, big1 = synk.data(tiny), synk.data(large)
        assert f1(d1) == 1000
        assert f1(big1) == 1 << 18
        two = stack.enter_context(synk.Group(2))
        f = synk.function([x], (x.sum(), "sum"))
        d, big = synk.data(tiny), synk.data(large)
        assert f(d) == 1000
        assert f(big) == 1 << 18
        shared = pytensor.shared(np.ones(1_300_000, "float32"))
        step = training_step()
        step()
        synk.all_reduce(shared, "avg")
        cases: dict[str, Case] = {
            "plain f(x), 1000 float32": (lambda: plain(tiny), 5000, 0.0),
            "f(x), 1 member": (lambda: f1(d1), 5000, 0.0),
            "Pipe ping-pong": (ping_pong, 2000, 0.0),
            "f(x), 2 members": (lambda: f(d), 5000, 0.0),
            "f(x), 4 members": (lambda: f4(d4), 1000, 0.0),
            "Pipe ping-pong after 1 ms": (ping_pong, 200, 0.001),
            "f(x), 2 members after 1 ms": (lambda: f(d), 200, 0.001),
            "Pipe ping-pong after 20 ms": (ping_pong, 30, 0.02),
            "f(x), 2 members after 20 ms": (lambda: f(d), 30, 0.02),
            "1 MB summed, plain": (lambda: plain(large), 500, 0.0),
            "1 MB summed, 1 member": (lambda: f1(big1), 500, 0.0),
            "1 MB summed, 2 members": (lambda: f(big), 500, 0.0),
            "all_reduce of 5.2 MB, 2 members": (lambda: synk.all_reduce(shared, "avg"), 100, 0.0),
            "training step, 2 members": (step, 50, 0.0),
        }
        assert four.alive
        assert one.alive
        assert two.alive
        found: dict[int, dict[str, list[float]]] = {}
        for load in loads:
            with busy(load):
                found[load] = measure(cases, options.blocks)
    ours.send(None)
    process.join()

    medians = {n: {name: float(np.median(t)) for name, t in m.items()} for n, m in found.items()}
    show(
        f"Microseconds per call beside busy processes, on {cores} cores",
        ["call", *[f"{n} busy" for n in loads]],
        [[name, *[medians[n][name] for n in loads]] for name in cases],
    )
    show(
        "Times what a Pipe ping-pong takes in the same run",
        ["call", "goal", *[f"{n} busy" for n in loads]],
        [
            [f"f(x), {size} members", goal]
            + [medians[n][f"f(x), {size} members"] / medians[n]["Pipe ping-pong"] for n in loads]
            for size, goal in ((2, 2.0), (4, 8.0))
        ],
    )
    if 0 in loads:
        idle = medians[0]
        show(
            "Times the fair share: the idle time, times runnable processes by cores",
            ["call", "goal", *[f"{n} busy" for n in loads]],
            [
                [name, 1.3]
                + [medians[n][name] / (idle[name] * max(1.0, (n + 2) / cores)) for n in loads]
                for name in ("all_reduce of 5.2 MB, 2 members", "training step, 2 members")
            ],
        )
        show(
            "Idle: times what another call takes in the same run",
            ["call", "goal", "found"],
            [
                [f"{name}, by {other}", goal, f"{idle[name] / idle[other]:.3f}"]
                for name, other, goal in (
                    ("f(x), 1 member", "plain f(x), 1000 float32", "2.5 at most"),
                    ("f(x), 2 members", "Pipe ping-pong", "0.12 at most"),
                    ("f(x), 2 members after 20 ms", "Pipe ping-pong after 20 ms", "0.9 at most"),
                    ("1 MB summed, 1 member", "1 MB summed, 2 members", "1.3 at least"),
                )
            ],
        )


if __name__ == "__main__":
    main()
