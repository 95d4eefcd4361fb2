"""``synk bench``: what it computes of measurements, and the processes that make them."""

from __future__ import annotations

import io
import json
import math
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measurements import measurement

import synkhronos as synk
from synkhronos._transport.processes import interpreter
from synkhronos.cli._bench import bench_process, comparison
from synkhronos.cli._bench.bench_process import Stopwatch, step_of
from synkhronos.cli._command_line import main
from synkhronos.cli._scaling import curves_of, read_csv, write_csv

FUNCTIONS = """
import numpy as np, pytensor.tensor as pt, synkhronos as synk

def summing():
    x, y = pt.dmatrix("x"), pt.dvector("y")
    f = synk.function([x, y], (x.sum() + y.sum(), "sum"), mode="FAST_COMPILE")
    print("what the user prints")
    return f, synk.data(np.ones((100, 2))), np.ones(100)

def counting():
    return lambda rows: sum(range(rows))

def failing():
    raise OSError("no data there")

def dying():
    def step(rows):
        raise synk.WorkerDied("rank 1")
    return step
"""


def test_speedup_within_rounds() -> None:
    """A machine that slows down in one round changes no ratio."""
    rates = {(1, 1): 100.0, (2, 1): 180.0, (1, 2): 50.0, (2, 2): 90.0, (1, 3): 90.0, (2, 3): 171.0}
    found = [measurement(n, i, rate) for (n, i), rate in rates.items()]
    weak = [measurement(n, 1, 100.0 * n, scaling="weak", rows=100 * n) for n in (2, 4)]
    strong, other = curves_of([*found, *weak])
    one, two = strong.points
    assert (one.rate, one.low, one.high, one.speedup, one.efficiency) == (90, 50, 100, 1, 1)
    assert (two.rate, two.low, two.high, two.speedup) == (171, 90, 180, 1.8)
    assert two.efficiency == 0.9
    assert strong.rounds == 3
    # the smallest number of members is the base, whatever it is
    assert [(p.rows, p.speedup, p.efficiency) for p in other.points] == [(200, 1, 1), (400, 2, 1)]
    assert strong.title == "m:f, strong scaling, batch 100"
    assert other.title == "m:f, weak scaling, batch 100 of each member"
    [alone] = curves_of([measurement(2, 1, 5.0), measurement(1, 2, 5.0)])  # of different rounds
    assert math.isnan(alone.points[1].speedup)


def test_the_file(tmp_path: Path) -> None:
    found = [measurement(1, 1, 1 / 3), measurement(2, 1, 0.7, function='a "b", c')]
    write_csv(tmp_path / "a.csv", found)
    assert read_csv(tmp_path / "a.csv") == found
    text = (tmp_path / "a.csv").read_text()
    assert text.startswith(
        "function,scaling,batch,members,round,rows,steps,seconds,rows_per_second"
    )
    (tmp_path / "b.csv").write_text(text.replace("0.7", "-0.7"))
    (tmp_path / "c.csv").write_text(text.replace("members", "processes"))
    (tmp_path / "d.csv").write_bytes(b"\xff\xfe\x00")
    for name in "bc":
        with pytest.raises(synk.InputError, match=f"{name}.csv is not what `synk bench --csv`"):
            read_csv(tmp_path / f"{name}.csv")
    with pytest.raises(synk.InputError, match=r"d.csv: it is not UTF-8"):
        read_csv(tmp_path / "d.csv")
    with pytest.raises(synk.InputError, match="No such file"):
        read_csv(tmp_path / "e.csv")


def test_a_stopwatch_warms_up_and_fills_the_time() -> None:
    now, made = [0.0], []

    def step(rows: int) -> None:
        made.append(rows)
        now[0] += 1.0 if len(made) == 1 else 1e-3 * rows  # the first one compiles

    watch = Stopwatch(step, lambda: now[0])
    found = watch.measured(4, 2.0)
    assert found["steps"] == 500
    assert found["seconds"] == pytest.approx(2.0)
    before = len(made)
    assert watch.measured(4, 2.0)["steps"] == 500
    assert len(made) == before + 500  # nothing is warmed up twice
    assert watch.measured(5000, 2.0)["steps"] == 1  # longer than the time


