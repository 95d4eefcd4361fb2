"""NUTS with one chain, plain and divided: time, posterior means, log-densities, maxima.

    python benchmarks/pymc_nuts.py [--seeds 4] [--draws 300] [--points 100] [--max-treedepth 10]
        [MODEL ...]

Times are PyMC's own sampling times, without compilation, divided by the number of gradients
(including warm-up). Plain and divided chains of one seed differ after some steps, by rounding. Both
run in mode NUMBA, with one BLAS thread: with more threads PyMC's own sums of long vectors are
slower, up to 40 times on virtual cores.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import scipy.linalg.blas  # noqa: F401 - used by NUTS; loaded before its threads are limited
from common import describe_machine, microseconds, show
from pymc_gradient import compiled, hierarchical_poisson, logistic
from threadpoolctl import threadpool_limits

import synkhronos as synk

warnings.filterwarnings("ignore")

MODE = "NUMBA"


def glmm(rows: int = 20_000) -> pm.Model:
    r = np.random.default_rng(3)
    x = r.normal(size=(rows, 5))
    y = r.poisson(np.exp(0.5 + x @ np.linspace(-0.4, 0.4, 5) + 0.5 * r.normal(size=rows)))
    with pm.Model(coords={"obs": range(rows)}) as model:
        a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1, shape=5)
        scale = pm.HalfNormal("scale", 1)
        noise = pm.Normal("noise", 0, 1, dims="obs")
        pm.Poisson("y", mu=pm.math.exp(a + x @ b + scale * noise), observed=y, dims="obs")
    return model


MODELS: dict[str, Callable[[], pm.Model]] = {
    "logistic": logistic,
    "poisson-gamma": hierarchical_poisson,
    "glmm": glmm,
}


def sampled(
    model: pm.Model, seed: int, draws: int, depth: int
) -> tuple[float, np.ndarray, np.ndarray]:
    """Microseconds for a gradient; means of all free parameters, and their standard errors."""
    trace = pm.sample(
        draws,
        tune=draws,
        chains=1,
        cores=1,
        model=model,
        nuts_sampler="pymc",
        random_seed=seed,
        progressbar=False,
        quiet=True,
        compute_convergence_checks=False,
        discard_tuned_samples=False,
        compile_kwargs={"mode": MODE},
        nuts={"max_treedepth": depth},
    )
    groups = (trace.sample_stats, trace.warmup_sample_stats)
    steps = sum(int(g["n_steps"].sum()) for g in groups)
    values = [np.asarray(trace.posterior[rv.name]).reshape(draws, -1) for rv in model.free_RVs]
    batches = np.concatenate(values, axis=1).reshape(10, draws // 10, -1).mean(axis=1)
    error = batches.std(axis=0, ddof=1) / np.sqrt(len(batches))
    seconds = trace.posterior.attrs["sampling_time"]
    return 1e6 * seconds / steps, batches.mean(axis=0), error


def worst_difference(model: pm.Model, plain: Any, divided: Any, points: int) -> float:
    """Differences of log-density and gradient at random points, relative to their sizes."""
    size = sum(v.size for v in model.initial_point(0).values())
    draw, worst = np.random.default_rng(5), 0.0
    for _ in range(points):
        theta = 0.3 * draw.normal(size=size)
        for a, b in zip(plain(theta), divided(theta), strict=True):
            worst = max(worst, float(np.abs(np.asarray(a) - b).max() / np.abs(a).max()))
    return worst


def best(model: pm.Model) -> float:
    """The log-density at its maximum."""
    how: dict[str, Any] = {"seed": 1, "tol": 1e-13, "compile_kwargs": {"mode": MODE}}
    found = pm.find_MAP(model=model, progressbar=False, **how)
    point = {v.name: found[v.name] for v in model.value_vars}
    return float(model.compile_logp(mode=MODE)(point))


def compare(name: str, args: argparse.Namespace) -> None:
    model = MODELS[name]()
    with threadpool_limits(1), synk.Group(2) as group, group.active():
        predicted = synk.pymc.advise(model, modes=[MODE]).speedup(2)
        plain, plain_best = compiled(model, MODE), best(model)
        how = args.draws, args.max_treedepth
        alone = [sampled(model, seed, *how) for seed in range(args.seeds)]
        with synk.pymc.parallel(model, mode=MODE):
            divided = compiled(model, MODE)
            difference = worst_difference(model, plain, divided, args.points)
            at = np.zeros(sum(v.size for v in model.initial_point(0).values()))
            gradients = [
                [microseconds(lambda f=f: f(at), 200) for f in (plain, divided)] for _ in range(5)
            ]
            divided_best = best(model)
            together = [sampled(model, seed, *how) for seed in range(args.seeds)]
    rows = []
    for seed, (a, b) in enumerate(zip(alone, together, strict=True)):
        apart = np.abs(a[1] - b[1]) / np.hypot(a[2], b[2])
        rows.append([f"seed {seed}", a[0], b[0], f"{a[0] / b[0]:.2f}", f"{apart.max():.1f}"])
    means = [np.mean([chain[1] for chain in chains], axis=0) for chains in (alone, together)]
    errors = [np.sqrt(np.sum([c[2] ** 2 for c in chains], axis=0)) for chains in (alone, together)]
    apart = np.abs(means[0] - means[1]) * args.seeds / np.hypot(*errors)
    rows.append(["all seeds", *["" for _ in range(3)], f"{apart.max():.1f}"])
    title = f"{name}: {len(means[0]):,} parameters, predicted {predicted:.2f} times as fast"
    show(title, ["us per gradient", "plain", "2 members", "times", "means apart (errors)"], rows)
    us = np.median(gradients, axis=0)
    print(f"a gradient without the sampler: {us[0]:.0f} us plain, {us[1]:.0f} us with 2 members")
    print(f"log-density and gradient at {args.points} points: apart {difference:.1e} at most")
    print(f"log-density at the maximum: {plain_best:.6f} plain, {divided_best:.6f} divided")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--max-treedepth", type=int, default=10)
    args = parser.parse_args()
    describe_machine()
    for name in args.models:
        compare(name, args)


if __name__ == "__main__":
    main()
