"""Two public collections of PyMC models, as they are: equal or not, gradients, setup, whole calls.

The collections are posteriordb and pymc-model-catalogue, in folders (`corpora.py`). Steps:

    equal      value and gradient of `synk.pymc.fast` are compared with plain at 9 points: at the
               start, at three near it, and at 3, 10, 40, 300 and 1,000 times a unit normal. Where
               they differ, both are compared with the true ones, in arithmetic of many digits
    drawn      value, gradient and all variables of a draw are compared at the same points: by the C
               functions that the sampler gets of `synk.pymc.sample`, and by those of `pm.sample`
    gradient   microseconds of the C function that the sampler gets: of `pm.sample` plain, of
               `pm.sample` with a copy by `fast`, of `synk.pymc.sample`, and of stanli's fast mode.
               They take turns, in one process with one thread. A compiled loop calls them, as a
               sampler does. Models that nutpie does not sample have no such function
    setup      seconds from the PyMC model (of stanli: from the text of the Stan program) to 20,000
               gradients of that function, for `pm.sample`, `synk.pymc.sample` and stanli. "first"
               has empty caches, "again" those of "first"; imports come before
    sample     the same calls whole, of posteriordb's models that have reference draws: 2 chains on
               2 cores, 1,000 + 1,000 draws. "errors" is the largest distance of a mean to that of
               the reference draws, in Monte Carlo standard errors of both

    python benchmarks/pymc_corpora.py --posteriordb FOLDER --catalogue FOLDER [MODEL ...] [--stan]
        [--steps equal,drawn,gradient,setup,sample] [--jobs 2] [--seconds 300] [--minutes 30]
        [--contenders pm.sample,fast,synk.pymc.sample,stanli] [--gigabytes 8] [--with-stan]
        [--again] [--tables-only] [--results benchmarks/results/corpora.json]
        [--csv docs/figures/measured/pymc_corpora.csv] [--figure docs/figures/pymc_corpora.svg]
        [--readme README.rst]

Each step of a model is a process of its own with a core of its own; --jobs of them run at a time,
and whole calls run alone. A step that was measured is not measured again: --results has it, unless
--again measures those of the models that are named anew. --contenders leaves the others out;
--with-stan leaves models out that have no Stan program. After --minutes no step is started: the
same command goes on later. What was not measured anew stays as --csv has it. --stan adds stanli.
--readme writes three numbers of the table into this file, after the comment that names this script.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import os
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import textwrap
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import describe_machine, show
from corpora import CATALOGUE, POSTERIORDB, Entry, entries
from pymc_catalogue import (
    RELATIVE_VALUE,
    Point,
    child,
    comparison,
    load,
    names_of,
    points,
    said,
    side,
)
from pymc_metric import moments
from sampler_functions import Results, SamplerFunction, of_nutpie, of_stanli, results_at
from stan_peer import MISSING, installed
from threadpoolctl import threadpool_limits

SCALES = [3.0, 10.0, 40.0, 300.0, 1000.0]  # of the points far out
THREADS = "OPENBLAS_NUM_THREADS"
GRADIENTS = 20_000
MOST_SECONDS = 2.0  # of gradients; the time of the rest is that of these
PLAIN, OURS, STAN = "pm.sample", "synk.pymc.sample", "stanli"
FAST = "fast"  # `pm.sample` of a copy
DRAWN = "equal when drawn"
_STAYS = f"{FAST} stays plain"
TURNS, TURN = 25, 0.02  # of each function; seconds of one
GIVEN = {"draws": 1000, "tune": 1000, "chains": 2, "random_seed": 1}
QUIET = {"progressbar": False, "compute_convergence_checks": False, "quiet": True}

type Result = dict[str, Any]


# one step of one model, in a process of its own


class ReachedError(Exception):
    """The sampler was called: what it is given is compiled."""

    def __init__(self, compiled: Any) -> None:
        super().__init__()
        self.compiled = compiled


def equal(entry: Entry, tell: Callable[[str], object]) -> Result:
    """Whether the faster model equals the plain one."""
    with threadpool_limits(1):
        return child(entry.path, entry.name, 0, ["default"], SCALES, tell)


def drawn(entry: Entry, tell: Callable[[str], object]) -> Result:
    """Whether the sampler gets functions of `synk.pymc.sample` that equal those of `pm.sample`."""
    model, start = load(entry.path)
    at = points(start, SCALES)
    found: dict[str, dict[str, Results]] = {}
    with threadpool_limits(1):
        for contender in (PLAIN, OURS):
            tell(f"{contender} is compiled")
            compiled = compiled_by(contender, model)
            found[contender] = {k: results_at(compiled, vector(model, p)) for k, p in at.items()}
        valued = [{k: (r.value, r.gradient) for k, r in found[who].items()} for who in found]
        outcome, why = comparison(model, at, *valued, tell)
    unlike = [k for k in at if not alike(found[PLAIN][k].drawn, found[OURS][k].drawn)]
    if unlike:
        outcome, why = "differs", "; ".join([*[f"{k}: drawn variables" for k in unlike], why])
    return {"outcome": outcome, "why": f"[sampler] {why}"}


def alike(plain: np.ndarray, ours: np.ndarray) -> bool:
    """Whether variables of a draw are equal wherever plain has a number."""
    known = np.isfinite(plain)
    return np.allclose(ours[known], plain[known], rtol=RELATIVE_VALUE, atol=RELATIVE_VALUE)


def vector(model: Any, point: Point) -> np.ndarray:
    """A point as the sampler has it."""
    return np.concatenate([np.ravel(point[v.name]) for v in model.value_vars]).astype("float64")


def gradient(entry: Entry, contenders: Sequence[str], tell: Callable[[str], object]) -> Result:
    """Microseconds of each contender, the median of turns.

    A copy by `fast` that keeps PyMC's log-density is not compiled.
    """
    functions: dict[str, SamplerFunction] = {}
    failed: Result = {}
    with threadpool_limits(1):
        for contender in contenders:
            tell(f"{contender} is compiled")
            try:
                if (function := function_of(entry, contender)) is not None:
                    functions[contender] = function
                    function.seconds(1)
                else:
                    failed[_STAYS] = True
            except Exception as exc:
                functions.pop(contender, None)
                failed[f"{contender} failed"] = said(exc)
        tell("the functions take turns")
        return {name: 1e6 * seconds for name, seconds in in_turns(functions).items()} | failed


def function_of(entry: Entry, contender: str) -> SamplerFunction | None:
    """The function of a contender; None of a copy that keeps PyMC's log-density."""
    if contender == STAN:
        assert entry.stan is not None
        return of_stanli(entry.stan.read_text(), entry.data())
    model, start = load(entry.path)
    if contender == FAST:
        import synkhronos as synk

        model = synk.pymc.fast(model)
        if not names_of(model):
            return None
    return by_nutpie(contender, model, start)


