"""What it costs to be watched: a step that is traced, and a run beside `synk top`.

    python benchmarks/watching.py [MEMBERS] [--pairs N]

The step is that of an MLP 784-800-800-10 with Adam and 500 rows. Blocks of steps take turns, with
and without, and each pair gives a ratio. `synk top` runs in a process of its own, looks twice a
second, and draws to a terminal that nobody reads.
"""

from __future__ import annotations

import argparse
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
from common import describe_machine, show
from fit import ADAM, mlp

import synkhronos as synk

_STEPS = 20  # of a block
_SECONDS = 2.5  # of a block beside `synk top`, whose own start is not to count


@contextmanager
def top() -> Iterator[None]:
    """`synk top` at a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "synkhronos", "top", str(os.getpid())], stdin=theirs, stdout=theirs
    )
    os.close(theirs)
    began = threading.Event()

    def read() -> None:
        try:
            while os.read(ours, 1 << 16):
                began.set()
        except OSError:  # the terminal's other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        began.wait(30)
        yield
    finally:
        process.terminate()
        process.wait()
        reader.join()
        os.close(ours)


def pairs(
    step: Callable[[], Any], watched: Callable[[], AbstractContextManager[Any]], count: int
) -> list[tuple[float, float]]:
    """Seconds of a step without and with, in blocks that take turns."""
    found = []
    for number in range(count):
        block = {}
        for way in (False, True) if number % 2 else (True, False):
            with watched() if way else nullcontext():
                block[way] = seconds(step)
        found.append((block[False], block[True]))
    return found


def seconds(step: Callable[[], Any]) -> float:
    times = []
    for _ in range(_STEPS):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def beside_top(step: Callable[[], Any], count: int) -> list[tuple[float, float]]:
    """The same with `synk top`; blocks last longer, since it looks twice a second only."""
    found = []
    for number in range(count):
        block = {}
        for way in (False, True) if number % 2 else (True, False):
            with top() if way else nullcontext():
                steps, until = 0, time.perf_counter() + _SECONDS
                began = time.perf_counter()
                while time.perf_counter() < until:
                    step()
                    steps += 1
                block[way] = (time.perf_counter() - began) / steps
        found.append((block[False], block[True]))
    return found


def row(name: str, found: list[tuple[float, float]]) -> list[str]:
    plain, watched = np.array(found).T
    low, middle, high = np.percentile(watched / plain, [25, 50, 75])
    times = [f"{1e3 * np.median(t):.2f}" for t in (plain, watched)]
    return [name, *times, f"{middle:.4f} ({low:.4f} to {high:.4f})"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("members", nargs="?", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=100)
    options = parser.parse_args()
    describe_machine()
    rng = np.random.default_rng(1)
    with synk.Group(options.members) as group:
        x = synk.data(rng.normal(size=(500, 784)).astype("f4"))
        y = synk.data(rng.integers(0, 10, 500).astype("i4"))
        train, _ = mlp(ADAM)

        def step() -> None:
            train(x, y)

        for _ in range(20):
            step()
        rows = [
            row("traced", pairs(step, group.trace, options.pairs)),
            row("beside synk top", beside_top(step, max(2, options.pairs // 10))),
        ]
        title = f"a step of the MLP, {options.members} members"
        show(title, ["", "ms without", "ms with", "ratio (quartiles)"], rows)


if __name__ == "__main__":
    main()
