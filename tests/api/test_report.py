"""Reports: what is measured, what follows from it, and that calls without them are as before."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST

import synkhronos as synk
from synkhronos._api.report import Report
from synkhronos._engine.commands.base import PHASES
from synkhronos._engine.commands.call import Call


@pytest.fixture(autouse=True)
def _few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synkhronos._api.function._SECONDS", 0.0)


def report(size: int = 2, rows: int = 100, cores: int = 8, **ms: Any) -> Report:
    """Milliseconds by phase, the same in all members, or a list of them."""
    seconds = {}
    for phase in PHASES:
        given = ms.get(phase, 0.0)
        listed = given if isinstance(given, list) else [given] * size
        seconds[phase] = tuple(1e-3 * t for t in listed)
    return Report(
        "function f", 10, rows, seconds, 0, cores, ms.get("nbytes", 0), ms.get("load", 0.0)
    )


def test_small_parts_and_the_rows_that_are_enough() -> None:
    found = report(compute=6.0, scatter=1.0, wait=2.0, between=1.0)
    assert found.share("wait") == pytest.approx(0.2)
    # 100 rows take 7 ms beside 3 ms that stay; 172 rows take 12 ms, which is 80 % of 15
    assert found.enough_rows == 180
    assert found.verdict == (
        "Members compute 70 % and wait 20 % of the time: parts are too small; "
        "use batches of 180 rows or more."
    )
    again = report(rows=172, compute=6.0 * 1.72, scatter=1.72, wait=2.0, between=1.0)
    assert again.share("compute", "scatter") == pytest.approx(0.8, abs=1e-3)
    assert report(rows=0, compute=1.0, wait=9.0).verdict == (
        "Members compute 10 % and wait 90 % of the time: the compute of a call is too small to be "
        "divided."
    )


def test_updates_that_outweigh_a_small_batch() -> None:
    found = report(rows=32, compute=3.0, update=5.0, wait=1.0)
    assert found.verdict == (
        "Members compute 33 % and update 56 % of the time: parts are too small; "
        "use batches of 260 rows or more."
    )


def test_compute_binds() -> None:
    assert report(compute=9.0, wait=1.0).verdict.startswith("Members compute for 90 % of the time:")
    assert "synk.advise" in report(1, compute=9.0, wait=1.0).verdict


def test_a_slow_member() -> None:
    found = report(compute=[4.0, 8.0], wait=[4.0, 0.0])
    assert found.verdict == (
        "Rank 1 computes 2.0 times as long as the others, which wait for it 50 % of the time: "
        "another process uses its core, or its rows take longer."
    )


def test_more_members_than_cores() -> None:
    found = report(3, cores=2, compute=5.0, wait=5.0)
    assert found.verdict.startswith("3 members share 2 cores: ")
    assert "synk.fork(2)" in found.verdict


def test_a_busy_machine() -> None:
    assert "load 99.0 on" in report(compute=2.0, wait=8.0, load=99.0).verdict
    assert "load" not in report(compute=9.0, wait=1.0, load=99.0).verdict


def test_a_slow_script() -> None:
    found = report(compute=2.0, wait=1.0, between=7.0)
    assert found.verdict.startswith("70 % of the time passes between calls")
    assert "batches of 1,600 rows or more" in found.verdict


def test_outputs_that_take_long_to_move() -> None:
    found = report(compute=2.0, wait=8.0, nbytes=16_000_000)
    assert "80 % goes into moving 16.0 MB of outputs" in found.verdict
    assert "parts are too small" in report(compute=2.0, wait=8.0, nbytes=8).verdict


def test_plain_lines_a_terminal_and_a_dict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = report(compute=6.0, wait=[2.0, 1.0], between=1.0)
    lines = str(found).splitlines()
    assert lines[0] == "function f: 10 calls of 100 rows in 2 members; milliseconds of a call"
    assert lines[1].split() == ["rank", "compute", "wait", "between", "total"]
    assert lines[2].split() == ["0", "(master)", "6.000", "2.000", "1.000", "9.000"]
    assert lines[4].split() == ["share", "71", "%", "18", "%", "12", "%"]
    assert lines[5] == found.verdict
    assert repr(found) == str(found)
    found.show()
    assert capsys.readouterr().out == f"{found}\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    found.show()
    table = capsys.readouterr().out
    assert "┃" in table
    assert "6.000" in table
    assert json.loads(json.dumps(found.as_dict()))["seconds"]["wait"] == [0.002, 0.001]


def test_a_call_is_measured_and_changes_nothing(group: synk.Group) -> None:
    x = pt.matrix("x", dtype="float64")
    s = pytensor.shared(np.zeros(()), name="s")
    drawn = pytensor.shared(np.random.default_rng(3), name="drawn")
    following, noise = pt.random.normal(size=x.shape[:1], rng=drawn, return_next_rng=True)
    f = synk.function(
        [x],
        [(x.sum() + 0 * noise.sum(), "sum"), 2 * x],
        updates=[(s, s + x.mean(), "avg", "all"), (drawn, following)],
        mode=FAST,
        name="f",
    )
    before = drawn.get_value().bit_generator.state
    data = synk.data(np.ones((10, 3)))
    found = f.report(data, batch=[1, 2, 5, 7, 8, 9])
    assert found.what == "function f"
    assert found.calls >= 5
    assert found.rows == 6
    assert found.nbytes == 8 + 6 * 3 * 8
    assert found.size == group.size
    for rank in range(group.size):
        assert found.seconds["compute"][rank] > 0
        assert found.seconds["scatter"][rank] > 0
    totals = [sum(times) for times in zip(*found.seconds.values(), strict=True)]
    np.testing.assert_allclose(totals, totals[0], rtol=0.5)  # by one clock each
    assert s.get_value() == 0
    assert drawn.get_value().bit_generator.state == before
    assert f(data)[0] == 30
    assert s.get_value() == 1


def test_other_calls_are_plain(group2: synk.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    x = pt.vector("x", dtype="float64")
    f = synk.function([x], x.sum(), mode=FAST)
    f.report(np.ones(4))
    posted: list[Any] = []
    run = group2.runner.run

    def noted(command: Any, *rest: Any) -> Any:
        posted.append(command)
        return run(command, *rest)

    monkeypatch.setattr(group2.runner, "run", noted)
    for _ in range(3):
        assert f(np.ones(4)) == 4
    with f.measured():
        assert f(np.ones(4)) == 4
    assert [type(c) is Call for c in posted] == [True, True, True, False]
    assert len({id(c) for c in posted[1:3]}) == 1  # repeated as one word


def test_measured_calls(group: synk.Group) -> None:
    x = pt.vector("x", dtype="float64")
    s = pytensor.shared(0, name="s")
    f = synk.function([x], x.sum(), updates=[(s, s + 1)], mode=FAST)
    with pytest.raises(synk.InputError, match=r"no call .* `with f.measured\(\):`"):
        f.report()
    data = synk.data(np.ones(12))
    f(data)
    with f.measured():
        for first in (0, 4, 8):
            assert f(data, batch=slice(first, first + 4)) == 4
    assert s.get_value() == 4
    f(data)
    found = f.report()
    assert (found.calls, found.rows) == (3, 4)
    assert f.report() is found
    assert f.report(data).rows == 12


def test_a_call_that_fails(group2: synk.Group) -> None:
    x = pt.vector("x", dtype="float64")
    f = synk.function([x], (x[:3].sum() / x[2], "avg"), mode=FAST)
    with pytest.raises(IndexError):
        f.report(np.ones(4))
    assert f(np.ones(6)) == 3
    assert f.report(np.ones(6)).rows == 6


def test_inputs_that_are_not_scattered(group2: synk.Group) -> None:
    x = pt.vector("x", dtype="float64")
    f = synk.function([], x.sum(), bcast_inputs=[x], mode=FAST)
    found = f.report(np.ones(4))
    assert (found.rows, found.enough_rows) == (0, None)
    g = synk.function([], pt.constant(2.0) * 1, mode=FAST)
    assert g.report().calls >= 5


def test_after_a_restart() -> None:
    with synk.Group(2, max_restarts=1) as group:
        x = pt.vector("x", dtype="float64")
        f = synk.function([x], x.sum(), mode=FAST)
        f.report(np.ones(4))
        os.kill(group.channel.pid(1), signal.SIGKILL)
        assert f(np.ones(4)) == 4
        assert f.report(np.ones(4)).size == 2
