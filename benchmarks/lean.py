"""Lean operations against PyTensor's own, in mode NUMBA: run time, and first calls without each.

    python benchmarks/lean.py [--cold [CASE ...]] [--rounds 2] [--without NAME ...]

The first table gives medians of calls that take turns, with one thread. With ``--cold``, each cell
is the first call in a process of its own with empty caches, of a group of one member: with all of
the package's parts, without each of them, and without any. Rounds take turns; seconds are
processor time, since other work on the machine changes that less. Steps are minima.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from common import describe_machine, show
from threadpoolctl import threadpool_limits

from synkhronos._backends.lean.mode import lean


def cases() -> dict[str, tuple[list[Any], Any, list[np.ndarray]]]:
    """Inputs, outputs and data by name."""
    sys.argv = [sys.argv[0], "synk", "", "", "1", "1"]  # which contenders.py reads
    import cnn_contenders
    import contenders

    x, y, params, loss = contenders.graph()
    mlp = [x, y], [loss, *pytensor.grad(loss, params)], [a[:500] for a in contenders.data()]
    x, y, params, loss = cnn_contenders.graph()
    cnn = [x, y], [loss, *pytensor.grad(loss, params)], [a[:100] for a in cnn_contenders.data()]
    a, b, c = pt.fmatrix("a"), pt.fmatrix("b"), pt.fvector("c")
    wide, small = np.ones((500, 800), "f4"), np.ones((10, 10), "f4")
    return {
        "MLP gradient, batch 500": mlp,
        "CNN gradient, batch 100": cnn,
        "sum over rows, 500 x 800": ([a], a.sum(axis=0), [wide]),
        "max over columns, 500 x 800": ([a], a.max(axis=1), [wide]),
        "sum of a transpose, 800 x 500": ([a], a.T.sum(axis=0), [wide]),
        "product, 10 x 10": ([a, b], a @ b, [small, small]),
        "matrix and vector, 500 x 800": ([a, c], a @ c, [wide, wide[0]]),
    }


def medians(inputs: list[Any], outputs: Any, data: list[np.ndarray]) -> list[float]:
    """Microseconds of a call, plain and lean."""
    functions = [pytensor.function(inputs, outputs, mode=m) for m in ("NUMBA", lean("NUMBA"))]
    times: list[list[float]] = [[], []]
    for function in functions:
        function.trust_input = True
        function(*data)
    until = time.perf_counter() + 6
    while time.perf_counter() < until:
        for function, found in zip(functions, times, strict=True):
            began = time.perf_counter()
            function(*data)
            found.append(1e6 * (time.perf_counter() - began))
    return [float(np.median(found)) for found in times]


PARTS = ("Dot", "CAReduce", "Alloc", "SpecifyShape", "Split", "linker", "constants")
COLD = ("small", "mlp", "cnn", "lstm", "logistic")


def leave_out(part: str) -> None:
    """Compile without a part of the package in this process."""
    from pytensor.link.numba.linker import NumbaLinker

    from synkhronos._backends.lean import mode, rewrite

    if part == "linker":
        mode.LeanLinker = NumbaLinker
    elif part == "constants":
        mode.compiles_at_call = lambda _: False
    else:
        [kind] = [kind for kind in rewrite._KNOWN if kind.__name__ == part]
        del rewrite._KNOWN[kind]


def child(case: str, left_out: list[str]) -> None:
    """Print processor seconds of the first call, and the microseconds of a step."""
    import start

    import synkhronos as synk

    for part in left_out:
        leave_out(part)
    made: list[Any] = []
    function = synk.function
    synk.function = lambda *a, **k: made.append(function(*a, **k)) or made[-1]  # type: ignore
    call = start.first_call(case, 1)
    began = processor_seconds()
    call()
    seconds = processor_seconds() - began
    fastest = float("nan")
    if made:
        data = {"small": start.small, "mlp": start.mlp, "cnn": start.cnn, "lstm": start.lstm}
        arrays = data[case]()[3]
        until = time.perf_counter() + 2
        fastest = float("inf")
        while (before := time.perf_counter()) < until:
            made[0](*arrays)
            fastest = min(fastest, time.perf_counter() - before)
    print(seconds, 1e6 * fastest)
    synk.close()


def processor_seconds() -> float:
    """Of this process and of those that have ended in it, as C compilers do."""
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def cold(case: str, left_out: list[str]) -> tuple[float, float]:
    """Processor seconds of a first call with empty caches, and microseconds of a step."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"base_compiledir={folder},mode=NUMBA"
        done = subprocess.run(
            [sys.executable, __file__, "--child", case, *left_out],
            env=os.environ | {"PYTENSOR_FLAGS": flags},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    if done.returncode:
        raise SystemExit(done.stderr)
    seconds, step = done.stdout.split()[-2:]
    return float(seconds), float(step)


def first_calls(cases: list[str], rounds: int, parts: list[str]) -> None:
    for case in cases:
        variants = {"all": [], **{part: [part] for part in parts}, "any": list(PARTS)}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
        for _ in range(rounds):
            for name, left_out in variants.items():
                found[name].append(cold(case, left_out))
        rows = []
        for name, results in found.items():
            seconds, step = np.min(np.array(results), axis=0)
            what = "with all" if name == "all" else f"without {name}"
            rows.append([what, f"{seconds:.1f}", f"{step:.0f}"])
        title = f"{case}: the first call with empty caches"
        show(title, ["", "processor seconds", "us of a step"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cold", nargs="*", choices=[[], *COLD])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--without", nargs="*", choices=PARTS, default=list(PARTS))
    asked = parser.parse_args()
    describe_machine()
    if asked.cold is not None:
        first_calls(asked.cold or list(COLD), asked.rounds, asked.without)
        return
    rows = []
    with threadpool_limits(1):
        for name, case in cases().items():
            plain, ours = medians(*case)
            rows.append([name, plain, ours, f"{ours / plain:.3f}"])
    show("Microseconds per call in mode NUMBA", ["", "plain", "lean", "ratio"], rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3:])
    else:
        main()
