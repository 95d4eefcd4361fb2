"""Sampling as users do it: `pm.sample` with nutpie, PyMC's NUTS, numpyro, and `synk.pymc.sample`.

"stanli" samples a Stan program of the same model (`stan_programs.py`) in fast mode.

Each run is a process of its own. The first run of a contender has an empty HOME, so that PyTensor's
and numba's caches are empty; the others find them filled, and have other seeds. Times are those of
the whole call, and of sampling alone as the sampler notes it. ESS is the smallest bulk effective
sample size of all parameters. "times" compares the ESS a second with that of `pm.sample`.

    python benchmarks/pymc_sampling.py [--chains 2] [--cores 2] [--draws 500] [--runs 3]
        [--contenders pm.sample,synk.pymc.sample] [MODEL ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import stan_peer
from common import describe_machine, show
from pymc_gallery_models import MODELS, with_data
from pymc_gradient import MODELS as REGRESSIONS

import synkhronos as synk

warnings.filterwarnings("ignore")

QUIET = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}
STAN = "stanli"
CONTENDERS: dict[str, Callable[..., Any]] = {
    "pm.sample": lambda _, **given: pm.sample(nuts_sampler="nutpie", **given, **QUIET),
    "PyMC's NUTS": lambda _, **given: pm.sample(nuts_sampler="pymc", **given, **QUIET),
    "numpyro": lambda _, **given: pm.sample(nuts_sampler="numpyro", **given, **QUIET),
    STAN: stan_peer.sample,
    "synk.pymc.sample": lambda _, **given: synk.pymc.sample(**given, **QUIET),
}


def model_named(name: str) -> pm.Model:
    return with_data(MODELS[name]) if name in MODELS else REGRESSIONS[name]()


def child(name: str, contender: str, seed: int, given: dict[str, int]) -> None:
    """Sample once; print seconds and the smallest effective sample size."""
    model = model_named(name)
    began = time.perf_counter()
    found = CONTENDERS[contender](name, model=model, random_seed=seed, tune=given["draws"], **given)
    seconds = time.perf_counter() - began
    ours = contender != STAN
    names = [rv.name for rv in model.free_RVs] if ours else list(found.posterior.data_vars)
    sizes = az.ess(found, var_names=names, method="bulk")
    smallest = min(float(np.nanmin(sizes[name].values)) for name in names)
    sampling = float(found.posterior.attrs["sampling_time"])
    print(json.dumps({"seconds": seconds, "sampling": sampling, "ess": smallest}))


def run(name: str, contender: str, seed: int, given: dict[str, int], home: Path) -> dict[str, Any]:
    """Sample in a process whose HOME and caches are in this folder."""
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
        raise SystemExit(done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.startswith("synkhronos: ")]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"line": lines[-1] if lines else ""}


def compare(name: str, contenders: list[str], runs: int, given: dict[str, int]) -> None:
    """Print a table of one model."""
    rows, base = [], (float("nan"), float("nan"))
    lines: list[str] = []
    if name not in stan_peer.PROGRAMS and STAN in contenders:
        print(f"{name} has no Stan program: {STAN} is left out")
        contenders = [c for c in contenders if c != STAN]
    for contender in contenders:
        with tempfile.TemporaryDirectory() as home:
            cold, *warm = [run(name, contender, s, given, Path(home)) for s in range(runs + 1)]
        lines += [cold["line"]] if cold["line"] else []
        by_call = float(np.median([w["ess"] / w["seconds"] for w in warm]))
        by_sampling = float(np.median([w["ess"] / w["sampling"] for w in warm]))
        if contender == contenders[0]:
            base = by_call, by_sampling
        rows.append(
            [
                contender,
                cold["seconds"],
                float(np.median([w["seconds"] for w in warm])),
                float(np.median([w["sampling"] for w in warm])),
                float(np.median([w["ess"] for w in warm])),
                f"{by_call:.2f}",
                f"{by_call / base[0]:.2f}",
                f"{by_sampling / base[1]:.2f}",
            ]
        )
    columns = ["", "cold, s", "warm, s", "sampling, s", "ESS", "ESS/s", "times", "of sampling"]
    show(f"{name}: {given['chains']} chains on {given['cores']} cores", columns, rows)
    print(*lines, sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--contenders", default="pm.sample,synk.pymc.sample")
    args = parser.parse_args()
    known = {**MODELS, **REGRESSIONS}
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
    given = {"draws": args.draws, "chains": args.chains, "cores": args.cores}
    for name in args.models:
        compare(name, contenders, args.runs, given)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]), json.loads(sys.argv[5]))
    else:
        main()
