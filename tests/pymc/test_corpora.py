"""The benchmark of two public collections: its steps, its table, and what README says of it."""

from __future__ import annotations

import argparse
import csv
import ctypes
import importlib
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pymc as pm
import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "figures" / "measured" / "pymc_corpora.csv"
README = ROOT / "README.rst"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("pymc_corpora")


@pytest.fixture
def found(bench: ModuleType, tmp_path: Path) -> list[Any]:
    """The models of two folders: a, b and c of posteriordb, and d."""
    database, catalogue = tmp_path / "db" / "posterior_database", tmp_path / "catalogue"
    for folder in (database / "models" / "pymc", database / "models" / "stan"):
        folder.mkdir(parents=True)
    (catalogue / "models").mkdir(parents=True)
    for name in "abc":
        (database / "models" / "pymc" / f"{name}.py").touch()
    (database / "models" / "stan" / "a.stan").touch()
    for name in ("d.py", "_helper.py", "e.py.skip"):
        (catalogue / "models" / name).touch()
    return bench.entries(tmp_path / "db", catalogue)


def test_folders_as_they_are(bench: ModuleType, found: list[Any], tmp_path: Path) -> None:
    assert [entry.name for entry in found] == ["a", "b", "c", "d"]
    assert [entry.stan is not None for entry in found] == [True, False, False, False]
    assert found[3].references() == {}
    with pytest.raises(SystemExit, match="--catalogue: there are no PyMC models"):
        bench.entries(None, tmp_path)


def results(bench: ModuleType, found: list[Any]) -> dict[str, dict[str, Any]]:
    """a is 4 times as fast, the copy of b stays plain, c is slower and differs, d is not built.

    At two of the points of a, neither model has a number.
    """
    why = "[mode default] x40: value nan for 2; x300: gradient not finite "
    compared = [
        {"outcome": "equal", "why": "", "no number": 2},
        {"outcome": "refused", "why": "few rows"},
        {"outcome": "differs", "why": why},
        {"outcome": "not built", "why": "ImportError: no data"},
    ]
    timed = [
        {bench.PLAIN: 8.0, bench.FAST: 4.0, bench.OURS: 2.0, bench.STAN: 1.0},
        {bench.PLAIN: 3.0, bench.OURS: 3.0, f"{bench.FAST} stays plain": True},
        {bench.PLAIN: 8.0, f"{bench.FAST} failed": "ValueError", bench.OURS: 10.0},
        {f"{bench.PLAIN} failed": "ImportError: no data"},
    ]
    made = {
        bench.Step(entry, kind).key: each
        for kind, every in (("equal", compared), ("gradient", timed))
        for entry, each in zip(found, every, strict=True)
    }
    drawn = [
        {"outcome": "equal", "why": "[sampler] "},
        {"outcome": "differs", "why": "[sampler] x3: drawn variables"},
        {"failed": "ValueError: PyMC does not sample this model with nutpie"},
    ]
    made |= {bench.Step(e, "drawn").key: each for e, each in zip(found, drawn, strict=False)}
    setup = {"setup": 1.5, "gradients": 0.5}
    for who, times_of in ((bench.PLAIN, 2), (bench.OURS, 1)):
        for when in ("first", "again"):
            key = bench.Step(found[0], "setup", who, when).key
            made[key] = {k: times_of * v for k, v in setup.items()}
    made[bench.Step(found[0], "setup", bench.STAN).key] = {"setup": 1.0, "gradients": 2.0}
    key = bench.Step(found[0], "sample", bench.OURS, "first").key
    made[key] = {"seconds": 123.4, "errors": 2.26, "compared": 3}
    made[bench.Step(found[1], "sample", bench.OURS, "first").key] = {"failed": "no result in time"}
    return made


