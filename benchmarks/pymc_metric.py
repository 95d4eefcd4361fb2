"""The metrics of nutpie, `adaptation="auto"`, and other samplers: effective draws for their cost.

Models are those of pymc_gallery_models.py, of benchmarks/catalogue, and 40 of a folder of
posteriordb with PyMC models (its models/pymc, data, posteriors and reference_posteriors), which is
posterior_database of https://github.com/twiecki/posteriordb. Each has a process of its own, which
samples once with diag to compile, and then with each metric and seed in turn.
nutpie samples by `synk.pymc.sample`. "blackjax" has its low-rank warm-up, and "walnutpie" its own
diagonal metric, both with the log-density of `fast`; they are left out if they are not installed
(`pip install --target FOLDER blackjax walnutpie`, PYTHONPATH=FOLDER).

    python benchmarks/pymc_metric.py [MODEL ...] [--posteriordb FOLDER] [--metrics diag,auto]
        [--seeds 4] [--draws 1000] [--chains 2] [--jobs 1] [--short] [--tables-only]
        [--results benchmarks/results/metric.json] [--csv docs/figures/measured/pymc_metric.csv]
        [--figure docs/figures/pymc_metric.svg]
    python benchmarks/pymc_metric.py --options docs/figures/measured/pymc_metric_options.csv
        [--draws 500] [--seeds 2] [--results benchmarks/results/metric_options.json]

A metric may have options: "low_rank:cutoff=10", "diag:accept=0.9", "auto:tune=300/start=mode". A
start is the mode, or a draw of Pathfinder, by pymc-extras if that is installed; the gradients that
it takes are not counted, but its seconds are those of the call. --options measures four models with
many of them, and with the other samplers, and writes what each has by diag.

ESS is the smallest bulk (or tail) effective sample size of all parameters. Gradients are those of
warm-up and draws together. Seconds are of the processor: of nutpie's call, and of the whole call
with the choice of a metric. The first seed of auto checks that its draws are those of the metric
that it takes, and the others are not sampled again. Compiling is left out: it is the same for all.
"errors" is the largest distance of a mean to that of reference draws, in Monte Carlo standard
errors of both; without reference draws it is that to the means of diag. A model that was measured
is not measured again: --results has it. --short has twelve models, two metrics and two seeds, for
ten minutes.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import itertools
import json
import logging
import os
import re
import resource
import subprocess
import sys
import time
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from common import describe_machine, show

OPTIONS = {"cutoff": "mass_matrix_eigval_cutoff", "gamma": "mass_matrix_gamma"}
OPTIONS["accept"] = "target_accept"
METRICS = ["diag", "auto", "low_rank", "draw_diag", "low_rank:cutoff=10", "low_rank:gamma=0.001"]
OTHERS = ["blackjax", "walnutpie"]
OF_OPTIONS = [
    *METRICS, "diag:accept=0.7", "diag:accept=0.9", "low_rank:accept=0.9", "diag:tune=250",
    "low_rank:tune=250", "diag:start=mode", "low_rank:start=mode",
]  # fmt: skip
WITH_OPTIONS = ("cumulative", "mvnormal", "election88", "radon")
# with low_rank they take minutes, so that such a model must be named for it
LONG = {"radon", "trolley", "irt", "frailty", "bnn", "factorisation", "survey", "regression"}
CATALOGUE = (
    *("eight schools", "kid scores", "wells", "incomes", "rugby", "cafes", "rats", "sleep study"),
    *("chimpanzees", "cherry blossoms", "contraception", "bioassay", "BEST", "tools of islands"),
    *("divorces", "Rasch", "local level", "seizures"),
)
POSTERIORDB = (
    *("GLMM_Poisson_model", "GLM_Binomial_model", "GLM_Poisson_model", "M0_model", "Mb_model"),
    *("Rate_4_model", "Survey_model", "accel_splines", "arK", "blr", "bones_model"),
    *("diamonds", "dogs", "dogs_hierarchical", "dugongs_model", "earn_height"),
    *("eight_schools_centered", "eight_schools_noncentered", "garch11", "gp_pois_regr", "gp_regr"),
    *("hmm_example", "kidscore_interaction", "kidscore_mom_work", "kilpisjarvi"),
    *("logearn_interaction", "logearn_interaction_z", "logmesquite_logvash", "losscurve_sislob"),
    *("low_dim_gauss_mix", "mesquite", "nes", "nes_logit_model", "pilots", "radon_pooled"),
    *("rats_model", "seeds_model", "surgical_model", "wells_dae_inter_model", "wells_dist"),
)
SHORT = (
    *("cumulative", "election88", "mvnormal", "censored"),
    *("eight schools", "kid scores", "wells", "incomes", "rats", "sleep study", "chimpanzees"),
    "cherry blossoms",
)
QUIET = {"progressbar": False, "compute_convergence_checks": False}
PRESETS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # of development machines: they slow BLAS down


# one model, in a process of its own


def model_of(name: str, posteriordb: str) -> Any:
    from pymc_catalogue import load
    from pymc_gallery_models import MODELS, with_data

    if posteriordb:
        return load(Path(posteriordb) / "models" / "pymc" / f"{name}.py")[0]
    if name in MODELS and name not in CATALOGUE:
        return with_data(MODELS[name])
    return load(Path(__file__).parent / "catalogue", name)[0]


class Spent:
    """Processor seconds in which nutpie.sample draws, and those of choosing, of the last call."""

    def __init__(self) -> None:
        import nutpie

        self._sample = nutpie.sample
        self.begin()
        nutpie.sample = self

    def begin(self) -> None:
        self.sampling, self.choosing, self._began = 0.0, 0.0, 0.0

    def __call__(self, *args: Any, **given: Any) -> Any:
        began = time.process_time()
        self._began = self._began or began
        if given.get("store_gradient"):  # the short warm-up
            return self._sample(*args, **given)
        self.choosing = self.choosing or began - self._began
        found = self._sample(*args, **given)
        self.sampling += time.process_time() - began
        return found


def by_nutpie(model: Any, metric: str, seed: int, given: Mapping[str, int], spent: Spent) -> Any:
    """The tree, the gradients, seconds of the sampler and of the rest, and the line that chose."""
    import synkhronos as synk

    metric, _, text = metric.partition(":")
    options = dict(option.split("=") for option in text.split("/") if option)
    nuts = {OPTIONS[name]: float(value) for name, value in options.items() if name in OPTIONS}
    given = {**given, "tune": int(options.get("tune", given["tune"]))}
    lines = _Lines()
    spent.begin()
    began = time.process_time()
    start = STARTS[options.get("start", "prior")](model, seed)
    tree = synk.pymc.sample(
        model=model, random_seed=seed, adaptation=metric, nuts=nuts, cores=2, initvals=start,
        discard_tuned_samples=False, nuts_sampler="nutpie", **given, **QUIET,
    )  # fmt: skip
    call = time.process_time() - began
    groups = (tree["sample_stats"], tree["warmup_sample_stats"])
    gradients = sum(int(group["n_steps"].sum()) for group in groups)
    diverging = int(tree["sample_stats"]["diverging"].sum())
    rest = call - spent.sampling - spent.choosing
    return tree, gradients, spent.sampling, rest, diverging, lines.end()


def mode(model: Any, _: int) -> Any:
    import pymc as pm

    found = pm.find_MAP(model=model, progressbar=False)
    return {rv.name: found[rv.name] for rv in model.free_RVs}


def pathfinder(model: Any, seed: int) -> Any:
    """A draw of it: all chains start there, each with nutpie's jitter."""
    import pymc_extras

    found = pymc_extras.fit_pathfinder(
        model=model, num_draws=100, random_seed=seed, compile_kwargs={"mode": "NUMBA"}
    )
    return {rv.name: found.posterior[rv.name].values[0, 0] for rv in model.free_RVs}


