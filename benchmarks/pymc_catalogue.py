"""A folder of PyMC models: each divided, and compared with the plain model near and far.

Each model runs in a process of its own, with bounded time and memory. A file offers its model as
`build_model()`, maybe with a starting point (pymc-model-catalogue); as `make_model(data)`,
with the data of the folders around it (posteriordb); or as a variable `model`. A folder that is a
package offers `MODELS`, functions by name; benchmarks/catalogue is such a one.

    python benchmarks/pymc_catalogue.py FOLDER [MODEL ...] [--fast] [--members 2] [--seconds 600]
        [--modes default,python] [--scales 10,40,300,1000] [--gigabytes 8] [--rows] [--csv FILE]

With --fast, models are made faster by `synk.pymc.fast` in place of divided. The second table has
the models whose rows repeat, or with --rows all that are changed: the rows that are summed, how
many are distinct, the groups whose parameters are equal (where the family has sums), the rows that
are left, the form that computes them, and microseconds of a value with its gradient at the start,
plain and changed (medians, in turns, first mode).

The value and the gradient are compared at the start, at three points near it, and at multiples of a
unit normal in the unconstrained space. Mode "python" needs no compiler. The outcomes are:

    equal      at every point, in every mode, to 1e-8 (value) and 1e-6 (gradient)
    nearer     at every point where they differ, the changed model is at least as near to the true
               value and gradient as the plain one: those of the user's graph in arithmetic of many
               digits (tests/pymc/exact.py), where nothing overflows. Errors are as large if they
               differ by less than 1 %
    differs    with the points, and what differs there. It is counted by where: near the start; far
               out where one of the two has no number; far out otherwise
    refused    with the reason; `fast` keeps the plain log-density
    crashed    with the error, also if there was no result in time
    not built  the file or the plain model fails, with the error
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.util
import json
import logging
import math
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import describe_machine, show

Point = dict[str, np.ndarray]
Valued = tuple[float, np.ndarray]  # a log-density and its gradient

NEAR = 0.1  # half the width of the box around the start
_WIDTH = 300  # characters of a reason; --csv has all of it
TIMED = 0.6  # seconds in which a function is timed
TURNS = 10  # calls of one function before it is the other's turn
USERS = "Form"  # the form that computes the user's rows
COLUMNS = ["model", "outcome", "why", "divided", "rows", "distinct", "groups", "left", "form"]
COLUMNS += ["plain us", "plain best", "divided us", "divided best", "times", "no number", "seconds"]
RELATIVE_VALUE, RELATIVE_GRADIENT = 1e-8, 1e-6
_AS_LARGE = 1.01  # times another error
# of arithmetic, more until two agree: 1 - p is exp(-15000) for a logit of 15,000
_DIGITS = 50, 400, 1000, 7000, 8000


def load(path: Path, name: str = "") -> tuple[Any, Point]:
    """The model of a file, or the one with this name of a package, and a starting point."""
    import pymc as pm
    import pytensor.tensor as pt

    sys.path.insert(0, str(path.parent))
    if path.is_dir():
        model = importlib.import_module(path.name).MODELS[name]()
        return model, started(model, model.initial_point(0))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module).update(pm=pm, pt=pt, np=np)  # posteriordb's annotations need these names
    spec.loader.exec_module(module)
    if hasattr(module, "build_model"):
        found = module.build_model()
    elif hasattr(module, "make_model"):
        found = module.make_model(data_of(path))
    else:
        found = module.model
    model, *more = found if isinstance(found, tuple) else (found,)
    start = more[0] if more and isinstance(more[0], dict) else model.initial_point(0)
    return model, started(model, start)


def started(model: Any, start: Mapping[str, Any]) -> Point:
    """The values of a point, in the dtypes of the model."""
    return {v.name: np.asarray(start[v.name], v.type.dtype) for v in model.value_vars}


def data_of(path: Path) -> Any:
    """The data of a model of posteriordb: the first posterior with this model names them."""
    base = path.parents[2]
    for file in sorted((base / "posteriors").glob("*.json")):
        entry = json.loads(file.read_text())
        packed = base / "data" / "data" / f"{entry['data_name']}.json.zip"
        if entry["model_name"] == path.stem and packed.exists():
            with zipfile.ZipFile(packed) as folder:
                return json.loads(folder.read(folder.namelist()[0]))
    raise FileNotFoundError(f"no posterior of {base} has data for {path.stem}")


def points(start: Mapping[str, np.ndarray], scales: list[float]) -> dict[str, Point]:
    """The start, points near it, and multiples of a unit normal; discrete values stay."""
    rng = np.random.default_rng(17)

    def moved(of: Any) -> Point:
        return {
            k: np.asarray(of(v), v.dtype) if v.dtype.kind == "f" else v for k, v in start.items()
        }

    found = {"start": dict(start)}
    for i in range(3):
        found[f"near {i}"] = moved(lambda v: v + rng.uniform(-NEAR, NEAR, v.shape))
    for scale in scales:
        found[f"x{scale:g}"] = moved(lambda v, scale=scale: scale * rng.normal(size=v.shape))
    return found


def compiled(model: Any, mode: Any) -> Any:
    """Values of the variables, in a point's order -> value and gradient, as the model is now."""
    from pymc.pytensorf import rewrite_pregrad
    from pytensor import grad
    from pytensor.tensor import concatenate

    value = rewrite_pregrad(model.logp())  # as for PyMC's samplers, in one graph
    outputs, smooth = [value], model.continuous_value_vars
    if smooth:
        gradients = grad(value, smooth, disconnected_inputs="ignore")
        outputs.append(concatenate([gradient.ravel() for gradient in gradients]))
    function = model.compile_fn(outputs, inputs=model.value_vars, mode=mode, point_fn=False)
    function.trust_input = True
    return function