def test_what_a_function_may_return() -> None:
    taken: list[np.ndarray] = []

    def call(x: Any, weights: Any, batch: np.ndarray) -> None:
        assert (x.shape, weights) == ((7, 2), 3.0)
        taken.append(batch)

    step = step_of(lambda: (call, np.ones((7, 2)), 3.0))
    for _ in range(4):
        step(3)
    assert all(len(batch) == 3 for batch in taken)
    for one, two in (taken[:2], taken[2:]):  # each epoch takes a row once
        assert len({*one, *two}) == 6
    assert not np.array_equal(taken[0], taken[2])
    with pytest.raises(synk.InputError, match=r"a step of 8 rows, and the data have 7"):
        step(8)
    closure = step_of(lambda: taken.clear)
    assert closure == taken.clear
    for wrong in (None, (call,), (1, 2), [call, 1]):
        with pytest.raises(synk.InputError, match=r"give a function of the group and its data"):
            step_of(lambda found=wrong: found)  # type: ignore[misc]


@pytest.mark.slow
def test_from_the_function_to_the_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With 1 and 2 members in turns; what the function prints does not disturb."""
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    options = ["--members", "2", "1", "--seconds", "0.1", "--rounds", "2"]
    files = ["--csv", "a.csv", "--plot", "a.svg"]
    code = main(["bench", "functions:summing", "--batch", "50", "100", *options, *files])
    out, err = capfd.readouterr()
    assert code == 0, err
    assert "what the user prints" in err
    head, plan, title, *lines = out.splitlines()
    assert plan == "measuring functions:summing for about 0 s"
    assert "of them physical" in head
    assert f"numpy {np.__version__}" in head
    assert title == "functions:summing, strong scaling, batch 50; median of 2 rounds"
    assert lines[0].split() == scaling_columns()
    assert [line.split()[:2] for line in lines[1:3]] == [["1", "50"], ["2", "50"]]
    found = read_csv("a.csv")
    turns = [(m.round, m.batch, m.members) for m in found]
    assert turns == [(i, batch, n) for i in (1, 2) for batch in (50, 100) for n in (1, 2)]
    for m in found:
        assert m.rows_per_second == pytest.approx(m.rows * m.steps / m.seconds)
    svg = ElementTree.parse("a.svg").getroot()
    assert svg.tag.endswith("svg")
    texts = ["".join(e.itertext()) for e in svg.iter() if e.tag.endswith("text")]
    assert "functions:summing, strong scaling, batch 100" in texts


def scaling_columns() -> list[str]:
    return ["members", "rows", "rows/s", "low", "high", "ms", "a", "step", "speed-up", "efficiency"]


def test_weak_scaling(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows of each member are the same."""

    class Fake(comparison.BenchProcess):
        def __init__(
            self, function: str, members: int, devices: str | None, lifeline: int | None
        ) -> None:
            self.members = members

        def __exit__(self, *exc: Any) -> None:
            pass

        def ready(self) -> dict[str, Any]:
            return {}

        def measure(self, rows: int, seconds: float) -> dict[str, Any]:
            assert seconds == 0.5
            return {"steps": 10, "seconds": 2.0}

    monkeypatch.setattr(comparison, "BenchProcess", Fake)
    monkeypatch.setattr(comparison, "header", lambda where: "ready")
    options = ["--weak", "-b", "40", "-n", "3", "1", "--seconds", "1", "--rounds", "2"]
    assert main(["bench", "m:f", *options]) == 0
    head, _, title, _, *lines, _ = capsys.readouterr().out.splitlines()
    assert (head, title) == (
        "ready",
        "m:f, weak scaling, batch 40 of each member; median of 2 rounds",
    )
    one = ["1", "40", "200", "200", "200", "200.000", "1.00", "100", "%"]
    three = ["3", "120", "600", "600", "600", "200.000", "3.00", "100", "%"]
    assert [line.split() for line in lines] == [one, three]


def served(
    name: str, lines: str, monkeypatch: pytest.MonkeyPatch, fork: Callable[..., None]
) -> tuple[int, list[Any]]:
    """What the process of a bench does, in this one: its exit code and its answers."""
    replies = io.StringIO()
    requests = io.StringIO(lines)
    monkeypatch.setattr(bench_process, "_own_streams", lambda: (requests, replies))
    monkeypatch.setattr(synk, "fork", fork)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code = bench_process.serve(name, 1, None)
    sys.modules.pop("functions", None)
    return code, [json.loads(line) for line in replies.getvalue().splitlines()]