STARTS: dict[str, Callable[[Any, int], Any]] = {
    "prior": lambda *_: None, "mode": mode, "pathfinder": pathfinder,
}  # fmt: skip


class _Lines(logging.Handler):
    """The line that tells a choice."""

    def __init__(self) -> None:
        super().__init__()
        self._line = ""
        logging.getLogger("synkhronos").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("metric "):
            self._line = record.getMessage()

    def end(self) -> str:
        logging.getLogger("synkhronos").removeHandler(self)
        return self._line


class Counted:
    """The log-density of `fast` and its gradient at an unconstrained vector, counted."""

    def __init__(self, model: Any) -> None:
        import synkhronos as synk

        found = synk.pymc.fast(model)
        self.model, self.count = found, 0
        self._function = found.logp_dlogp_function(ravel_inputs=True, mode="NUMBA")
        self._function.set_extra_values({})
        start = found.initial_point(0)
        self.start = np.concatenate([np.ravel(start[v.name]) for v in found.continuous_value_vars])

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        self.count += 1
        value, gradient = self._function(np.asarray(x, "float64"))
        return float(value), np.asarray(gradient, "float64")


def by_walnutpie(counted: Counted, seed: int, given: Mapping[str, int]) -> np.ndarray:
    import walnutpie

    near = np.random.default_rng(seed).uniform(-1, 1, (given["chains"], counted.start.size))
    found = walnutpie.walnuts_pyfunc(
        counted, inits=counted.start + near, num_chains=given["chains"], seed=seed,
        min_warmup_iter=given["tune"], max_warmup_iter=given["tune"],
        min_sampling_iter=given["draws"], max_sampling_iter=given["draws"],
    )  # fmt: skip
    return np.stack([np.asarray(chain) for chain in found])


