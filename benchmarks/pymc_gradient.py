"""One log-density and gradient of two PyMC models: plain in every mode, divided over members.

All contenders are in one process and take turns, so other work on the machine affects all equally.
A contender is `fn(theta)`, PyMC's own compiled function of value and gradient.

    python benchmarks/pymc_gradient.py [--members 2] [--rounds 20] [--seconds 0.1] [--no-jax]

The rows and parameters are those of `stan/` in the project's measurements of Stan's reduce_sum: a
logistic regression of 50,000 x 20, a hierarchical Poisson-gamma model of 200,000 rows in 1,000
groups.
"""

from __future__ import annotations

import argparse
import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm
from common import describe_machine, show
from threadpoolctl import threadpool_limits

import synkhronos as synk

warnings.filterwarnings("ignore")


def logistic(rows: int = 50_000) -> pm.Model:
    r = np.random.default_rng(1)
    x, w = r.normal(size=(rows, 20)), r.normal(size=20)
    y = (r.random(len(x)) < 1 / (1 + np.exp(-x @ w))).astype(int)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1, shape=20)
        pm.Bernoulli("y", logit_p=a + pm.math.dot(x, b), observed=y)
    return model


def hierarchical_poisson() -> pm.Model:
    r = np.random.default_rng(2)
    group, exposure = r.integers(0, 1000, 200_000), r.random(200_000) + 0.5
    with pm.Model() as model:
        alpha, beta = pm.Exponential("alpha", 1), pm.Exponential("beta", 1)
        rate = pm.Gamma("rate", alpha, beta, shape=1000)
        y = r.poisson(r.gamma(2, 0.5, 1000)[group] * exposure)
        pm.Poisson("y", mu=rate[group] * exposure, observed=y)
    return model


MODELS = {
    "logistic 50,000 x 20": logistic,
    "Poisson-gamma 200,000 rows, 1,000 groups": hierarchical_poisson,
}


class Contender:
    """A compiled function and the threads it may use."""

    def __init__(self, name: str, function: Any, threads: int | None) -> None:
        self.name = name
        self.function = function
        function.trust_input = True
        self.threads = threads
        self.times: list[float] = []

    def run(self, theta: np.ndarray, seconds: float) -> None:
        """Call it for this long."""
        limit = (
            contextlib.nullcontext() if self.threads is None else threadpool_limits(self.threads)
        )
        with limit:
            until = time.perf_counter() + seconds
            while (began := time.perf_counter()) < until:
                np.asarray(self.function(theta)[1])
                self.times.append(time.perf_counter() - began)


def compiled(model: pm.Model, mode: str) -> Any:
    return model.logp_dlogp_function(ravel_inputs=True, mode=mode)._pytensor_function


@contextlib.contextmanager
def contenders(model: pm.Model, members: int, modes: list[str]) -> Iterator[list[Contender]]:
    plain = compiled(model, "NUMBA")
    found = [
        Contender("plain NUMBA, 1 thread", plain, 1),
        Contender(f"plain NUMBA, {members} threads", plain, members),
    ]
    divided = {}
    with contextlib.ExitStack() as stack:
        for n in sorted({1, members}):
            divided[n] = stack.enter_context(synk.Group(n))
        for n, group in divided.items():
            with group.active():
                parallel = synk.pymc.parallel(model, mode="NUMBA")
                function = compiled(model, "NUMBA")
                del model.logp  # this function stays divided
                stack.callback(parallel.close)
            found.append(Contender(f"divided NUMBA, {n} members", function, None))
        found += [Contender(f"plain {m}", compiled(model, m), None) for m in modes]
        yield found


def measure(model: pm.Model, args: argparse.Namespace, modes: list[str]) -> list[list[Any]]:
    size = sum(v.size for v in model.initial_point(0).values())
    theta = np.random.default_rng(3).normal(size=size) * 0.3
    with contenders(model, args.members, modes) as all_:
        values = [float(c.function(theta)[0]) for c in all_]
        assert np.allclose(values, values[0], rtol=1e-8), values
        for _ in range(args.rounds):
            for c in all_:
                c.run(theta, args.seconds)
        base = float(np.median(all_[0].times[1:]))
        rows = []
        for c in all_:
            times = 1e6 * np.array(c.times[1:])
            rows.append(
                [
                    c.name,
                    float(np.median(times)),
                    float(times.min()),
                    f"{1e6 * base / np.median(times):.2f}",
                ]
            )
    return rows


def overhead(members: int, repeats: int = 3000) -> float:
    """Cost of a command in us: the divided minus the plain function, with 4 rows."""
    r = np.random.default_rng(1)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", shape=20).sum(), 1, observed=r.normal(size=4))
    theta = np.zeros(20)
    plain = compiled(model, "NUMBA")
    with synk.pymc.parallel(model, members=members, mode="NUMBA"):
        divided = compiled(model, "NUMBA")
        found = []
        for f in (plain, divided):
            f.trust_input = True
            times = []
            for _ in range(repeats):
                began = time.perf_counter()
                f(theta)
                times.append(time.perf_counter() - began)
            found.append(1e6 * float(np.median(times)))
    return found[1] - found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--no-jax", action="store_true")
    args = parser.parse_args()
    describe_machine()
    print(f"PyMC {pm.__version__}")
    print(f"a command costs, {args.members} members: {overhead(args.members):.1f} us")
    for name, make in MODELS.items():
        rows = measure(make(), args, ["CVM"] if args.no_jax else ["CVM", "JAX"])
        show(name, ["us", "median", "min", "times 1 thread"], rows)


if __name__ == "__main__":
    main()
