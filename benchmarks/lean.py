"""Run time of lean operations against PyTensor's own, in mode NUMBA, one thread, taking turns.

    python benchmarks/lean.py

The table gives medians of rounds.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from common import describe_machine, show
from threadpoolctl import threadpool_limits

from synkhronos._backends.lean.mode import lean

sys.argv = [sys.argv[0], "synk", "", "", "1", "1"]  # which contenders.py reads


def cases() -> dict[str, tuple[list[Any], Any, list[np.ndarray]]]:
    """Inputs, outputs and data by name."""
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


def main() -> None:
    describe_machine()
    rows = []
    with threadpool_limits(1):
        for name, case in cases().items():
            plain, ours = medians(*case)
            rows.append([name, plain, ours, f"{ours / plain:.3f}"])
    show("Microseconds per call in mode NUMBA", ["", "plain", "lean", "ratio"], rows)


if __name__ == "__main__":
    main()
