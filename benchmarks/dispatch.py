"""What a call costs beyond its compute: tiny inputs, pauses between calls, 1 MB summed.

The same work side by side in one run, in alternating blocks; medians of the blocks.

    python benchmarks/dispatch.py
"""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from common import describe_machine, microseconds, show

import synkhronos as synk

BLOCKS = 5


def pipe_worker(end: Connection, work: Callable[[], Any]) -> None:
    """Do the work for every message and send its result, as a worker behind a Pipe does."""
    while end.recv() is not None:
        end.send(float(work()))


def main() -> None:
    describe_machine()
    x = pt.fvector("x")
    plain = pytensor.function([x], x.sum(), trust_input=True)
    tiny, large = np.ones(1000, "float32"), np.ones(1 << 18, "float32")
    plain(tiny)
    ours, theirs = mp.Pipe()
    half = tiny[:500]
    work = (theirs, lambda: plain(half))
    process = mp.get_context("fork").Process(target=pipe_worker, args=work, daemon=True)
    process.start()

    def ping_pong() -> float:
        """The same work by hand: half the sum here, half behind a Pipe, added."""
        ours.send(1)
        return float(plain(half)) + ours.recv()

    assert ping_pong() == 1000

    synk.fork(2)
    f = synk.function([x], (x.sum(), "sum"))
    d, big = synk.data(tiny), synk.data(large)
    assert f(d) == 1000
    assert f(big) == 1 << 18
    with synk.Group(1):
        one = synk.function([x], (x.sum(), "sum"))
        alone = synk.data(large)
        assert one(alone) == 1 << 18
        cases: dict[str, tuple[Callable[[], Any], int, float]] = {
            "plain f(x), 1000 float32": (lambda: plain(tiny), 20000, 0.0),
            "f(x) over 2 members, back to back": (lambda: f(d), 20000, 0.0),
            "Pipe ping-pong, back to back": (ping_pong, 5000, 0.0),
            "f(x) after a pause of 1 ms": (lambda: f(d), 300, 0.001),
            "Pipe ping-pong after 1 ms": (ping_pong, 300, 0.001),
            "f(x) after a pause of 20 ms": (lambda: f(d), 50, 0.02),
            "Pipe ping-pong after 20 ms": (ping_pong, 50, 0.02),
            "1 MB summed, plain": (lambda: plain(large), 3000, 0.0),
            "1 MB summed, 1 member": (lambda: one(alone), 3000, 0.0),
            "1 MB summed, 2 members": (lambda: f(big), 3000, 0.0),
        }
        times = {name: [] for name in cases}
        for _ in range(BLOCKS):
            for name, (call, repeats, pause) in cases.items():
                times[name].append(microseconds(call, repeats, pause))
    ours.send(None)
    process.join()
    synk.close()
    found = {name: float(np.median(t)) for name, t in times.items()}
    show(
        "Microseconds per call, median",
        ["call", "us", "least block", "largest block"],
        [[n, found[n], min(t), max(t)] for n, t in times.items()],
    )
    over = found["f(x) over 2 members, back to back"] - found["plain f(x), 1000 float32"]
    print(f"over plain, back to back: {over:.1f} us (goal 8)")
    for pause in ("1 ms", "20 ms"):
        ratio = found[f"f(x) after a pause of {pause}"] / found[f"Pipe ping-pong after {pause}"]
        print(f"after {pause}: {ratio:.2f} of a Pipe ping-pong (goal 1)")
    ratio = found["1 MB summed, 1 member"] / found["1 MB summed, 2 members"]
    print(f"1 MB: 2 members are {ratio:.2f} times as fast as 1")


if __name__ == "__main__":
    main()
