"""Models of PyMC's gallery in real sizes: a gradient, plain in its best mode and divided.

Contenders are compiled functions of value and gradient in one process, which take turns; the plain
model runs in each mode, also with BLAS threads. "fast" is `synk.pymc.fast`, which has one core and
no group. "times" is the time of the best plain contender by that of the divided model. Where stanli
is installed (`stan_peer.py`), a table compares with it: "one core" is the time of the best of its
modes with one thread by that of "fast", "members" the best of all of them by the divided model.
First results are those of `logp_dlogp_function`, each in a process of
its own: cold with an empty HOME, so that PyTensor's and numba's caches are empty, then warm.
Imports and the making of the model come before.

    python benchmarks/pymc_gallery.py [--members 2] [--rounds 20] [--seconds 0.2] [--no-jax]
        [--no-first] [--no-gradients] [--no-stan] [MODEL ...]

The data are drawn from each model's own prior (`pymc_gallery_models.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from common import describe_machine, show
from pymc_gallery_models import MODELS, with_data
from pymc_gradient import Contender, compiled
from stan_peer import MISSING, MODES, StanFunction, installed

import synkhronos as synk

warnings.filterwarnings("ignore")

MODE = "NUMBA"  # of members
FIRST = ("plain", "divided")


@contextlib.contextmanager
def contenders(model: pm.Model, members: int, modes: list[str]) -> Iterator[list[Contender]]:
    """The plain model in each mode with one thread and with several, the fast and the divided."""
    found = []
    for mode in modes:
        function = compiled(model, mode)
        found += [
            Contender(f"plain {mode}, {n} thread{'s' * (n > 1)}", function, n)
            for n in sorted({1, members})
        ]
    found.append(Contender("fast", compiled(synk.pymc.fast(model), MODE), 1))
    with synk.Group(members) as group, group.active(), synk.pymc.parallel(model, mode=MODE):
        name = f"divided {MODE}, {members} members"
        found.append(Contender(name, compiled(model, MODE), None))
        yield found


def check_equal(name: str, all_: list[Contender], theta: np.ndarray) -> None:
    """Every contender computes the same value and gradient."""
    results = [[np.asarray(a) for a in c.function(theta)] for c in all_]
    for c, (value, gradient) in zip(all_, results, strict=True):
        assert np.isfinite(value), (name, c.name)
        assert np.allclose(value, results[0][0], rtol=1e-8), (name, c.name)
        scale = np.abs(results[0][1]).max()
        assert np.allclose(gradient, results[0][1], rtol=1e-6, atol=1e-8 * scale), (name, c.name)


def stan_contenders(
    name: str, model: pm.Model, theta: np.ndarray, gradient: np.ndarray
) -> list[Contender]:
    """The Stan program in each mode of stanli, checked."""
    found = []
    for mode, threads, fast in MODES:
        function = StanFunction(name, model, threads, fast)
        function.check(name, theta, gradient)
        found.append(Contender(mode, function, None))
    return found


def gradients(
    name: str, args: argparse.Namespace, modes: list[str]
) -> tuple[list[Any], list[Any] | None]:
    """A row of each table: parameters, microseconds and ratios; and those beside stanli."""
    model = with_data(MODELS[name])
    start = model.initial_point(0)
    size = sum(v.size for v in start.values())
    theta = np.concatenate([np.ravel(start[v.name]) for v in model.value_vars])
    theta = theta + 0.1 * np.random.default_rng(3).normal(size=size)
    with contenders(model, args.members, modes) as all_:
        check_equal(name, all_, theta)
        gradient = np.asarray(all_[0].function(theta)[1])
        stan = stan_contenders(name, model, theta, gradient) if args.stan else []
        for _ in range(args.rounds):
            for c in [*all_, *stan]:
                c.run(theta, args.seconds)
    *plain, fast, divided = all_
    medians = {c.name: 1e6 * float(np.median(c.times[1:])) for c in [*all_, *stan]}
    minima = {c.name: 1e6 * min(c.times[1:]) for c in all_}
    best = min(plain, key=lambda c: medians[c.name]).name
    fastest = min(minima[c.name] for c in plain)
    ours = [
        name,
        f"{size:,}",
        medians[best],
        medians[fast.name],
        medians[divided.name],
        f"{medians[best] / medians[divided.name]:.2f}",
        fastest,
        minima[divided.name],
        f"{fastest / minima[divided.name]:.2f}",
        best.removeprefix("plain "),
    ]
    return ours, beside_stan(name, medians, fast.name, divided.name) if stan else None


def beside_stan(name: str, medians: dict[str, float], fast: str, divided: str) -> list[Any]:
    """A row of the table: the medians of stanli and of ours, and their ratios."""
    stan = [medians[mode] for mode, *_ in MODES]
    alone = [medians[mode] for mode, threads, _ in MODES if threads == 1]
    return [
        name,
        *stan,
        medians[fast],
        medians[divided],
        f"{min(alone) / medians[fast]:.2f}",
        f"{min(stan) / medians[divided]:.2f}",
    ]


def seconds_of_first(name: str, contender: str, members: int, home: Path) -> float:
    """Seconds to the first result, in a process whose HOME and caches are in this folder."""
    dropped = ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "PYTENSORRC")
    env = {k: v for k, v in os.environ.items() if k not in dropped}
    env |= {"HOME": str(home), "PYTENSOR_FLAGS": f"base_compiledir={home / 'pytensor'},mode={MODE}"}
    done = subprocess.run(
        [sys.executable, __file__, "--child", name, contender, str(members)],
        env=env,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1])


def first_results(name: str, members: int) -> list[Any]:
    """A row of the table: cold and warm seconds, plain and divided."""
    found = []
    for contender in FIRST:
        with tempfile.TemporaryDirectory() as home:
            found += [seconds_of_first(name, contender, members, Path(home)) for _ in range(2)]
    plain, _, divided, _ = found
    return [name, *found, f"{plain / divided:.2f}"]


def child(name: str, contender: str, members: int) -> None:
    """Print the seconds to the first result in this process."""
    model = with_data(MODELS[name])
    start = model.initial_point(0)
    theta = np.concatenate([np.ravel(start[v.name]) for v in model.value_vars])
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        if contender == "divided":
            stack.enter_context(synk.pymc.parallel(model, members=members))
        value, _ = compiled(model, MODE)(theta)
        seconds = time.perf_counter() - began
    assert np.isfinite(value)
    print(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--no-jax", action="store_true")
    parser.add_argument("--no-first", action="store_true")
    parser.add_argument("--no-gradients", action="store_true")
    parser.add_argument("--no-stan", dest="stan", action="store_false")
    args = parser.parse_args()
    if unknown := set(args.models) - set(MODELS):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are: {', '.join(MODELS)}")
    describe_machine()
    print(f"PyMC {pm.__version__}")
    if not args.no_first:  # before this process compiles, so that no memory is short
        rows = [first_results(name, args.members) for name in args.models]
        columns = ["", "plain cold", "plain warm", "divided cold", "divided warm", "cold, times"]
        show(f"Seconds to the first result, {args.members} members", columns, rows)
    if not args.no_gradients:
        if args.stan and not installed():
            args.stan = False
            print(MISSING)
        modes = ["NUMBA", "CVM"] if args.no_jax else ["NUMBA", "CVM", "JAX"]
        found = [gradients(name, args, modes) for name in args.models]
        columns = ["us of a gradient", "parameters", "plain, median", "fast", "divided", "times"]
        columns += ["plain, minimum", "divided", "times", "best plain"]
        title = f"Plain in its best mode, and {args.members} members"
        show(title, columns, [ours for ours, _ in found])
        columns = ["us of a gradient, medians", *[mode for mode, *_ in MODES], "fast"]
        columns += [f"{args.members} members", "one core, times", "members, times"]
        if args.stan:
            show("Beside stanli", columns, [row for _, row in found if row is not None])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main()