def by_blackjax(counted: Counted, seed: int, given: Mapping[str, int]) -> np.ndarray:
    import blackjax
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    size = counted.start.size
    kinds = (jax.ShapeDtypeStruct((), "float64"), jax.ShapeDtypeStruct((size,), "float64"))

    def called(x: Any) -> Any:
        value, gradient = counted(np.asarray(x))
        return np.asarray(value), gradient

    @jax.custom_vjp
    def density(x: Any) -> Any:
        return jax.pure_callback(called, kinds, x)[0]

    density.defvjp(
        lambda x: jax.pure_callback(called, kinds, x), lambda gradient, by: (by * gradient,)
    )
    chains = []
    for key in jax.random.split(jax.random.key(seed), given["chains"]):
        first, second, third = jax.random.split(key, 3)
        start = counted.start + np.asarray(jax.random.uniform(first, (size,), minval=-1, maxval=1))
        warmup = blackjax.window_adaptation_low_rank(blackjax.nuts, density)
        (state, found), _ = warmup.run(second, jnp.asarray(start), given["tune"])
        step = blackjax.nuts(density, **found).step
        drawn = jax.lax.scan(
            lambda state, key, step=step: (lambda new: (new, new.position))(step(key, state)[0]),
            state, jax.random.split(third, given["draws"]),
        )[1]  # fmt: skip
        chains.append(np.asarray(drawn))
    return np.stack(chains)


def by_another(name: str, model: Any, seed: int, given: Mapping[str, int]) -> Any:
    """As `by_nutpie`; draws are turned back into parameters."""
    from xarray import Dataset

    counted = Counted(model)
    counted(counted.start)  # which compiles
    counted.count, began = 0, time.process_time()
    draws = {"walnutpie": by_walnutpie, "blackjax": by_blackjax}[name](counted, seed, given)
    seconds = time.process_time() - began
    found, at = {}, 0
    for v in counted.model.continuous_value_vars:
        size = int(np.prod(np.shape(counted.model.initial_point(0)[v.name])))
        found[v.name] = (("chain", "draw", f"{v.name}_dim"), draws[..., at : at + size])
        at += size
    tree = {"posterior": Dataset(found, {"chain": range(len(draws))})}
    return tree, counted.count, seconds, 0.0, 0, ""