def in_turns(functions: dict[str, SamplerFunction]) -> dict[str, float]:
    """Seconds of a call of each function."""
    once = {name: min(f.seconds(1) for _ in range(3)) for name, f in functions.items()}
    times = {name: math.ceil(TURN / max(seconds, 1e-7)) for name, seconds in once.items()}
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(TURNS):
        for name, function in functions.items():
            taken[name].append(function.seconds(times[name]) / times[name])
    return {name: float(np.median(turns)) for name, turns in taken.items()}


def setup(entry: Entry, contender: str) -> Result:
    """Seconds until the first value, and of all gradients after it."""
    with threadpool_limits(1):
        if contender == STAN:
            assert entry.stan is not None
            text, data = entry.stan.read_text(), entry.data()
            began = time.perf_counter()
            function = of_stanli(text, data)
        else:
            model, start = load(entry.path)
            began = time.perf_counter()
            function = by_nutpie(contender, model, start)
        function.seconds(1)
        ready = time.perf_counter() - began
        return {"setup": ready, "gradients": seconds_of(function)}


def seconds_of(function: SamplerFunction) -> float:
    """Seconds of all gradients; if they take long, those of some, multiplied."""
    times = min(GRADIENTS, math.ceil(MOST_SECONDS / max(function.seconds(1), 1e-7)))
    return function.seconds(times) * GRADIENTS / times


