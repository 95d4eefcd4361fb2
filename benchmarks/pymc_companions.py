"""Models that packages build and fit: what calls `pm.sample` is theirs.

    python benchmarks/pymc_companions.py ["media mix"] ["Bambi groups"]
    python benchmarks/pymc_companions.py --fits [MODEL ...] [--draws 500]
        [--csv docs/figures/measured/pymc_companions.csv]

The first table is microseconds of a gradient at the start, by the C functions that `pm.sample` and
`synk.pymc.sample` give to nutpie: medians of calls that take turns, in one process. Data are
constants, as in what PyMC-Marketing's `fit` samples.

With --fits it is seconds of a whole `fit` of four chains, as it is and inside of
`synk.pymc.everywhere`, each in a process of its own. The first one of a way has an empty HOME, so
that all caches are empty; the second one finds them filled. The last column compares effective
draws a second of the second ones: the smallest bulk ESS of all parameters, by the whole call. --csv
writes the table of the docs after each model; what is not measured keeps its row there.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from pymc.model.transform.optimization import freeze_dims_and_data
from threadpoolctl import threadpool_limits

# Samples with arguments of `pm.sample`; and the PyMC model, whose parameters are compared.
type Fit = tuple[Callable[..., Any], pm.Model]


def media_mix() -> Fit:
    """PyMC-Marketing: a media mix of two channels, 40 regions and 104 weeks."""
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
    """Bambi: 20,000 counts, intercepts and slopes of 200 groups."""
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


def customers() -> Fit:
    """PyMC-Marketing: purchases of 5,000 customers, BG/NBD."""
    r = np.random.default_rng(0)
    count = 5_000
    rate, length = r.gamma(2, 0.1, count), r.uniform(30, 50, count)
    bought = r.poisson(rate * length)
    last = np.where(bought, length * r.beta(np.maximum(bought, 1), 1), 0.0)
    columns = {"frequency": bought, "recency": last, "T": length}
    model = import_module("pymc_marketing.clv").BetaGeoModel()
    model.build_model(data=pd.DataFrame({"customer_id": range(count), **columns}))
    return model.fit, model.model


def decisions() -> Fit:
    """HSSM: 1,000 choices and times by a diffusion, whose drift follows a covariate."""
    hssm = import_module("hssm")
    x = np.random.default_rng(0).normal(3, 1, 1_000)
    theta = {"v": 0.3 * x - 0.4, "a": 1.5, "z": 0.5, "t": 0.3}
    data = hssm.simulate_data("ddm", theta=theta, size=1, random_state=1).assign(x=x)
    model = hssm.HSSM(data, model="ddm", include=[{"name": "v", "formula": "v ~ 1 + x"}])
    return model.sample, model.pymc_model


def mixture() -> Fit:
    """pymc-extras: a mixture of 3 kinds in 5,000 rows, kinds summed out."""
    r = np.random.default_rng(0)
    kind = r.choice(3, 5_000, p=[0.2, 0.3, 0.5])
    y = r.normal(np.array([-2.0, 0.0, 3.0])[kind], 0.7)
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.ones(3))
        centres = pm.Normal("centres", [-2, 0, 2], 1)
        of_row = pm.Categorical("kind", weights, shape=len(y))
        pm.Normal("y", centres[of_row], pm.HalfNormal("noise"), observed=y)
    summed = import_module("pymc_extras").marginalize(model, ["kind"])
    return lambda **given: pm.sample(model=summed, **given), summed


def trees() -> Fit:
    """pymc-bart: a regression of 2,000 rows by 50 trees."""
    r = np.random.default_rng(0)
    x = r.uniform(-3, 3, size=(2_000, 2))
    y = np.where(x[:, 0] > 0, 2.0, -2.0) + r.normal(0, 0.3, len(x))
    with pm.Model() as model:
        mean = import_module("pymc_bart").BART("mean", x, y)
        pm.Normal("y", mean, pm.HalfNormal("noise"), observed=y, shape=mean.shape)
    return lambda **given: pm.sample(model=model, **given), model


WHOLE: dict[str, Callable[[], Fit]] = {
    "Bambi groups": groups,
    "HSSM": decisions,
    "media mix": media_mix,
    "customers": customers,
    "mixture": mixture,
    "trees": trees,
}
HEADS = (
    *("model", "``fit``, first", "under ``everywhere``, first", "``fit``, again"),
    *("under ``everywhere``, again", "times faster", "effective draws a second, times"),
)


def fitted(name: str, draws: int, ours: bool) -> None:
    """Fit once; print the seconds, and the smallest effective sample size."""
    given = {"draws": draws, "tune": draws, "chains": 4, "random_seed": 1, "progressbar": False}
    everywhere = import_module("synkhronos").pymc.everywhere if ours else nullcontext
    fit, model = WHOLE[name]()
    began = time.perf_counter()
    with everywhere():
        found = fit(**given)
    seconds = time.perf_counter() - began
    names = [rv.name for rv in model.free_RVs if rv.name in found.posterior]  # Bambi drops some
    sizes = import_module("arviz").ess(found, var_names=names, method="bulk")
    print(json.dumps([seconds, min(float(sizes[each].min()) for each in names)]))


def by(name: str, draws: int, ours: bool) -> list[tuple[float, float]]:
    """Seconds and effective sample sizes of two processes: with empty caches, and again."""
    dropped = ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "PYTENSORRC")
    env = {key: value for key, value in os.environ.items() if key not in dropped}
    words = [sys.executable, __file__, name, "--draws", str(draws), "--child", str(int(ours))]
    found = []
    with tempfile.TemporaryDirectory() as home:
        env |= {"HOME": home, "PYTENSOR_FLAGS": f"base_compiledir={home}/pytensor"}
        for _ in range(2):
            done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, check=True)
            found.append(tuple(json.loads(done.stdout.splitlines()[-1])))
    return found


def fits(names: list[str], draws: int, path: Path | None) -> None:
    """The table of whole fits."""
    rows: list[list[str]] = []
    for name in names:
        plain, ours = (by(name, draws, inside) for inside in (False, True))
        seconds = [both[i][0] for i in range(2) for both in (plain, ours)]
        rates = [ess / taken for taken, ess in (plain[1], ours[1])]
        times = seconds[2] / seconds[3], rates[1] / rates[0]
        shown = [f"{each:.2g}" if each < 10 else f"{each:.0f}" for each in seconds]
        doc = str(WHOLE[name].__doc__).removesuffix(".")
        rows.append([doc, *shown, *(f"{each:.1f}" for each in times)])
        print(rows[-1], [round(each[1]) for each in (*plain, *ours)], flush=True)
        if path is not None:
            write(rows, path)
    import_module("common").show(f"4 chains with {draws} + {draws} draws, seconds", HEADS, rows)


def write(rows: list[list[str]], path: Path) -> None:
    """Write rows into the table of the docs; those of other models stay."""
    old = list(csv.reader(path.read_text().splitlines()))[1:] if path.exists() else []
    known = {row[0]: row for row in old} | {row[0]: row for row in rows}
    order = [str(make.__doc__).removesuffix(".") for make in WHOLE.values()]
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [HEADS, *(known[name] for name in order if name in known)]
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(FITS))
    parser.add_argument("--fits", action="store_true", help="whole fits: " + ", ".join(WHOLE))
    parser.add_argument("--draws", type=int, default=500, help="of each chain, with --fits")
    parser.add_argument("--csv", type=Path, help="with --fits")
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
        fits(args.models or list(WHOLE), args.draws, args.csv)
        return
    common, corpora = import_module("common"), import_module("pymc_corpora")
    common.describe_machine()
    rows = []
    for name in args.models or FITS:
        model = freeze_dims_and_data(FITS[name]()[1])
        start = model.initial_point(0)
        with threadpool_limits(1):
            contenders = corpora.PLAIN, corpora.OURS
            both = {who: corpora.by_nutpie(who, model, start) for who in contenders}
            plain, ours = (1e6 * seconds for seconds in corpora.in_turns(both).values())
        rows.append([name, f"{plain:.1f}", f"{ours:.1f}", f"{plain / ours:.2f}"])
    common.show("A gradient", ["model", "pm.sample, us", "synk.pymc.sample, us", "times"], rows)


if __name__ == "__main__":
    main()