def sizes(draws: Any) -> dict[str, float]:
    from arviz_stats import ess

    smallest = {}
    for method in ("bulk", "tail"):
        found = ess(draws, method=method)
        smallest[method] = min(float(np.nanmin(v.values)) for v in found.data_vars.values())
    return smallest


def moments(draws: Any) -> dict[str, list[float]]:
    """The mean of each scalar, and its Monte Carlo standard error."""
    from arviz_stats import mcse

    errors = mcse(draws, method="mean")
    found = {}
    for name, values in draws.data_vars.items():
        means = np.ravel(values.mean(["chain", "draw"]))
        for i, (mean, error) in enumerate(zip(means, np.ravel(errors[name]), strict=True)):
            found[f"{name}[{i + 1}]"] = [float(mean), float(error)]
    return found


def references(name: str, posteriordb: str) -> dict[str, list[float]]:
    """The means of the reference draws of posteriordb, and their standard errors."""
    if not posteriordb:
        return {}
    base = Path(posteriordb)
    for file in sorted((base / "posteriors").glob("*.json")):
        entry = json.loads(file.read_text())
        place = base / "reference_posteriors" / "draws" / "draws"
        packed = place / f"{entry['reference_posterior_name']}.json.zip"
        data = base / "data" / "data" / f"{entry['data_name']}.json.zip"
        if entry["model_name"] == name and packed.exists() and data.exists():
            with zipfile.ZipFile(packed) as folder:
                chains = json.loads(folder.read(folder.namelist()[0]))
            found = {}
            for scalar in chains[0]:
                draws = np.concatenate([chain[scalar] for chain in chains])
                key = scalar if scalar.endswith("]") else f"{scalar}[1]"
                found[key] = [float(draws.mean()), float(draws.std() / np.sqrt(draws.size))]
            return found
    return {}


def child(name: str, posteriordb: str, metrics: list[str], args: Any) -> None:
    """Sample with each metric and seed; print a line of JSON for each."""
    warnings.filterwarnings("ignore")
    logging.getLogger("synkhronos").setLevel(logging.INFO)
    model, spent = model_of(name, posteriordb), Spent()
    known = {"model": name, "posteriordb": bool(posteriordb)}
    given = {"draws": args.draws, "tune": args.draws, "chains": args.chains}
    by_nutpie(model, "diag", 0, {**given, "draws": 2, "tune": 2}, spent)  # compiles
    names = [v.name for v in model.free_RVs]
    expected = references(name, posteriordb)
    choosing = 0.0  # by the first seed: the choice is kept
    measured = read(args.results)[name]
    runs = {(run["seed"], metric): run for metric in measured for run in measured[metric]}
    for seed, metric in itertools.product(range(1, args.seeds + 1), metrics):
        line = runs[1, metric]["line"] if metric == "auto" and seed > 1 else ""
        if line and (seed, metric_of(line)) in runs:
            # the first seed has shown that draws are those of this metric
            print(json.dumps(as_chosen(runs[seed, metric_of(line)], choosing, line)), flush=True)
            continue
        if metric in OTHERS:
            tree, gradients, sampling, rest, diverging, line = by_another(
                metric, model, seed, given
            )
            draws, means = tree["posterior"], {}
        else:
            tree, gradients, sampling, rest, diverging, line = by_nutpie(
                model, metric, seed, given, spent
            )
            choosing = max(choosing, spent.choosing)
            draws = tree["posterior"].to_dataset()[names]
            means = moments(tree["posterior"].to_dataset() if expected else draws)
        found = {**known, "metric": metric, "seed": seed, "gradients": gradients, **sizes(draws)}
        found |= {"sampling": sampling, "choosing": choosing if metric == "auto" else 0.0}
        found |= {"call": sampling + rest + found["choosing"], "diverging": diverging, "line": line}
        found |= {"parameters": sum(int(v.size) for v in model.initial_point(0).values())}
        if expected:
            means = {key: means[key] for key in means.keys() & expected.keys()}
            found["reference"] = {key: expected[key] for key in means}
        if len(means) <= 200:
            found["means"] = means
        if line and (other := runs.get((seed, metric_of(line)))):
            same = all(found[key] == other[key] for key in ("gradients", "bulk", "tail"))
            assert same, f"{line}: its draws are others"
            found = as_chosen(other, choosing, line)
        runs[seed, metric] = found
        print(json.dumps(found), flush=True)