def by_nutpie(contender: str, model: Any, start: Any) -> SamplerFunction:
    """The C function that the sampler of `pm.sample` or of ours gets."""
    return of_nutpie(compiled_by(contender, model), vector(model, start))


def compiled_by(contender: str, model: Any) -> Any:
    """The compiled model that `pm.sample` or ours gives nutpie.

    Raises
    ------
    ValueError
        Another sampler is chosen.
    """
    import nutpie

    def reached(compiled: Any, **_: Any) -> None:
        raise ReachedError(compiled)

    nutpie.sample = reached
    try:
        # a choice of the metric, for which ours samples, is no part of this
        given = {**GIVEN, **QUIET, **({"adaptation": "diag"} if contender == OURS else {})}
        sampler(contender)(model=model, cores=1, **given)
    except ReachedError as found:
        return found.compiled
    raise ValueError("PyMC does not sample this model with nutpie")


def sampler(contender: str) -> Callable[..., Any]:
    import pymc as pm

    import synkhronos as synk

    return synk.pymc.sample if contender == OURS else pm.sample


def sample(entry: Entry, contender: str) -> Result:
    """Seconds of a whole call, and the distance of its means to those of the reference draws."""
    model, _ = load(entry.path)
    began = time.perf_counter()
    tree = sampler(contender)(model=model, cores=2, **GIVEN, **QUIET)
    seconds = time.perf_counter() - began
    found, expected = moments(tree["posterior"].to_dataset()), entry.references()
    common = found.keys() & expected.keys()
    far = [distance(found[name], expected[name]) for name in common]
    return {"seconds": seconds, "errors": max(far, default=None), "compared": len(common)}


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Of two means with their standard errors, in standard errors of both."""
    (mean, error), (expected, of_expected) = one, other
    return abs(mean - expected) / float(np.hypot(error, of_expected))


# processes


@dataclass
class Step:
    """A step of a model with a contender, and what runs it.

    Attributes
    ----------
    caches : Path, optional
        The folder of compiled code; that of this user if there is none.
    among : sequence of str
        Contenders that take turns.
    """

    entry: Entry
    kind: str
    contender: str = ""
    when: str = ""
    caches: Path | None = None
    among: Sequence[str] = ()

    @property
    def key(self) -> str:
        parts = (self.entry.corpus, self.entry.name, self.kind, self.contender, self.when)
        return " ".join(part for part in parts if part)

    def run(self, tell: Callable[[str], object]) -> Result:
        """In this process; `tell` hears what is done next."""
        warnings.filterwarnings("ignore")
        if self.caches is not None:
            keep_in(self.caches)
        steps: dict[str, Callable[[], Result]] = {
            "equal": lambda: equal(self.entry, tell),
            "drawn": lambda: drawn(self.entry, tell),
            "gradient": lambda: gradient(self.entry, self.among, tell),
            "setup": lambda: setup(self.entry, self.contender),
            "sample": lambda: sample(self.entry, self.contender),
        }
        try:
            return steps[self.kind]()
        except Exception as exc:
            return {"failed": said(exc)}


def keep_in(folder: Path) -> None:
    """Keep compiled code of this process in another folder."""
    import pytensor
    from pytensor.link.numba import cache

    folder.mkdir(parents=True, exist_ok=True)
    type(pytensor.config).base_compiledir = folder
    cache.NUMBA_CACHE_PATH = folder / "numba"
    cache.NUMBA_CACHE_PATH.mkdir(exist_ok=True)


@dataclass
class Running:
    """A forked process, and what it has written."""

    step: Step
    process: int
    core: int | None
    until: float
    said: bytes = field(default=b"")


def measured(
    steps: Sequence[Step], jobs: int, until: float, args: argparse.Namespace
) -> Iterator[Result]:
    """The results, as steps end; none starts after `until`.

    Steps with the same caches are done one after another.
    """
    waiting, running = deque(steps), dict[int, Running]()
    free: list[int | None] = list(os.sched_getaffinity(0))[:jobs] if jobs > 1 else [None]
    try:
        while waiting or running:
            if time.monotonic() > until:
                waiting.clear()
            busy = {run.step.caches for run in running.values()} - {None}
            ready = [step for step in waiting if step.caches not in busy]
            if free and ready:
                waiting.remove(ready[0])
                reader, run = started(ready[0], free.pop(0), args)
                running[reader] = run
                continue
            heard = readable(list(running))
            for reader, run in list(running.items()):
                part = os.read(reader, 1 << 16) if reader in heard else b""
                run.said += part
                late = time.monotonic() > run.until
                if (reader in heard and not part) or late:
                    del running[reader]
                    free.append(run.core)
                    yield ended(reader, run, late)
    finally:
        for reader, run in running.items():
            ended(reader, run, True)


def readable(descriptors: Sequence[int]) -> list[int]:
    """Those with something to read, after a second at most."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(1000)]


