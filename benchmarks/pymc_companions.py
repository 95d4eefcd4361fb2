"""Models that packages build and fit: what calls `pm.sample` is theirs.

    python benchmarks/pymc_companions.py ["media mix"] ["Bambi groups"] [--seconds 4]

This is microseconds of a gradient at the start, by the C functions that `pm.sample` and
`synk.pymc.sample` give to nutpie: medians of calls that take turns, in one process. Data are
constants, as in what PyMC-Marketing's `fit` samples.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from pymc.model.transform.optimization import freeze_dims_and_data
from threadpoolctl import threadpool_limits

# Samples with arguments of `pm.sample`; and the PyMC model, whose parameters are compared.
type Fit = tuple[Callable[..., Any], pm.Model]


def media_mix() -> Fit:
    """A media mix of two channels in 40 regions, two years of weeks."""
    mmm = import_module("pymc_marketing.mmm")
    r = np.random.default_rng(0)
    regions, weeks = 40, 104
    rows = regions * weeks
    data = pd.DataFrame(
        {
            "date": np.tile(pd.date_range("2023-01-01", periods=weeks, freq="W"), regions),
            "geo": np.repeat([f"region {i}" for i in range(regions)], weeks),
            "tv": r.gamma(2, 1, rows),
            "web": r.gamma(2, 1, rows),
        }
    )
    sales = pd.Series(1 + 0.5 * data.tv + 0.2 * data.web + r.normal(0, 0.1, rows), name="y")
    model = mmm.MMM(
        date_column="date",
        dims=("geo",),
        channel_columns=["tv", "web"],
        target_column="y",
        adstock=mmm.GeometricAdstock(l_max=4),
        saturation=mmm.LogisticSaturation(),
    )
    model.build_model(data, sales)
    return lambda **given: model.fit(data, sales, **given), model.model


def groups() -> Fit:
    """A Bambi model of counts with effects of 200 groups, by intercept and slope."""
    bambi = import_module("bambi")
    r = np.random.default_rng(0)
    rows, count = 20_000, 200
    group = r.integers(0, count, rows)
    x, z = r.normal(size=(2, rows))
    effect, slope = r.normal(0, 0.5, (2, count))
    rate = np.exp(1 + 0.3 * x - 0.2 * z + effect[group] + 0.2 * slope[group] * x)
    data = pd.DataFrame({"y": r.poisson(rate), "x": x, "z": z, "group": group.astype(str)})
    model = bambi.Model("y ~ x + z + (x|group)", data, family="poisson")
    model.build()
    return model.fit, model.backend.model


FITS: dict[str, Callable[[], Fit]] = {"media mix": media_mix, "Bambi groups": groups}


def times(calls: list[Callable[[], object]], seconds: float) -> list[float]:
    """Microseconds of each call, which take turns; medians."""
    taken: list[list[float]] = [[] for _ in calls]
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for call, found in zip(calls, taken, strict=True):
            call()  # the other one's data are in the caches
            for _ in range(10):
                began = time.perf_counter()
                call()
                found.append(1e6 * (time.perf_counter() - began))
    return [float(np.median(found)) for found in taken]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(FITS))
    parser.add_argument("--seconds", type=float, default=4.0)
    args = parser.parse_args()
    if unknown := set(args.models) - FITS.keys():
        raise SystemExit(f"there is no model {', '.join(sorted(unknown))}: {', '.join(FITS)}")
    common, corpora = import_module("common"), import_module("pymc_corpora")
    common.describe_machine()
    rows = []
    for name in args.models or FITS:
        model = freeze_dims_and_data(FITS[name]()[1])
        start = model.initial_point(0)
        with threadpool_limits(1):
            both = [corpora.by_nutpie(who, model, start) for who in (corpora.PLAIN, corpora.OURS)]
            plain, ours = times(both, args.seconds)
        rows.append([name, f"{plain:.1f}", f"{ours:.1f}", f"{plain / ours:.2f}"])
    common.show("A gradient", ["model", "pm.sample, us", "synk.pymc.sample, us", "times"], rows)


if __name__ == "__main__":
    main()