def evaluated(function: Any, at: dict[str, Point]) -> dict[str, Valued]:
    """Value and gradient at each point."""
    found = {}
    for name, point in at.items():
        with np.errstate(all="ignore"):
            value, *gradient = function(*point.values())
        found[name] = float(value), np.array(gradient[0] if gradient else [], "float64")
    return found


class Timed(NamedTuple):
    """Microseconds of a call."""

    median: float
    best: float
    times: float  # the first function's time by this one's: the median over turns


def times(functions: list[Any], point: Point) -> list[Timed]:
    """The times of each function; they take turns."""
    turns: list[list[list[float]]] = [[] for _ in functions]
    given = list(point.values())
    with np.errstate(all="ignore"):
        until = time.perf_counter() + TIMED * len(functions)
        while time.perf_counter() < until or not turns[0]:
            for function, found in zip(functions, turns, strict=True):
                function(*given)  # the other function's data are in the caches
                taken = []
                for _ in range(TURNS):
                    began = time.perf_counter()
                    function(*given)
                    taken.append(1e6 * (time.perf_counter() - began))
                found.append(taken)
    first, *_ = sums = [np.sum(found, axis=1) for found in turns]
    return [
        Timed(
            round(float(np.median(found)), 2),
            round(float(np.min(found)), 2),
            round(float(np.median(first / of_each)), 4),
        )
        for found, of_each in zip(turns, sums, strict=True)
    ]