def started(step: Step, core: int | None, args: argparse.Namespace) -> tuple[int, Running]:
    """Fork; the reading end of what the child writes, and the child."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        found: Result = {"failed": "it was ended"}
        file = os.fdopen(writer, "w", encoding="utf-8")

        def write(line: Result) -> None:
            print(json.dumps(line), file=file, flush=True)

        try:
            os.setsid()
            if core is not None:
                os.sched_setaffinity(0, {core})
            resource.setrlimit(resource.RLIMIT_DATA, (args.gigabytes << 30,) * 2)
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            found = step.run(lambda doing: write({"doing": doing}))
        finally:
            write(found)
            os._exit(0)
    os.close(writer)
    return reader, Running(step, process, core, time.monotonic() + args.seconds)


def ended(reader: int, run: Running, late: bool) -> Result:
    """The result, or what was done last; nothing of the process is left."""
    os.close(reader)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.process, signal.SIGKILL)
    _, status = os.waitpid(run.process, 0)
    lines = [line for line in run.said.splitlines(keepends=True) if line.endswith(b"\n")]
    found = json.loads(lines[-1]) if lines else {"doing": "it has begun"}
    if "doing" in found:
        code = os.waitstatus_to_exitcode(status)
        why = "no result in time" if late else f"it ended with status {code}"
        found = {"failed": f"{why}: {found['doing']}"}
    return {"key": run.step.key, **found}


# all steps, and the tables


def steps_of(found: Sequence[Entry], args: argparse.Namespace, folder: Path) -> list[Step]:
    """All steps in their order: first those of processes with one core."""
    kinds, contenders = args.steps.split(","), args.contenders.split(",")
    steps = [Step(entry, kind) for kind in ("equal", "drawn") if kind in kinds for entry in found]
    for entry in found if "gradient" in kinds else []:
        with_stan = args.stan and entry.stan is not None
        among = [c for c in contenders if c != STAN or with_stan]
        steps.append(Step(entry, "gradient", among=among))
    for entry in found if "setup" in kinds else []:
        steps += twice(entry, "setup", folder, contenders)
        if args.stan and entry.stan is not None and STAN in contenders:
            steps.append(Step(entry, "setup", STAN))
    for entry in found if "sample" in kinds else []:
        if entry.references():
            steps += twice(entry, "sample", folder, contenders)
    return steps


def twice(entry: Entry, kind: str, folder: Path, contenders: Sequence[str]) -> list[Step]:
    """First with empty caches, then again."""
    return [
        Step(
            entry, kind, contender, when, folder / f"{kind}-{contender}-{entry.corpus}-{entry.name}"
        )
        for contender in (PLAIN, OURS)
        if contender in contenders
        for when in ("first", "again")
    ]


def known(path: Path) -> dict[str, Result]:
    """Results by key; of repeated ones the last."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {result["key"]: result for result in map(json.loads, lines)}


