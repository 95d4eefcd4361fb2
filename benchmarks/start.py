"""Start-up cost: a fork of 2 workers, and cold compilation with 1 and with 2 members.

Cold means that PyTensor's caches begin empty, in a new folder for each run.

    python benchmarks/start.py [--no-compile]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import numpy as np
from common import describe_machine, show

REPEATS = 15

CASE = """
import sys, time
import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
members, kind = int(sys.argv[1]), sys.argv[2]
rng = np.random.default_rng(0)
x, y = pt.fmatrix("x"), pt.lvector("y")
if kind == "small":
    outputs = (x ** 2).sum(axis=1).mean()
else:
    sizes = (784, 512, 512, 10)
    w = [pytensor.shared(rng.normal(0, 0.05, s).astype("float32")) for s in zip(sizes, sizes[1:])]
    h = x
    for p in w[:-1]:
        h = pt.tanh(h @ p)
    loss = -pt.special.log_softmax(h @ w[-1], axis=1)[pt.arange(y.shape[0]), y].mean()
    outputs = [loss, *pt.grad(loss, w)]
synk.fork(members)
f = synk.function([x, y], outputs, on_unused_input="ignore")
data = rng.normal(size=(128, 784)).astype("float32"), rng.integers(0, 10, 128)
began = time.perf_counter()
f(*data)
print(time.perf_counter() - began)
synk.close()
"""


def forks() -> list[float]:
    """Milliseconds for a fork of 2 workers, imports done."""
    import synkhronos as synk

    synk.fork(3)
    synk.close()
    found = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        synk.fork(3)
        found.append(1e3 * (time.perf_counter() - began))
        synk.close()
    return found


def cold_compile(members: int, kind: str) -> float:
    """Seconds of a first call with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"base_compiledir={folder}"
        done = subprocess.run(
            [sys.executable, "-c", CASE, str(members), kind],
            env=os.environ | {"PYTENSOR_FLAGS": flags},
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
        )
    return float(done.stdout.split()[-1])


def main() -> None:
    describe_machine()
    found = forks()
    print(f"fork of 2 workers: {np.median(found):.1f} ms, at most {max(found):.1f} (goal 50)")
    if "--no-compile" in sys.argv:
        return
    rows = []
    for kind, repeats in (("small", 3), ("MLP gradient", 1)):  # the latter takes most of a minute
        one, two = ([cold_compile(m, kind) for _ in range(repeats)] for m in (1, 2))
        a, b = float(np.median(one)), float(np.median(two))
        rows.append([kind, a, b, f"{b / a:.2f}", f"{b - a:+.1f}"])
    columns = ["", "1 member, s", "2 members, s", "ratio", "difference, s"]
    show("Cold NUMBA compilation: the first call with empty caches", columns, rows)


if __name__ == "__main__":
    main()
