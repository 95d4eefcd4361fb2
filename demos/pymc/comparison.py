"""Prints the advice, the speed-up and the agreement of the posteriors, for the PyMC demos."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm

import synkhronos as synk

warnings.filterwarnings("ignore", category=FutureWarning)


def arguments(description: str, rows: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--members", type=int, help="default: one for each core")
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--tune", type=int, default=300)
    parser.add_argument("--max-treedepth", type=int, default=10)
    parser.add_argument("--modes", nargs="+", help="that advise tries; default: all available")
    parser.add_argument("--mode", help="of the members and the sampler; default: PyTensor's")
    return parser.parse_args()


def sampled(model: Any, args: argparse.Namespace) -> tuple[float, dict[str, np.ndarray]]:
    """Seconds per gradient, without compilation, and the draws of every free variable."""
    trace = pm.sample(
        args.draws,
        tune=args.tune,
        chains=2,
        cores=1,
        model=model,
        nuts_sampler="pymc",
        random_seed=1,
        progressbar=False,
        quiet=True,
        compute_convergence_checks=False,
        discard_tuned_samples=False,
        compile_kwargs={"mode": args.mode},
        nuts={"max_treedepth": args.max_treedepth},
    )
    steps = sum(int(g["n_steps"].sum()) for g in (trace.sample_stats, trace.warmup_sample_stats))
    names = [rv.name for rv in model.free_RVs]
    seconds = trace.posterior.attrs["sampling_time"]
    return seconds / steps, {name: np.asarray(trace.posterior[name]) for name in names}


def disagreement(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference of posterior means, in standard errors of that difference.

    The error of a mean is estimated from means of batches of draws, which are nearly independent.
    """

    def mean_and_error(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = max(1, draws.shape[1] // 5)
        cut = draws[:, : 5 * size].reshape(draws.shape[0] * 5, size, -1).mean(axis=1)
        return cut.mean(axis=0), cut.std(axis=0, ddof=1) / np.sqrt(len(cut))

    (mean, error), (other, other_error) = mean_and_error(a), mean_and_error(b)
    return float((np.abs(mean - other) / np.hypot(error, other_error)).max())


def compare(make: Callable[[int], Any], args: argparse.Namespace) -> None:
    """Run the whole demo."""
    model = make(args.rows)
    with synk.Group(args.members) as group, group.active():
        advice = synk.pymc.advise(model, modes=args.modes)
        advice.show()
        plain_seconds, plain = sampled(model, args)
        with synk.pymc.parallel(model, mode=args.mode):
            seconds, divided = sampled(model, args)
        print(
            f"NUTS: {1e3 * plain_seconds:.3f} ms for each gradient plain, {1e3 * seconds:.3f} with "
            f"{group.size} members: {plain_seconds / seconds:.2f} times as fast"
        )
    # two of a thousand independent means differ by more than 4 standard errors of this kind
    n = sum(v[0, 0].size for v in plain.values())
    worst = max(disagreement(plain[name], divided[name]) for name in plain)
    limit = 4.0 + 1.5 * np.log10(n)
    print(f"posterior means of {n} parameters: {worst:.1f} standard errors apart at most")
    if worst > limit:
        raise SystemExit(f"the posteriors disagree: {worst:.1f} is above {limit:.1f}")
    print("The posteriors agree.")