def measure(found: Sequence[Entry], args: argparse.Namespace) -> None:
    """Measure all steps that have no result, and write each result at once."""
    import nutpie  # noqa: F401  # once for all forked processes
    import pymc  # noqa: F401

    import synkhronos.pymc

    assert synkhronos.pymc.sample
    assert synkhronos.pymc.fast
    with tempfile.TemporaryDirectory() as folder:
        steps = steps_of(found, args, Path(folder))
        have = {} if args.again else known(args.results)
        lacking = {step.caches or step.key for step in steps if step.key not in have}
        steps = [step for step in steps if (step.caches or step.key) in lacking]
        args.results.parent.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + 60 * args.minutes
        together = [step for step in steps if step.kind != "sample"]
        alone = [step for step in steps if step.kind == "sample"]
        for some, jobs in ((together, args.jobs), (alone, 1)):
            for result in measured(some, jobs, until, args):
                with args.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
                print(line_of(result), flush=True)
                left = [s for s in steps if s.key == result["key"]]
                if left and left[0].when == "again":
                    shutil.rmtree(left[0].caches or "", ignore_errors=True)


def line_of(result: Result) -> str:
    """What is printed of a result."""
    shown = {k: v for k, v in result.items() if k != "key" and v not in ("", None)}
    text = ", ".join(
        f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in shown.items()
    )
    return f"{result['key']:60} {text[:_WIDTH]}"


_WIDTH = 240  # characters of a line; --results has all of it


GRADIENT = [*(f"{who}, us" for who in (PLAIN, FAST, OURS, STAN)), "times, fast", "times"]
SETUP = [f"{who}, {when}" for who in (PLAIN, OURS) for when in ("first", "again")]
CALLS = [f"whole {name}" for name in SETUP]
ERRORS = [f"errors {who}" for who in (PLAIN, OURS)]
COMPARED = ["equal", "no number", DRAWN]
COLUMNS = ["collection", "model", *COMPARED, *GRADIENT, *SETUP, STAN, *CALLS, *ERRORS]
SLOWER = 1.02  # of plain's time; up to this a model is as fast


def table(
    found: Sequence[Entry], results: dict[str, Result], earlier: Sequence[dict[str, str]] = ()
) -> list[dict[str, str]]:
    """A row for each model that was measured; what was not measured anew is as in earlier rows."""
    before = {(row["collection"], row["model"]): row for row in earlier}
    rows = []
    for entry in found:
        named = {"collection": entry.corpus, "model": entry.name}
        row = dict.fromkeys(COLUMNS, "") | before.get(tuple(named.values()), {})
        row |= {column: cell for column, cell in cells(entry, results).items() if cell}
        if row["equal"]:
            rows.append(row | named)
    return rows


def earlier(path: Path | None) -> list[dict[str, str]]:
    """The rows that a table has."""
    if path is None or not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def cells(entry: Entry, results: dict[str, Result]) -> dict[str, str]:
    """What was measured of a model, by column; seconds have three figures."""
    row: dict[str, str] = {}
    if (compared := results.get(Step(entry, "equal").key)) is not None:
        row |= {"equal": equality(compared), "no number": str(compared.get("no number", ""))}
    if (functions := results.get(Step(entry, "drawn").key, {})).keys() & {"outcome"}:
        row[DRAWN] = equality(functions)
    timed = results.get(Step(entry, "gradient").key, {})
    row |= dict(zip(GRADIENT, gradient_cells(timed), strict=True))
    for kind, columns in (("setup", SETUP), ("sample", CALLS)):
        for column in columns:
            who, when = column.removeprefix("whole ").split(", ")
            row[column] = seconds_cell(results.get(Step(entry, kind, who, when).key))
    row[STAN] = seconds_cell(results.get(Step(entry, "setup", STAN).key))
    for who in (PLAIN, OURS):
        far = results.get(Step(entry, "sample", who, "first").key, {}).get("errors")
        row[f"errors {who}"] = "" if far is None else f"{far:.1f}"
    return row


