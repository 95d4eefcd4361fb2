"""Sampling as users do it: `pm.sample` with nutpie, PyMC's NUTS, numpyro, and `synk.pymc.sample`.

"low_rank" is `pm.sample` with nutpie's metric of low rank, for each model. "stanli" samples a Stan
program of the same model (`stan_programs.py`) in fast mode.

Each run is a process of its own. The first run of a contender has an empty HOME, so that PyTensor's
and numba's caches are empty; the others find them filled, and have other seeds. Times are those of
the whole call, and of sampling alone as the sampler notes it. ESS is the smallest bulk effective
sample size of all parameters. "times" compares the ESS a second with that of the first contender.

"media mix" and "Bambi groups" are fitted by PyMC-Marketing and Bambi, whose ``fit`` calls
`pm.sample`: as it is, and inside of `synk.pymc.everywhere`. They need these packages, as in the
environment of ``scripts/test --companions``.

A table for each model and number of chains is printed when it is done. The last table has the ESS a
second of all of them, and geometric means of "times". A run that fails is told, and left out.
--csv has the table of the docs after each model. What is not measured keeps its row there.

    python benchmarks/pymc_sampling.py [--chains 1,2,4] [--cores 2] [--draws 500] [--runs 3]
        [--contenders pm.sample,low_rank,synk.pymc.sample,stanli]
        [--csv docs/figures/measured/pymc_sampling.csv] [MODEL ...]
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import stan_peer
from common import describe_machine, show
from pymc_companions import FITS
from pymc_gallery_models import MODELS, with_data
from pymc_gradient import MODELS as REGRESSIONS

import synkhronos as synk

warnings.filterwarnings("ignore")

QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}
STAN, LOW_RANK = "stanli", "low_rank"
SHOWN = {STAN: STAN, LOW_RANK: "``pm.sample``, low_rank", "PyMC's NUTS": "PyMC's NUTS"}
CONTENDERS: dict[str, Callable[..., Any]] = {
    "pm.sample": lambda _, **given: pm.sample(nuts_sampler="nutpie", **given, **QUIET),
    LOW_RANK: lambda _, **given: pm.sample(
        nuts_sampler="nutpie", nuts={"adaptation": "low_rank"}, **given, **QUIET
    ),
    "PyMC's NUTS": lambda _, **given: pm.sample(nuts_sampler="pymc", **given, **QUIET),
    "numpyro": lambda _, **given: pm.sample(nuts_sampler="numpyro", **given, **QUIET),
    "synk.pymc.sample": lambda _, **given: synk.pymc.sample(**given, **QUIET),
    STAN: stan_peer.sample,
}


IN_FITS: dict[str, Callable[[], Any]] = {
    "pm.sample": nullcontext,
    "synk.pymc.sample": synk.pymc.everywhere,
}


def model_named(name: str) -> pm.Model:
    return with_data(MODELS[name]) if name in MODELS else REGRESSIONS[name]()


def child(name: str, contender: str, seed: int, given: dict[str, int]) -> None:
    """Sample once; print seconds and the smallest effective sample size."""
    given = {**given, "tune": given["draws"], "random_seed": seed}
    if name in FITS:
        fit, model = FITS[name]()
        began = time.perf_counter()
        with IN_FITS[contender]():
            found = fit(**given, progressbar=False)
    else:
        model = model_named(name)
        began = time.perf_counter()
        found = CONTENDERS[contender](name, model=model, **given)
    seconds = time.perf_counter() - began
    ours = contender != STAN
    names = [rv.name for rv in model.free_RVs] if ours else list(found.posterior.data_vars)
    names = [n for n in names if n in found.posterior]  # Bambi drops some
    sizes = az.ess(found, var_names=names, method="bulk")
    smallest = min(float(np.nanmin(sizes[name].values)) for name in names)
    sampling = float(found.posterior.attrs["sampling_time"])
    print(json.dumps({"seconds": seconds, "sampling": sampling, "ess": smallest}))


@dataclass(frozen=True)
class Rates:
    """Effective draws a second: of the whole call, and of sampling alone; the cells of a row."""

    call: float
    sampling: float
    cells: tuple[Any, ...]


# by model, number of chains, and contender
type Found = dict[tuple[str, int, str], Rates]


def run(
    name: str, contender: str, seed: int, given: dict[str, int], home: Path
) -> dict[str, Any] | None:
    """Sample in a process whose HOME and caches are in this folder; None if that fails."""
    dropped = ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "PYTENSORRC")
    env = {k: v for k, v in os.environ.items() if k not in dropped}
    env |= {"HOME": str(home), "PYTENSOR_FLAGS": f"base_compiledir={home / 'pytensor'}"}
    asked = [name, contender, str(seed), json.dumps(given)]
    done = subprocess.run(
        [sys.executable, __file__, "--child", *asked],
        env=env,
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1]
        print(f"{name}, {given['chains']} chains, {contender}: {reason}", flush=True)
        return None
    lines = [line for line in done.stderr.splitlines() if line.startswith("synkhronos: ")]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"line": lines[-1] if lines else ""}


def compare(name: str, contenders: list[str], runs: int, given: dict[str, int]) -> Found:
    """Print a table of one model; returns its rates."""
    rows: list[list[Any]] = []
    lines: list[str] = []
    rates: Found = {}
    for contender in contenders:
        if contender == STAN and name not in stan_peer.PROGRAMS:
            continue
        if name in FITS and contender not in IN_FITS:
            continue
        with tempfile.TemporaryDirectory() as home:
            done = [run(name, contender, s, given, Path(home)) for s in range(runs + 1)]
        cold, *warm = [d or {} for d in done]
        warm = [w for w in warm if w]
        if not (cold and warm):
            continue
        lines += [cold["line"]] if cold["line"] else []
        means = [median([w["ess"] / w[of] for w in warm]) for of in ("seconds", "sampling")]
        cells = [median([w[of] for w in warm]) for of in ("seconds", "sampling", "ess")]
        mean = Rates(*means, (cold["seconds"], *cells))
        rates[name, given["chains"], contender] = mean
        rows.append([contender, *mean.cells, f"{mean.call:.2f}", f"{mean.sampling:.2f}"])
    columns = ["", "cold, s", "warm, s", "sampling, s", "ESS", "ESS/s", "of sampling"]
    show(f"{name}: {given['chains']} chains on {given['cores']} cores", columns, rows)
    print(*lines, sep="\n", flush=True)
    return rates


def median(numbers: list[float]) -> float:
    return float(np.median(numbers))


def summarise(rates: Found, first: str) -> None:
    """Print all rates, and geometric means of those beside the first contender's."""
    rows = []
    ratios: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for (name, chains, contender), found in rates.items():
        row = [
            f"{name}, {chains} chains, {contender}",
            f"{found.call:.2f}",
            f"{found.sampling:.2f}",
        ]
        base = rates.get((name, chains, first))
        if base is not None and contender != first:
            ratio = found.call / base.call, found.sampling / base.sampling
            ratios.setdefault((chains, contender), []).append(ratio)
            row += [f"{times:.2f}" for times in ratio]
        rows.append(row)
    for (chains, contender), known in ratios.items():
        means = np.exp(np.mean(np.log(known), axis=0))
        what = f"geometric mean of {len(known)}, {chains} chains, {contender}"
        rows.append([what, "", "", *[f"{times:.2f}" for times in means]])
    columns = ["", "whole call", "sampling", f"times {first}", "of sampling"]
    show("smallest bulk ESS a second", columns, rows)