def test_why_a_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    started: list[Any] = []

    def fork(members: int, devices: str | None) -> None:
        started.append((members, devices))

    code, answers = served("functions:counting", "[7, 0.001]\n", monkeypatch, fork)
    assert (code, started) == (0, [(1, None)])
    assert answers[0]["packages"]["numpy"] == np.__version__
    assert answers[1]["steps"] > 1
    assert served("functions:failing", "", monkeypatch, fork) == (1, [])
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "OSError: no data there" in err
    assert served("functions:fails", "", monkeypatch, fork) == (1, [])
    err = capsys.readouterr().err
    assert err == "synk bench: functions has no function 'fails'; did you mean failing?\n"
    code, answers = served("functions:dying", "[7, 0.1]\n", monkeypatch, fork)
    assert (code, len(answers)) == (4, 1)

    def refused(members: int, devices: str | None) -> None:
        raise synk.StartFailed("no processes left")

    capsys.readouterr()
    assert served("functions:counting", "", monkeypatch, refused) == (3, [])
    assert capsys.readouterr().err == "no processes left\n"


@pytest.mark.parametrize(
    ("ends", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 4), ("pass", 1)]
)
def test_exit_codes(
    ends: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """3: a group could not start; 4: a death; also after the process had been ready."""
    ready = "sys.stdout.write('{\"cores\": {}}\\n'); sys.stdout.flush(); sys.stdin.readline();"
    monkeypatch.setattr(comparison, "header", lambda where: "ready")
    for before in ("", ready):
        monkeypatch.setattr(interpreter, "_BOOTSTRAP", f"import os, sys; {before} {ends}")
        assert main(["bench", "m:f", "-n", "2"]) == code
        assert "m:f has failed with 2 members" in capsys.readouterr().err


def test_no_process_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends it at once; without one it ends with its input."""
    monkeypatch.setattr(interpreter, "_BOOTSTRAP", "import time; time.sleep(100)")
    with pytest.raises(KeyboardInterrupt), comparison.BenchProcess("m:f", 1, None, None) as sleeps:
        raise KeyboardInterrupt
    assert sleeps._process.returncode == -9
    monkeypatch.setattr(interpreter, "_BOOTSTRAP", "import sys; sys.stdin.read()")
    with comparison.BenchProcess("m:f", 1, None, None) as reads:
        pass
    assert reads._process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["mine"], "found 'mine', give MODULE:FUNCTION"),
        (["mine.py:f.g"], "give MODULE:FUNCTION"),
        (["m:f", "--csv", "not/there.csv"], "not/there.csv: there is no such folder"),
        (["m:f", "--plot", "not/there.svg"], "not/there.svg: there is no such folder"),
        (["m:f", "--batch", "0"], "0: give an integer of at least 1"),
        (["m:f", "--batch", "x"], "'x': give an integer of at least 1"),
        (["m:f", "--seconds", "-1"], "-1.0: give a number of more than 0"),
        (["m:f", "--seconds", "inf"], "inf: give a number of more than 0"),
    ],
)
def test_wrong_usage(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_processes_take_turns_where_they_can() -> None:
    assert (
        comparison.at_once([1, 2, 4], None) == comparison.at_once([1, 2, 4], "cpu") == [[1, 2, 4]]
    )
    assert comparison.at_once([1, 2], "cuda") == [[1], [2]]
    assert comparison.default_sizes(1) == [1]
    assert comparison.default_sizes(8) == [1, 2, 4, 8]


def test_what_makes_figures_doubtful(monkeypatch: pytest.MonkeyPatch) -> None:
    [curve] = curves_of([measurement(1, 1, 10.0), measurement(4, 1, 35.0)])
    calm = comparison.verdict(curve, physical=4, load=0.0)
    assert calm == "4 members make the most rows per second, 3.50 times those of 1."
    [slower] = curves_of([measurement(1, 1, 10.0), measurement(2, 1, 9.0)])
    assert comparison.verdict(slower, 4, 0.0) == "More members do not make more rows per second."
    [alone] = curves_of([measurement(1, 1, 10.0)])
    assert comparison.verdict(alone, 4, 0.0) == ""
    text = comparison.verdict(curve, physical=2, load=1000.0)
    assert "With more than 2 members, they share cores." in text
    assert "Other work keeps the machine busy" in text
    where = {
        "packages": {"synkhronos": "2", "pytensor": "3", "numpy": "2"},
        "system": {"python": "3.12", "machine": "x86_64"},
        "cores": {"may_use": 4, "physical": 2},
        "pytensor": {"mode": "JAX"},
        "variables": {"OPENBLAS_CORETYPE": "Haswell"},
        "blas": [{"name": "openblas", "core_type": "Haswell"}],
    }
    assert comparison.header(where).startswith("4 cores, 2 of them physical, x86_64")
    assert comparison.header(where).endswith(
        "openblas Haswell, mode JAX, OPENBLAS_CORETYPE=Haswell"
    )


def test_without_matplotlib(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so before it measures."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["bench", "m:f", "--plot", "a.svg"]) == 1
    assert 'pip install "synkhronos[report]"' in capsys.readouterr().err