def equality(result: Result) -> str:
    """Whether the faster model equals the plain one, in words for the table."""
    outcome = result.get("outcome", "crashed")
    why = " ".join(str(result.get("why", result.get("failed", ""))).split())
    if outcome == "differs":
        return f"{_SIDES[side(why)]}: {why.partition('] ')[2][:_REASON]}"
    if outcome == "nearer":
        return f"{_NEARER}: {why.partition('] ')[2][:_REASON]}"
    words = {"equal": "yes", "refused": "stays plain"}
    return words.get(outcome) or f"{outcome}: {why[:_REASON]}"


_REASON = 120  # characters of a reason in the table
# how the table says where two models differ
_ONE, _OTHER = "far out, one has no number", "far out, other values"
_SIDES = {"near the start": "no", _ONE: _ONE, _OTHER: "far out"}
_NEARER = "nearer to the true value"


def gradient_cells(result: Result) -> list[str]:
    """Microseconds, and plain's by those of both. A copy that stays plain has plain's."""
    taken = {who: result.get(who) for who in (PLAIN, FAST, OURS, STAN)}
    plain = taken[PLAIN]
    if _STAYS in result:
        taken[FAST] = plain
    times = [f"{plain / taken[who]:.3f}" if plain and taken[who] else "" for who in (FAST, OURS)]
    return [*("" if v is None else figures(v) for v in taken.values()), *times]


def seconds_cell(result: Result | None) -> str:
    if result is None or "failed" in result:
        return ""
    return figures(
        result["seconds"] if "seconds" in result else result["setup"] + result["gradients"]
    )