class Forms:
    """The sums over rows of the likelihood that is made inside of ``with``."""

    def __init__(self) -> None:
        self._counts: dict[int, tuple[int, int | None]] = {}
        self._likelihood: Any = None

    def __enter__(self) -> Forms:
        from synkhronos.pymc._density import faster as _faster
        from synkhronos.pymc._density import likelihood as _likelihood
        from synkhronos.pymc._group import parallel

        self._places = [(_likelihood, "cheapest", self._cheapest(_likelihood.cheapest))]
        self._places += [(m, "tell_forms", self._told) for m in (_faster, parallel)]
        self._own = [getattr(module, name) for module, name, _ in self._places]
        for module, name, ours in self._places:
            setattr(module, name, ours)
        return self

    def __exit__(self, *_: object) -> None:
        for (module, name, _), own in zip(self._places, self._own, strict=True):
            setattr(module, name, own)

    def _cheapest(self, own: Callable[..., Any]) -> Callable[..., Any]:
        from synkhronos.pymc._repeated.summed import SumsByGroup
        from synkhronos.pymc._repeated.weighted import DistinctRows

        def counted(terms: Any) -> Any:
            form = own(terms)
            distinct, groups = DistinctRows.of(terms), SumsByGroup.of(terms)
            rows = terms.rows if distinct is None else distinct.left
            self._counts[id(form)] = rows, None if groups is None else groups.left
            return form

        return counted

    def _told(self, likelihood: Any) -> None:
        if self._likelihood is None:
            self._likelihood = likelihood

    def found(self) -> dict[str, Any]:
        """The rows, those that are distinct, the groups, those that are left, and the forms."""
        if self._likelihood is None:
            return {}
        parts = self._likelihood.parts
        counts = [self._counts.get(id(part.form), (part.rows, None)) for part in parts]
        groups = [of for _, of in counts if of is not None]
        return {
            "rows": sum(part.rows for part in parts),
            "distinct": sum(rows for rows, _ in counts),
            "groups": sum(groups) if groups else "",
            "left": sum(part.form.left for part in parts),
            "form": ", ".join(dict.fromkeys(type(part.form).__name__ for part in parts)),
        }


