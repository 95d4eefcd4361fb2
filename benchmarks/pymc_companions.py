"""Models that packages build and fit: what calls `pm.sample` is theirs.

    python benchmarks/pymc_companions.py ["media mix"] ["Bambi groups"] [--seconds 4]
    python benchmarks/pymc_companions.py --fits [MODEL ...] [--draws 500]

The first table is microseconds of a gradient at the start, by the C functions that `pm.sample` and
`synk.pymc.sample` give to nutpie: medians of calls that take turns, in one process. Data are
constants, as in what PyMC-Marketing's `fit` samples.

With --fits it is seconds of the clock and of all processors for a whole `fit` with four chains, as
it is and inside of `synk.pymc.everywhere`. Each is the second of two processes, so that compiled
code is in the caches. HSSM gets nutpie in both.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
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


def customers() -> Callable[..., Any]:
    """Purchases of 5,000 customers, by BG/NBD of PyMC-Marketing."""
    r = np.random.default_rng(0)
    count = 5_000
    rate, length = r.gamma(2, 0.1, count), r.uniform(30, 50, count)
    bought = r.poisson(rate * length)
    last = np.where(bought, length * r.beta(np.maximum(bought, 1), 1), 0.0)
    columns = {"frequency": bought, "recency": last, "T": length}
    data = pd.DataFrame({"customer_id": range(count), **columns})
    model = import_module("pymc_marketing.clv").BetaGeoModel()
    return lambda **given: model.fit(data=data, **given)


def decisions() -> Callable[..., Any]:
    """1,000 choices and times by a diffusion whose drift follows a covariate, by HSSM."""
    hssm = import_module("hssm")
    x = np.random.default_rng(0).normal(3, 1, 1_000)
    theta = {"v": 0.3 * x - 0.4, "a": 1.5, "z": 0.5, "t": 0.3}
    data = hssm.simulate_data("ddm", theta=theta, size=1, random_state=1).assign(x=x)
    model = hssm.HSSM(data, model="ddm", include=[{"name": "v", "formula": "v ~ 1 + x"}])
    return lambda **given: model.sample(sampler="nutpie", **given)


def trees() -> Callable[..., Any]:
    """A regression of 2,000 rows by 50 trees of pymc-bart."""
    r = np.random.default_rng(0)
    x = r.uniform(-3, 3, size=(2_000, 2))
    y = np.where(x[:, 0] > 0, 2.0, -2.0) + r.normal(0, 0.3, len(x))
    with pm.Model() as model:
        mean = import_module("pymc_bart").BART("mean", x, y)
        pm.Normal("y", mean, pm.HalfNormal("noise"), observed=y, shape=mean.shape)
    return lambda **given: pm.sample(model=model, **given)


WHOLE: dict[str, Callable[[], Callable[..., Any]]] = {
    "Bambi groups": lambda: groups()[0],
    "HSSM": decisions,
    "media mix": lambda: media_mix()[0],
    "customers": customers,
    "trees": trees,
}


def fitted(name: str, draws: int, ours: bool) -> None:
    """Fit once; print the seconds of the clock and of all processors."""
    given = {"draws": draws, "tune": draws, "chains": 4, "random_seed": 1, "progressbar": False}
    everywhere = import_module("synkhronos").pymc.everywhere if ours else nullcontext
    fit = WHOLE[name]()
    began, used = time.perf_counter(), processor_seconds()
    with everywhere():
        fit(**given)
    print(json.dumps([time.perf_counter() - began, processor_seconds() - used]))


def processor_seconds() -> float:
    """Of this process and of those that it has started, once they have ended."""
    each = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in each)


def fits(names: list[str], draws: int) -> None:
    """The table of whole fits."""
    rows = []
    for name in names:
        found: list[float] = []
        for ours in (False, True):
            words = [
                sys.executable,
                __file__,
                name,
                "--draws",
                str(draws),
                "--child",
                str(int(ours)),
            ]
            for _ in range(2):
                done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
            found += json.loads(done.stdout.splitlines()[-1])
        clock, plain, ours_clock, ours_all = found
        cells = clock, ours_clock, plain, ours_all
        rows.append([name, *(f"{seconds:.1f}" for seconds in cells), f"{plain / ours_all:.1f}"])
        print(rows[-1], flush=True)
    heads = "model", "seconds", "inside", "processor s", "inside", "times"
    import_module("common").show(f"4 chains with {draws} + {draws} draws", heads, rows)


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
    parser.add_argument("--fits", action="store_true", help="whole fits: " + ", ".join(WHOLE))
    parser.add_argument("--draws", type=int, default=500, help="of each chain, with --fits")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        fitted(args.models[0], args.draws, bool(args.child))
        return
    known = WHOLE if args.fits else FITS
    if unknown := set(args.models) - known.keys():
        raise SystemExit(f"there is no model {', '.join(sorted(unknown))}: {', '.join(known)}")
    if args.fits:
        import_module("common").describe_machine()
        fits(args.models or list(WHOLE), args.draws)
        return
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
