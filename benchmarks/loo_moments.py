"""Moment matching of the rows with a large Pareto k: seconds of `loo` with and without it.

The model is a Poisson regression with effects of groups, of which most have one row only. Its draws
are those of a fit by `sample`. ArviZ matches the moments of a few rows, those with the largest k:
for all of them it would take hours. The peak memory is that of this process and of its largest
child.

    python benchmarks/loo_moments.py [--rows 20591] [--groups 1200] [--draws 1000] [--arviz-rows 2]
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
from common import answer_help, describe_machine, show

import synkhronos as synk
import synkhronos.pymc


def model_of(rows: int, groups: int) -> pm.Model:
    """Three of four groups have one row, which decides their effect alone."""
    r = np.random.default_rng(1)
    alone = 3 * groups // 4
    group = np.concatenate([np.arange(alone), r.integers(alone, groups, rows - alone)])
    x = r.normal(size=(rows, 5))
    effect = r.normal(0, 0.8, groups)
    y = r.poisson(np.exp(0.5 + 0.2 * x @ r.normal(size=5) + effect[group]))
    with pm.Model() as model:
        s = pm.HalfNormal("s")
        effects = pm.Normal("effects", shape=groups)
        slopes = pm.Normal("slopes", shape=5)
        mean = pm.Normal("mean") + x @ slopes + s * effects[group]
        pm.Poisson("y", pm.math.exp(mean), observed=y)
    return model


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = call()
    return found, time.perf_counter() - began


def peak() -> float:
    """MiB."""
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return sum(resource.getrusage(kind).ru_maxrss for kind in kinds) / 1024


def main() -> None:
    answer_help(__doc__)
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_591)
    parser.add_argument("--groups", type=int, default=1200)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--arviz-rows", type=int, default=2)
    given = parser.parse_args()
    describe_machine()
    model = model_of(given.rows, given.groups)
    how = {"random_seed": 1, "progressbar": False}
    idata, seconds = timed(
        lambda: synk.pymc.sample(given.draws, tune=500, chains=4, model=model, **how)
    )
    lines = [["sample: 4 chains", f"{seconds:.1f}", "", "", ""]]
    first, seconds = timed(lambda: synk.pymc.loo(idata, True, model=model, progressbar=False))
    bad = int((first.pareto_k > first.good_k).sum())
    lines.append(["loo", f"{seconds:.1f}", f"{bad}", f"{first.elpd:.1f}", f"{peak():,.0f}"])
    for cores in (None, 1):
        matched, seconds = timed(
            lambda cores=cores: synk.pymc.loo(
                idata, True, model=model, moment_match=True, progressbar=False, cores=cores
            )
        )
        left = int((matched.pareto_k > matched.good_k).sum())
        name = f"loo(moment_match=True), {'all cores' if cores is None else 'one process'}"
        numbers = [f"{left}", f"{matched.elpd:.1f}", f"{peak():,.0f}"]
        lines.append([name, f"{seconds:.1f}", *numbers])
    if given.arviz_rows:
        import arviz_stats

        with model:
            pm.stats.compute_log_likelihood(idata, progressbar=False)
        plain = arviz_stats.loo(idata, pointwise=True)
        limit = np.sort(plain.pareto_k.values)[-given.arviz_rows - 1]
        _, seconds = timed(
            lambda: arviz_stats.loo_moment_match(idata, plain, k_threshold=limit, model=model)
        )
        name = f"ArviZ's loo_moment_match, {given.arviz_rows} of {bad} rows"
        lines.append([name, f"{seconds:.1f}", "", "", f"{peak():,.0f}"])
    columns = ["", "s", "rows with a large k", "elpd", "MiB"]
    title = f"{given.rows:,} rows, {4 * given.draws:,} draws, {given.groups + 7} parameters"
    show(title, columns, lines)


if __name__ == "__main__":
    main()
