"""Lean operations against PyTensor's own, in mode NUMBA: run time, and first calls without each.

    python benchmarks/lean.py [--cold [CASE ...]] [--rounds 2] [--without NAME ...]

The first table gives medians of calls that take turns, with one thread. With ``--cold``, each cell
is the first call in a process of its own with empty caches, of a group of one member or of
`synk.pymc.fast`: with all of the package's parts, without each of them that it uses, without any,
and in plain PyTensor. Rounds take turns; seconds are processor time, since other work on the
machine changes that less, and the least of all rounds.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from common import describe_machine, show
from threadpoolctl import threadpool_limits

from synkhronos._compiling.lean.mode import lean


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
GALLERY = ("election88", "radon", "cumulative")  # models of pymc_gallery.py
COLD = ("mlp", "cnn", "lstm", "fit", "logistic", *GALLERY)


def leave_out(part: str) -> None:
    """Compile without a part of the package in this process."""
    from pytensor.link.numba.linker import NumbaLinker

    from synkhronos._compiling.lean import mode, rewrite

    if part == "linker":
        mode.LeanLinker = NumbaLinker
    elif part == "constants":
        mode.compiles_at_call = lambda _: False
    else:
        [kind] = [kind for kind in rewrite._KNOWN if kind.__name__ == part]
        del rewrite._KNOWN[kind]


def first_call(case: str, plain: bool) -> Callable[[], Any]:
    """A function that compiles and makes the first call."""
    import start

    if case == "fit":
        return first_fit()
    return first_fast(case, plain) if case in GALLERY else start.first_call(case, 0 if plain else 1)


def first_fit() -> Callable[[], Any]:
    """An epoch of a small network on two classes."""
    import synkhronos as synk
    from synkhronos import training, zoo
    from synkhronos.extensions import updates

    rng = np.random.default_rng(0)
    data = rng.normal(size=(512, 20)).astype("float32"), rng.integers(0, 2, 512).astype("int32")
    synk.fork(1)
    net = zoo.mlp(20, (32,))
    return lambda: training.fit(
        net, data, optimizer=updates.adam, epochs=1, batch=64, progress=False
    )


def first_fast(name: str, plain: bool) -> Callable[[], Any]:
    """Value and gradient of a model of the gallery."""
    from pymc_gallery_models import MODELS, with_data
    from pymc_gradient import compiled

    import synkhronos as synk

    model = with_data(MODELS[name])
    point = model.initial_point(0)
    theta = np.concatenate([np.ravel(point[v.name]) for v in model.value_vars])
    return lambda: compiled(model if plain else synk.pymc.fast(model), "NUMBA")(theta)


def child(case: str, left_out: list[str]) -> None:
    """Print processor seconds of the first call, and the kinds of lean operations in it."""
    import synkhronos as synk
    from synkhronos._compiling.lean import rewrite

    plain = left_out == ["plain"]
    for part in [] if plain else left_out:
        leave_out(part)
    used: set[str] = set()
    lean_of = rewrite.Lean

    def noted(op: Any) -> Any:
        used.add(rewrite._known(op).__name__)
        return lean_of(op)

    rewrite.Lean = noted
    call = first_call(case, plain)
    began = processor_seconds()
    call()
    print(processor_seconds() - began, *sorted(used))
    if case not in GALLERY:
        synk.close()


def processor_seconds() -> float:
    """Of this process and of those that have ended in it, as C compilers do."""
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def cold(case: str, left_out: list[str]) -> tuple[float, list[str]]:
    """Processor seconds of a first call with empty caches, and the lean operations in it."""
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
    seconds, *used = done.stdout.splitlines()[-1].split()
    return float(seconds), used


def first_calls(cases: list[str], rounds: int, parts: list[str]) -> None:
    for case in cases:
        _, used = cold(case, [])
        fit = [p for p in parts if p in (*used, "linker", "constants")]
        variants = {"all": [], **{part: [part] for part in fit}, "any": list(PARTS)}
        if case != "fit":
            variants["plain"] = ["plain"]
        found: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(rounds):
            for name, left_out in variants.items():
                found[name].append(cold(case, left_out)[0])
        least = {name: min(times) for name, times in found.items()}
        rows = [
            [
                {"all": "with all", "plain": "plain PyTensor"}.get(name, f"without {name}"),
                f"{seconds:.2f}",
                f"{100 * (seconds / least['all'] - 1):+.1f} %",
                " ".join(f"{s:.2f}" for s in found[name]),
            ]
            for name, seconds in least.items()
        ]
        title = f"{case}: processor seconds of the first call with empty caches"
        show(title, ["", "minimum", "more", "each"], rows)


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