class Lines(logging.Handler):
    """Keeps the lines of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextlib.contextmanager
def faster(model: Any) -> Iterator[tuple[Any, list[str]]]:
    """A faster copy, and the variables whose log-density is another one."""
    import synkhronos as synk

    log, lines = logging.getLogger("synkhronos"), Lines()
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    copy = synk.pymc.fast(model)
    if not (names := names_of(copy)):
        raise synk.InputError(lines.lines[-1] if lines.lines else "no line says why")
    yield copy, names


def names_of(copy: Any) -> list[str]:
    """What has another log-density in a copy by `fast`."""
    reading = getattr(vars(copy).get("logp"), "reading", None)
    return list(reading.names) if reading else ["loops"] * ("logp" in vars(copy))


@contextlib.contextmanager
def divided(model: Any, members: int, mode: Any) -> Iterator[tuple[Any, list[str]]]:
    """The divided model, and the divided variables."""
    import synkhronos as synk

    with synk.pymc.parallel(model, members=members, mode=mode) as found:
        yield model, found.names


def difference(plain: Valued, divided: Valued) -> str:
    """What differs, in words; empty if nothing does.

    Values that are -inf or nan have no gradient that anybody uses. Where plain has one of the two,
    the other one is as good: a sampler moves to neither (docs/explanation/exactness.rst).
    """
    (value, gradient), (other, other_gradient) = plain, divided
    if not np.isfinite(value):
        same = other == value or not (value > -np.inf or other > -np.inf)
        return "" if same else f"value {other:g} for {value:g}"
    if not abs(other - value) <= RELATIVE_VALUE * abs(value) + RELATIVE_VALUE:
        return f"value {other!r} for {value!r}"
    finite = np.isfinite(gradient)
    if not np.isfinite(other_gradient[finite]).all():
        return "gradient not finite"
    scale = np.abs(gradient[finite]).max(initial=1.0)
    gap = np.abs(other_gradient - gradient)[finite].max(initial=0.0)
    return "" if gap <= RELATIVE_GRADIENT * scale else f"gradient by {gap / scale:.0e} of its size"


def side(why: str) -> str:
    """Where two models differ, of the text of all differences."""
    if "start:" in why or "near " in why:
        return "near the start"
    one_sided = "gradient not finite" in why or any(
        math.isfinite(float(one)) != math.isfinite(float(other))
        for one, other in _VALUES.findall(why)
    )
    return "far out, one has no number" if one_sided else "far out, other values"


_VALUES = re.compile(r"value (\S+) for ([^\s;,]+)")


def is_nearer(plain: Valued, changed: Valued, true: Valued | None) -> bool:
    """Whether a value and its gradient are at least as near to the true ones as the plain ones.

    They have to be numbers wherever the true ones are. Exact arithmetic may have no gradient, as
    where two branches of a choice meet; there the plain one counts.
    """
    if true is None or not math.isfinite(true[0]):
        return False
    expected = true[0], np.where(np.isfinite(true[1]), true[1], plain[1])
    errors = [[*map(_error, found, expected)] for found in (plain, changed)]
    allowed = RELATIVE_VALUE, RELATIVE_GRADIENT
    return all(
        math.isfinite(found) and found <= max(_AS_LARGE * of_plain, least)
        for of_plain, found, least in zip(*errors, allowed, strict=True)
    )


def _error(found: Any, true: Any) -> float:
    """The largest distance, by the size of the largest number; infinite if one is no number."""
    found, true = np.atleast_1d(found), np.atleast_1d(true)
    known = np.isfinite(true)
    if not np.isfinite(found[known]).all():
        return math.inf
    size = np.abs(true[known]).max(initial=1e-300)
    return float(np.abs(found - true)[known].max(initial=0.0) / size)


def true_values(model: Any, at: dict[str, Point]) -> dict[str, Valued | None]:
    """The true value and gradient at each point; None if many digits do not settle them."""
    sys.path.append(str(Path(__file__).parent.parent / "tests" / "pymc"))
    from exact import truth

    found = truth(model, _DIGITS)
    return {name: found(point) for name, point in at.items()}


def child(
    path: Path,
    name: str,
    members: int,
    modes: list[str],
    scales: list[float],
    tell: Callable[[str], object] = lambda doing: None,
) -> dict[str, Any]:
    """Change a model and compare it: what the parent prints. Without members it is made faster.

    `tell` hears what is done next.
    """
    import synkhronos as synk
    from synkhronos._compiling.python_mode import python_mode

    kinds = {"default": None, "python": python_mode("canonicalize", "stabilize")}
    try:
        tell("the model is made")
        model, start = load(path, name)
        at = points(start, scales)
        tell("the plain model is compiled")
        functions = {name: compiled(model, kinds[name]) for name in modes}
        plain = {name: evaluated(functions[name], at) for name in modes}
    except Exception as exc:
        return {"outcome": "not built", "why": said(exc)}
    found: dict[str, Any] = {"outcome": "equal", "why": ""}
    for name in modes:
        try:
            tell("the model is changed")
            made = divided(model, members, kinds[name]) if members else faster(model)
            with Forms() as forms, made as (changed, found["divided"]):
                tell("the changed model is compiled")
                function = compiled(changed, kinds[name])
                other = evaluated(function, at)
                if name == modes[0]:
                    found |= forms.found()
                    neither = [
                        k for k in at if not np.isfinite([plain[name][k][0], other[k][0]]).any()
                    ]
                    found["no number"] = len(neither)
                    plain_time, other_time = times([functions[name], function], at["start"])
                    found |= timed("plain", plain_time) | timed("divided", other_time)
                    found["times"] = other_time.times
        except synk.InputError as exc:
            [alone] = times([functions[modes[0]]], at["start"])
            return {"outcome": "refused", "why": said(exc)} | timed("plain", alone)
        except Exception as exc:
            return {"outcome": "crashed", "why": f"mode {name}: {said(exc)}"}
        outcome, why = comparison(model, at, plain[name], other, tell)
        if outcome == "differs" or found["outcome"] == "equal":
            found["outcome"] = outcome
        found["why"] += f"[mode {name}] {why} " * bool(why)
    return found


def comparison(
    model: Any,
    at: dict[str, Point],
    plain: Mapping[str, Valued],
    other: Mapping[str, Valued],
    tell: Callable[[str], object],
) -> tuple[str, str]:
    """Whether results of a changed model are equal or nearer, or differ; and what differs where."""
    wrong = {k: why for k in at if (why := difference(plain[k], other[k]))}
    if not wrong:
        return "equal", ""
    tell("the true values of the model are computed")
    true = true_values(model, {k: at[k] for k in wrong})
    nearer = all(is_nearer(plain[k], other[k], true[k]) for k in wrong)
    listed = "; ".join(f"{k}: {why}{_true(true[k])}" for k, why in wrong.items())
    return "nearer" if nearer else "differs", listed


def _true(found: Valued | None) -> str:
    return "" if found is None else f", true {found[0]:.10g}"


def timed(name: str, found: Timed) -> dict[str, float]:
    return {f"{name} us": found.median, f"{name} best": found.best}


def said(exc: BaseException) -> str:
    kind = type(exc).__name__
    return f"{kind}: {exc}" if kind != "InputError" else str(exc)


def run(path: Path, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The outcome of a model, found by a process of its own."""
    command = [sys.executable, __file__, "--child", str(path), name]
    command += ["--members", str(args.members), "--modes", args.modes, "--scales", args.scales]
    command += ["--fast"] * args.fast
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (args.gigabytes << 30,) * 2),
    )
    try:
        out, err = process.communicate(timeout=args.seconds)
        lines = [line for line in out.splitlines() if line.startswith("{")]
        found = json.loads(lines[-1]) if lines else died(process.returncode, err)
    except subprocess.TimeoutExpired:
        found = {"outcome": "crashed", "why": f"no result after {args.seconds} s"}
    finally:
        end(process)
    return {"model": name, **found, "seconds": round(time.monotonic() - began, 1)}