def figures(number: float) -> str:
    """Three figures, without an exponent."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def summary(rows: Sequence[dict[str, str]]) -> dict[str, float]:
    """The numbers of a table."""
    timed, copies = ([float(row[c]) for row in rows if row[c]] for c in ("times", "times, fast"))
    both = [
        (float(row[f"{OURS}, again"]), float(row[STAN]))
        for row in rows
        if row[STAN] and row[f"{OURS}, again"]
    ]
    return {
        "models": len(rows),
        "that plain evaluates": sum(not row["equal"].startswith("not built") for row in rows),
        "equal": sum(row["equal"] in ("yes", "stays plain") for row in rows),
        _NEARER: sum(row["equal"].startswith(f"{_NEARER}:") for row in rows),
        **{
            f"not equal: {words}": sum(row["equal"].startswith(f"{said}:") for row in rows)
            for words, said in _SIDES.items()
        },
        "that were compared when drawn": sum(bool(row.get(DRAWN)) for row in rows),
        "equal when drawn": sum(row.get(DRAWN) == "yes" for row in rows),
        "without a number in both at a point": sum(
            row.get("no number", "") not in ("", "0") for row in rows
        ),
        "that were timed": len(timed),
        "geometric mean": geometric_mean(timed),
        "slower by more than 2 %": sum(times * SLOWER < 1 for times in timed),
        "geometric mean of copies": geometric_mean(copies),
        "slower copies": sum(times * SLOWER < 1 for times in copies),
        "beside stanli": len(both),
        "ahead of stanli": sum(ours < theirs for ours, theirs in both),
    }


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values)))) if values else 1.0


_MARK = ".. public models: scripts/bench pymc_corpora writes the next paragraph\n\n"
_MARKED = re.compile(re.escape(_MARK) + r"(?:Of \d.*\n(?:.+\n)*\n)?")
_WIDE = 100  # characters of a line of README


def paragraph(rows: Sequence[dict[str, str]]) -> str:
    """What README says of a table."""
    found = summary(rows)
    nearer = found[_NEARER]
    more = f"; those of {nearer} more are nearer to the true ones, where plain loses them" * bool(
        nearer
    )
    text = (
        f"Of {found['that plain evaluates']} public models that PyMC evaluates, the value and the "
        f"gradient of {found['equal']} equal plain PyMC's (posteriordb and pymc-model-catalogue, "
        f"on one core){more}. One gradient takes ``pm.sample`` {found['geometric mean']:.1f} times "
        "as long as ``synk.pymc.sample``, in the geometric mean of the "
        f"{found['that were timed']} that were timed. ``synk.pymc.sample`` is slower by more than "
        f"2 % for {found['slower by more than 2 %'] or 'none'} of them."
    )
    return textwrap.fill(text, _WIDE) + "\n"


def with_paragraph(readme: str, text: str) -> str:
    """README with this paragraph after its mark.

    Raises
    ------
    SystemExit
        The mark is not there once.
    """
    changed, count = _MARKED.subn(lambda _: f"{_MARK}{text}\n", readme)
    if count != 1:
        raise SystemExit(f"README has {count} lines {_MARK.strip()!r}, not one")
    return changed


def draw(rows: Sequence[dict[str, str]], path: Path) -> None:
    """The times of all models in their order, by collection."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams |= {"svg.hashsalt": "pymc_corpora", "svg.fonttype": "path"}
    timed = sorted((row for row in rows if row["times"]), key=lambda row: float(row["times"]))
    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    for corpus, color in ((POSTERIORDB, "#0b6e4f"), (CATALOGUE, "#7f8b96")):
        places = [i for i, row in enumerate(timed) if row["collection"] == corpus]
        values = [float(timed[i]["times"]) for i in places]
        axes.plot(places, values, "o", color=color, markersize=3, label=corpus)
    axes.axhline(1, color="0.5", linewidth=0.8)
    axes.set(
        yscale="log",
        xlabel="models, by their gain",
        ylabel="gradient: pm.sample's time by synk.pymc.sample's",
    )
    axes.legend(loc="upper left")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument(f"--{POSTERIORDB}", type=Path)
    parser.add_argument(f"--{CATALOGUE}", type=Path)
    parser.add_argument("--stan", action="store_true")
    parser.add_argument("--steps", default="equal,drawn,gradient,setup,sample")
    parser.add_argument("--contenders", default=",".join((PLAIN, FAST, OURS, STAN)))
    parser.add_argument("--with-stan", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--gigabytes", type=int, default=8)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/corpora.json"))
    parser.add_argument("--tables-only", action="store_true")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--readme", type=Path)
    args = parser.parse_intermixed_args()
    if args.stan and not installed():
        args.stan = False
        print(MISSING)
    every = entries(args.posteriordb, args.catalogue)
    if not every:
        raise SystemExit(
            "give the folder of a collection: --posteriordb FOLDER, --catalogue FOLDER"
        )
    if missing := set(args.models) - {entry.name for entry in every}:
        raise SystemExit(f"the collections have no {', '.join(sorted(missing))}")
    if not args.tables_only and os.environ.get(THREADS) != "1":  # threads do not outlive a fork
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {THREADS: "1"})
    describe_machine()
    if not args.tables_only:
        asked = [e for e in every if not args.models or e.name in args.models]
        measure([e for e in asked if e.stan is not None or not args.with_stan], args)
    rows = table(every, known(args.results), earlier(args.csv))
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    if args.figure:
        draw(rows, args.figure)
    if args.readme:
        args.readme.write_text(with_paragraph(args.readme.read_text(), paragraph(rows)))
    slow = [r for r in rows if r["times"] and float(r["times"]) * SLOWER < 1]
    show(
        "Slower than plain",
        ["model", *GRADIENT],
        [[r["model"], *[r[c] for c in GRADIENT]] for r in slow],
    )
    unlike = [r for r in rows if r["equal"] not in ("yes", "stays plain")]
    show("Not equal", ["model", "why"], [[r["model"], r["equal"]] for r in unlike])
    show("All models", ["", "number"], [[k, round(v, 2)] for k, v in summary(rows).items()])


if __name__ == "__main__":
    main()