def test_the_table_and_its_numbers(bench: ModuleType, found: list[Any]) -> None:
    rows = bench.table(found, results(bench, found))
    assert [row["equal"] for row in rows] == [
        "yes",
        "stays plain",
        "far out, one has no number: x40: value nan for 2; x300: gradient not finite",
        "not built: ImportError: no data",
    ]
    assert [row[bench.DRAWN] for row in rows] == ["yes", "far out: x3: drawn variables", "", ""]
    assert [row["times"] for row in rows] == ["4.000", "1.000", "0.800", ""]
    assert [row["times, fast"] for row in rows] == ["2.000", "1.000", "", ""]
    assert [row[f"{bench.FAST}, us"] for row in rows] == ["4", "3", "", ""]
    assert rows[0][f"{bench.STAN}, us"] == "1"
    assert [rows[0][f"{who}, again"] for who in (bench.PLAIN, bench.OURS)] == ["4", "2"]
    assert (rows[0][bench.STAN], rows[0][f"whole {bench.OURS}, first"]) == ("3", "123")
    assert rows[0][f"errors {bench.OURS}"] == "2.3"
    assert rows[1][f"whole {bench.OURS}, first"] == ""
    assert bench.summary(rows) == {
        "models": 4,
        "that plain evaluates": 3,
        "equal": 2,
        "nearer to the true value": 0,
        "not equal: near the start": 0,
        "not equal: far out, one has no number": 1,
        "not equal: far out, other values": 0,
        "that were compared when drawn": 2,
        "equal when drawn": 1,
        "without a number in both at a point": 1,
        "that were timed": 3,
        "geometric mean": pytest.approx(3.2 ** (1 / 3)),
        "slower by more than 2 %": 1,
        "geometric mean of copies": pytest.approx(2**0.5),
        "slower copies": 0,
        "beside stanli": 1,
        "ahead of stanli": 1,
    }


def test_what_is_not_measured_anew_stays_in_the_table(
    bench: ModuleType, found: list[Any], tmp_path: Path
) -> None:
    made = results(bench, found)
    first = bench.table(found, made)
    key = bench.Step(found[0], "gradient").key
    anew = bench.table(found, {key: {bench.PLAIN: 8.0, bench.OURS: 1.0}}, first)
    assert [row["times"] for row in anew] == ["8.000", "1.000", "0.800", ""]
    changed = {name for name in bench.COLUMNS if anew[0][name] != first[0][name]}
    assert changed == {"times", f"{bench.OURS}, us"}
    assert anew[1:] == first[1:]
    assert bench.table(found, {}, first) == first
    assert bench.table(found, {key: made[key]}) == []  # nobody knows whether it is equal
    assert bench.earlier(tmp_path / "none.csv") == bench.earlier(None) == []
    assert len(bench.earlier(TABLE)) > 300


def test_a_model_that_is_nearer_to_the_true_value_is_counted_apart(
    bench: ModuleType, found: list[Any]
) -> None:
    """It is neither equal nor one that differs."""
    made = results(bench, found)
    key = bench.Step(found[2], "equal").key
    made[key] |= {"outcome": "nearer", "why": "[mode default] x40: value 3 for -inf, true 3 "}
    rows = bench.table(found, made)
    assert rows[2]["equal"] == "nearer to the true value: x40: value 3 for -inf, true 3"
    numbers = bench.summary(rows)
    assert (numbers["equal"], numbers["nearer to the true value"]) == (2, 1)
    assert sum(v for k, v in numbers.items() if k.startswith("not equal")) == 0
    assert "those of 1 more are nearer" in " ".join(bench.paragraph(rows).split())
    assert "are nearer" not in bench.paragraph(rows[:2])


def test_readme_gets_the_numbers(bench: ModuleType, found: list[Any]) -> None:
    rows = bench.table(found, results(bench, found))
    text = bench.paragraph(rows)
    said = " ".join(text.split())
    assert said.startswith(
        "Of 3 public models that PyMC evaluates, the value and the gradient of 2 equal plain PyMC's"
    )
    assert "1.5 times as long as ``synk.pymc.sample``" in said
    once = bench.with_paragraph(README.read_text(), text)
    assert f"{text}\n" in once
    assert bench.with_paragraph(once, text) == once  # in place of the earlier one
    other = bench.with_paragraph(once, bench.paragraph(rows[:2]))
    assert text not in other
    assert other.count("public models that PyMC evaluates") == 1
    with pytest.raises(SystemExit, match="README has 0 lines"):
        bench.with_paragraph("a README without the mark", text)


def test_readme_says_what_the_table_says(bench: ModuleType) -> None:
    """A table that was not measured has no numbers in README."""
    said = README.read_text()
    if not TABLE.exists():
        assert "public models that PyMC evaluates" not in said
        return
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert bench.with_paragraph(said, bench.paragraph(rows)) == said


def test_functions_take_turns_without_python(bench: ModuleType) -> None:
    """A C function of 4 arguments and one of 5, which count their calls."""
    kinds = {4: [], 5: []}
    functions = {}
    for count, calls in kinds.items():
        kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_ssize_t] * count)
        function = kind(lambda *given, calls=calls: calls.append(given) or 0)
        address = ctypes.cast(function, ctypes.c_void_p).value
        functions[count] = bench.SamplerFunction(address, tuple(range(count)), function)
    seconds = bench.in_turns(functions)
    assert all(0 < seconds[count] < 1 for count in kinds)
    for count, calls in kinds.items():
        assert len(calls) > bench.TURNS
        assert set(calls) == {tuple(range(count))}