def died(code: int, err: str) -> dict[str, Any]:
    last = (err.strip().splitlines() or [""])[-1]
    return {"outcome": "crashed", "why": f"exit code {code}: {last}"}


def end(process: subprocess.Popen[str]) -> None:
    """End what is left of the process and its members."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def results(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if (args.folder / "__init__.py").exists():
        sys.path.insert(0, str(args.folder.parent))
        paths = dict.fromkeys(importlib.import_module(args.folder.name).MODELS, args.folder)
    else:
        files = sorted(p for p in args.folder.glob("*.py") if not p.name.startswith("_"))
        paths = {p.stem: p for p in files}
    if missing := set(args.models) - set(paths):
        raise SystemExit(f"{args.folder} has no {', '.join(sorted(missing))}")
    for name, path in paths.items():
        if not args.models or name in args.models:
            yield run(path, name, args)


def show_rows(found: list[dict[str, Any]]) -> None:
    """Print a table of the rows of each model, and of times."""
    columns = ["", "rows", "distinct", "groups", "left", "form", "plain, us", "changed, us"]
    columns += ["times"]
    rows = [
        [
            r["model"],
            f"{r['rows']:,}",
            f"{r['distinct']:,}",
            r["groups"],
            f"{r['left']:,}",
            "rows" if r["form"] == USERS else r["form"],
            r["plain us"],
            r["divided us"],
            f"{r['times']:.2f}",
        ]
        for r in found
    ]
    if rows:
        show("Rows, those that are left, and a gradient", columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--modes", default="default,python")
    parser.add_argument("--scales", default="10,40,300,1000")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--gigabytes", type=int, default=8)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_intermixed_args()
    modes = args.modes.split(",")
    scales = [float(s) for s in args.scales.split(",") if s]
    if args.child:
        warnings.filterwarnings("ignore")
        members = 0 if args.fast else args.members
        found = child(args.folder, " ".join(args.models), members, modes, scales)
        print(json.dumps(found), flush=True)
        return
    describe_machine()
    outcomes = []
    for result in results(args):
        outcomes.append(result)
        why = textwrap.shorten(result["why"], _WIDTH, placeholder=" ...")
        print(f"{result['model']:45} {result['outcome']:9} {why}", flush=True)
    if args.csv:
        with args.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(outcomes)
    show_rows([r for r in outcomes if r.get("form") and (args.rows or r["form"] != USERS)])
    counts = Counter(
        f"differs {side(r['why'])}" if r["outcome"] == "differs" else r["outcome"] for r in outcomes
    )
    counts["without a number in both at a point"] = sum(bool(r.get("no number")) for r in outcomes)
    show("Models of each outcome", ["outcome", "models"], sorted(counts.items()))


if __name__ == "__main__":
    main()