def as_chosen(run: Mapping[str, Any], choosing: float, line: str) -> dict[str, Any]:
    """This run with the choice before it, which `line` tells: seconds of equal draws are equal."""
    call = run["call"] + choosing
    return {**run, "metric": "auto", "choosing": choosing, "call": call, "line": line}


def metric_of(line: str) -> str:
    """The metric that this line tells."""
    return line.split()[1].rstrip(":")


# all models, and the tables


def measure(name: str, posteriordb: str, metrics: list[str], args: Any, results: Path) -> None:
    """Sample a model in a process of its own; lines are kept, also of one that ends early."""
    began = time.monotonic()
    env = {key: value for key, value in os.environ.items() if key not in PRESETS}
    env |= {"OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--child", name]
    command += ["--posteriordb", posteriordb] if posteriordb else []
    command += ["--metrics", ",".join(metrics), "--seeds", str(args.seeds)]
    command += ["--draws", str(args.draws), "--chains", str(args.chains)]
    command += ["--results", str(results)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (args.seconds,) * 2),
    )  # fmt: skip
    out, err = process.communicate()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))
    if process.returncode:
        reason = (err.strip().splitlines() or ["no output"])[-1]
        print(f"{name}: ended early ({process.returncode}) after {len(lines)} runs: {reason}")
    else:
        print(f"{name}: {len(lines)} runs in {time.monotonic() - began:.0f} s", flush=True)