def compiled(value: Callable[[float], float], slope: float, drawn: Callable[[float], float]) -> Any:
    """A compiled model as nutpie has it, with one parameter, two drawn variables and no data."""
    number, size, address = ctypes.POINTER(ctypes.c_double), ctypes.c_size_t, ctypes.c_void_p

    @ctypes.CFUNCTYPE(ctypes.c_int64, size, number, number, number, address)
    def log_density(_: int, x: Any, gradient: Any, found: Any, __: int) -> int:
        found[0], gradient[0] = value(x[0]), slope
        return 0 if math.isfinite(found[0]) else 4

    @ctypes.CFUNCTYPE(ctypes.c_int64, size, size, number, number, address)
    def expand(_: int, __: int, x: Any, found: Any, ___: int) -> int:
        found[0], found[1] = x[0], drawn(x[0])
        return 0

    functions = [
        argparse.Namespace(address=ctypes.cast(f, address).value, kept=f)
        for f in (log_density, expand)
    ]
    return argparse.Namespace(
        compiled_logp_func=functions[0],
        compiled_expand_func=functions[1],
        n_expanded=2,
        user_data=np.zeros(1),
    )


@pytest.mark.parametrize(
    ("ours", "outcome", "why"),
    [
        ((lambda x: 3 * x, 3.0, lambda x: 2 * x), "equal", ""),
        ((lambda x: 3 * x + (abs(x) > 5), 3.0, lambda x: 2 * x), "differs", "x300: value"),
        ((lambda x: 3 * x if abs(x) < 5 else math.inf, 3.0, lambda x: 2 * x), "differs", "x300: v"),
        ((lambda x: 3 * x, 3.0001, lambda x: 2 * x), "differs", "start: gradient by 3e-05"),
        (
            (lambda x: 3 * x, 3.0, lambda x: 2 * x + (abs(x) > 5)),
            "differs",
            "x300: drawn variables",
        ),
        ((lambda x: 3 * x, 3.0, lambda x: math.nan), "differs", "start: drawn variables"),
    ],
)
def test_functions_that_the_sampler_gets_are_compared(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, ours: Any, outcome: str, why: str
) -> None:
    with pm.Model() as model:
        pm.Flat("x")
    of = {bench.PLAIN: (lambda x: 3 * x, 3.0, lambda x: 2 * x), bench.OURS: ours}
    monkeypatch.setattr(bench, "load", lambda _: (model, model.initial_point(0)))
    monkeypatch.setattr(bench, "compiled_by", lambda contender, _: compiled(*of[contender]))
    monkeypatch.setattr("pymc_catalogue.true_values", lambda _, at: dict.fromkeys(at))
    found = bench.drawn(argparse.Namespace(path=None), lambda doing: None)
    assert found["outcome"] == outcome
    assert why in found["why"]


def test_a_point_without_a_density_is_told(bench: ModuleType) -> None:
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_ssize_t] * 4)
    function = kind(lambda *given: 1)
    address = ctypes.cast(function, ctypes.c_void_p).value
    with pytest.raises(RuntimeError, match="no density"):
        bench.SamplerFunction(address, (0, 0, 0, 0), function).seconds(1)


def test_steps_end_in_time_and_leave_no_process(
    bench: ModuleType, found: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    works: dict[str, Callable[[], Any]] = {
        "a": lambda: {"seconds": 1.0},
        "b": lambda: time.sleep(60),
        "c": lambda: os.kill(os.getpid(), 9),
    }

    def run(step: Any, tell: Callable[[str], object]) -> Any:
        tell(f"{step.entry.name} is made")
        return works[step.entry.name]()

    monkeypatch.setattr(bench.Step, "run", run)
    args = argparse.Namespace(gigabytes=8, seconds=2.0)
    steps = [bench.Step(entry, "gradient") for entry in found[:3]]
    told = {each.pop("key"): each for each in bench.measured(steps, 1, math.inf, args)}
    assert told == {
        "posteriordb a gradient": {"seconds": 1.0},
        "posteriordb b gradient": {"failed": "no result in time: b is made"},
        "posteriordb c gradient": {"failed": "it ended with status -9: c is made"},
    }
    assert list(bench.measured(steps, 1, time.monotonic() - 1, args)) == []