def write(rates: Found, path: Path) -> None:
    """Write the rows of two chains into the table of the docs; other rows stay."""
    with path.open(newline="") as file:
        head, *rows = csv.reader(file)
    known = {row[0]: row for row in rows}
    for (name, chains, contender), found in rates.items():
        if chains == 2:
            of = f"{name}, {SHOWN.get(contender, f'``{contender}``')}"
            cold, warm, sampling, ess = found.cells
            seconds = [f"{each:.1f}" for each in (cold, warm, sampling)]
            known[of] = [of, *seconds, f"{ess:,.0f}", f"{found.call:.2f}"]
    shown = [SHOWN.get(contender, f"``{contender}``") for contender in CONTENDERS]
    models = list(dict.fromkeys(of.partition(", ")[0] for of in known))
    ordered = [known[of] for m in models for way in shown if (of := f"{m}, {way}") in known]
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *ordered])


def counts(text: str) -> list[int]:
    return [int(count) for count in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
    parser.add_argument("--chains", type=counts, default=[2], metavar="COUNT,...")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--contenders", default="pm.sample,synk.pymc.sample")
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    known = {**MODELS, **REGRESSIONS, **FITS}
    if unknown := set(args.models) - set(known):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    contenders = args.contenders.split(",")
    if unknown := set(contenders) - set(CONTENDERS):
        parser.error(f"no contender {', '.join(unknown)}; there are: {', '.join(CONTENDERS)}")
    if STAN in contenders and not stan_peer.installed():
        contenders.remove(STAN)
        print(stan_peer.MISSING)
    describe_machine()
    print(f"PyMC {pm.__version__}")
    rates: Found = {}
    for name, count in itertools.product(args.models, args.chains):
        given = {"draws": args.draws, "chains": count, "cores": args.cores}
        rates |= compare(name, contenders, args.runs, given)
        if args.csv:
            write(rates, args.csv)
    summarise(rates, contenders[0])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]), json.loads(sys.argv[5]))
    else:
        main()