def read(results: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Runs by model and metric; of repeated ones the last."""
    runs: dict[Any, dict[str, Any]] = {}
    if results.exists():
        for line in results.read_text().splitlines():
            run = json.loads(line)
            runs[run["model"], run["metric"], run["seed"]] = run
    found: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs.values():
        found[run["model"]][run["metric"]].append(run)
    return found


def mean_of(runs: list[dict[str, Any]], rate: Callable[[dict[str, Any]], float]) -> float:
    """The geometric mean of a rate."""
    return float(np.exp(np.mean([np.log(rate(run)) for run in runs])))


RATES: dict[str, Callable[[dict[str, Any]], float]] = {
    "gradient": lambda run: 1000 * run["bulk"] / run["gradients"],
    "tail": lambda run: 1000 * run["tail"] / run["gradients"],
    "sampling": lambda run: run["bulk"] / run["sampling"],
    "call": lambda run: run["bulk"] / run["call"],
}


def errors(runs: list[dict[str, Any]], of_diag: list[dict[str, Any]]) -> float:
    """The largest distance of a mean, over all seeds, to the reference, in standard errors."""
    far = 0.0
    for key in runs[0].get("means", {}):
        mean, error = pooled(runs, key)
        if "reference" in runs[0]:
            at, other = runs[0]["reference"][key]
        elif runs is of_diag or key not in of_diag[0].get("means", {}):
            continue
        else:
            at, other = pooled(of_diag, key)
        if error or other:
            far = max(far, abs(mean - at) / float(np.hypot(error, other)))
    return far


def pooled(runs: list[dict[str, Any]], key: str) -> tuple[float, float]:
    means, of_means = np.array([run["means"][key] for run in runs]).T
    return float(means.mean()), float(np.sqrt((of_means**2).sum()) / len(runs))


def table(found: Mapping[str, Mapping[str, list[dict[str, Any]]]]) -> list[list[Any]]:
    rows = []
    for model, metrics in found.items():
        if "diag" not in metrics:
            continue
        of_diag = {rate: mean_of(metrics["diag"], RATES[rate]) for rate in RATES}
        for metric, runs in metrics.items():
            rates = {rate: mean_of(runs, RATES[rate]) for rate in RATES}
            by_diag = [rates[rate] / of_diag[rate] for rate in RATES]
            times = [f"{ratio:.2f}" if ratio > 0.1 else f"{ratio:.2g}" for ratio in by_diag]
            chosen = re.match(r"metric (\w+)", runs[0]["line"])
            name = f"{metric}: {chosen[1]}" if chosen else metric
            shown = [f"{rate:.3g}" for rate in rates.values()]
            far = f"{errors(runs, metrics['diag']):.1f}"
            choosing = f"{1000 * max(run['choosing'] for run in runs):.0f}"
            rows.append([model, runs[0]["parameters"], name, *shown, *times, far, choosing])
    return rows


COLUMNS = ["model", "parameters", "metric", "bulk ESS, 1,000 gradients", "tail ESS"]
COLUMNS += ["bulk ESS, 1 s of sampling", "1 s of the call", "gradients, times diag", "tail"]
COLUMNS += ["sampling", "call", "errors", "choosing, ms"]


def pivoted(rows: list[list[Any]]) -> list[list[Any]]:
    """The table of the docs: a row for each model that low_rank and auto have sampled."""
    by: dict[str, dict[str, list[Any]]] = defaultdict(dict)
    for row in rows:
        by[row[0]][row[2].partition(": ")[0]] = row
    found = [DOCS_COLUMNS]
    for model, of in by.items():
        if "auto" in of:
            low = [*of["low_rank"][7:10], of["low_rank"][11]] if "low_rank" in of else [""] * 4
            auto = [of["auto"][2].partition(": ")[2], *of["auto"][9:13]]
            found.append([model, of["diag"][1], of["diag"][3], *low, *auto])
    return found


DOCS_COLUMNS = ["model", "parameters", "diag, ESS for 1,000 gradients", "low_rank, times", "tail"]
DOCS_COLUMNS += ["a second", "errors", "auto takes", "a second", "of the call", "errors"]
DOCS_COLUMNS += ["choosing, ms"]


def by_options(rows: list[list[Any]]) -> list[list[Any]]:
    """The table of the docs with options: for each model, times diag for a gradient and a second.

    Seconds are those of the call, with the start; others call the density through Python.
    """
    models = list(dict.fromkeys(row[0] for row in rows))
    of = {(row[0], row[2].partition(": ")[0]): row for row in rows}
    metrics = [metric for metric in dict.fromkeys(key[1] for key in of) if metric != "diag"]
    rates = {"gradient": 7, "second": 10}
    found = [["times diag", *[f"{name}, {rate}" for name in models for rate in rates]]]
    for metric in metrics:
        shown = [at for rate, at in rates.items() if rate == "gradient" or metric not in OTHERS]
        cells = [of[name, metric][at] if (name, metric) in of and at in shown else ""
                 for name in models for at in rates.values()]  # fmt: skip
        found.append([metric, *cells])
    return found


def choosing(metrics: Mapping[str, list[dict[str, Any]]]) -> float:
    """The largest share of a call with auto that chooses."""
    return max((run["choosing"] / run["call"] for run in metrics.get("auto", [])), default=0.0)


def summary(rows: list[list[Any]]) -> list[list[Any]]:
    """Geometric means of times diag over the models, and the least."""
    by: dict[str, list[list[float]]] = defaultdict(list)
    for row in rows:
        by[row[2].partition(": ")[0]].append([float(cell) for cell in row[7:11]])
    found = []
    for metric, times in by.items():
        if metric != "diag":
            means = np.exp(np.log(times).mean(axis=0))
            least = np.min(times, axis=0)
            found.append([metric, len(times), *[f"{v:.2f}" for v in (*means, *least)]])
    return found


def draw(rows: list[list[Any]], path: Path) -> None:
    """Times diag a second of sampling, of each model, by low_rank and by auto."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "pymc_metric"
    times: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        times[row[0]][row[2].partition(": ")[0]] = float(row[9])
    names = [name for name in times if {"auto", "low_rank"} <= times[name].keys()]
    names.sort(key=lambda name: times[name]["low_rank"])
    figure, axes = plt.subplots(figsize=(7.5, 0.26 * len(names) + 1), layout="constrained")
    for metric, color, mark in (("low_rank", "#b8bfc6", "o"), ("auto", "#0b6e4f", "D")):
        axes.plot([times[n][metric] for n in names], names, mark, color=color, label=metric)
    axes.axvline(1, color="0.5", linewidth=0.8)
    axes.set(xscale="log", xlabel="effective draws a second of sampling, times those of diag")
    axes.legend(loc="lower right")
    figure.savefig(path, metadata={"Date": None})


def wanted(args: argparse.Namespace) -> list[tuple[str, str]]:
    """The names of models, each with the folder of posteriordb that it is of."""
    from pymc_gallery_models import MODELS

    names = [(name, "") for name in (SHORT if args.short else (*MODELS, *CATALOGUE))]
    if args.posteriordb:
        there = {file.stem for file in (args.posteriordb / "models" / "pymc").glob("*.py")}
        for name in sorted(there.intersection(args.models or POSTERIORDB)):
            names.append((name, str(args.posteriordb)))
    asked = args.models or (WITH_OPTIONS if args.options else ())
    return [each for each in names if not asked or each[0] in asked]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--posteriordb", type=Path)
    parser.add_argument("--metrics", default="")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=900)  # of the processor, for a model
    parser.add_argument("--jobs", type=int, default=1)  # models at once
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/metric.json"))
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--options", type=Path)
    parser.add_argument("--tables-only", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_intermixed_args()
    others = [name for name in OTHERS if importlib.util.find_spec(name)]
    metrics = [*(OF_OPTIONS if args.options else METRICS), *others]
    if args.options and importlib.util.find_spec("pymc_extras"):
        metrics += ["diag:start=pathfinder", "low_rank:start=pathfinder"]
    if args.metrics:
        metrics = args.metrics.split(",")
    if args.short and not args.metrics:
        metrics, args.seeds = ["diag", "auto", "low_rank"], min(args.seeds, 2)
    if args.child:
        child(" ".join(args.models), str(args.posteriordb or ""), metrics, args)
        return
    describe_machine()
    known, jobs = read(args.results), []
    for name, folder in [] if args.tables_only else wanted(args):
        missing = [metric for metric in metrics if len(known[name][metric]) < args.seeds]
        if name in LONG and not args.models:
            kinds = ("low_rank:", "walnutpie") if args.options else ("low_rank", *OTHERS)
            missing = [metric for metric in missing if not metric.startswith(kinds)]
        if missing:
            # draws of auto are compared with those of the metric that it takes
            missing.sort(key=lambda metric: metric == "auto")
            jobs.append((name, folder, missing, args, args.results))
    with ThreadPoolExecutor(args.jobs) as threads:
        for done in [threads.submit(measure, *job) for job in jobs]:
            done.result()
    found = read(args.results)
    rows = table(found)
    show("Metrics", COLUMNS, rows)
    means = ["gradients", "tail", "sampling", "call"]
    columns = ["metric", "models", *means, *[f"least, {name}" for name in means]]
    show("Times diag: geometric means, and the least of a model", columns, summary(rows))
    shares = {name: share for name, runs in found.items() if (share := choosing(runs))}
    if shares:
        most = max(shares, key=lambda name: shares[name])
        print(f"Choosing takes at most {shares[most]:.1%} of a call, of {most}.")
    if args.csv:
        with args.csv.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(pivoted(rows))
    if args.options:
        with args.options.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(by_options(rows))
    if args.figure:
        draw(rows, args.figure)


if __name__ == "__main__":
    main()
