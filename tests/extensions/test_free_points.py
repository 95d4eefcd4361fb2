"""What a run of a free rule shows and takes while members train: points, numbers, stops."""

from __future__ import annotations

import math
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from free_runs import (
    FREE_RULES,
    Held,
    Slowed,
    at_centre,
    batches_of,
    batches_wait,
    counting,
    equal,
)
from modes import FAST
from selection import thorough

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import make_train_function, updates
from synkhronos.extensions._apart.free.run import Run

pytestmark = pytest.mark.usefixtures("lasting_groups")

PLAIN = rules.Downpour(1, scale="none")
MANY = 40_000  # elements, several blocks of an exchange


def values(ws: Any) -> list[np.ndarray]:
    return [w.get_value() for w in ws]


def whole(arrays: Any) -> bool:
    """Whether all elements have one value."""
    return len({float(v) for a in arrays for v in (a.min(), a.max())}) == 1


TYPICAL = "bound", "hogwild", "gosgd"  # one of each kind of exchange


@pytest.mark.parametrize(
    "name", [*TYPICAL, *thorough(*(name for name in FREE_RULES if name not in TYPICAL))]
)
def test_points_are_of_one_version(name: str) -> None:
    """All elements have the same value by construction, at any time between two steps."""
    with synk.Group(2):
        train, ws, data = equal(FREE_RULES[name], 60, MANY)
        versions, seen = [], []
        with train.start(data, batches_of(60, 1), epochs=100) as run:
            for point in run.every(seconds=0.01):
                points = [point, *(run.centre() for _ in range(4))]
                for found in points:
                    assert found.torn == (name == "hogwild")
                    assert whole(found.values[w] for w in ws) or found.torn
                    states = at_centre(found.values)
                    assert all(whole([s]) for s in states)
                    if name == "centre":  # the last one counts the steps
                        assert states[-1] == found.version
                    seen.append(float(found.values[ws[0]][0]))
                    versions.append(found.version)
                if len(versions) > 40 and len({*seen}) > 4:
                    break
        assert versions == sorted(versions)
        assert len({*seen}) > 4
        assert whole(values(ws)) or name == "hogwild"
        assert [h["version"] for h in run.history] == versions


@pytest.mark.parametrize(
    ("given", "key"),
    [({"rows": 60}, "rows"), ({"exchanges": 12}, "version"), ({"seconds": 0.05}, "seconds")],
)
def test_every(group: synk.Group, given: dict[str, Any], key: str) -> None:
    train, w, data = counting(PLAIN, 240, Slowed(0.002, 0.002))
    with train.start(data, batches_of(240, 5)) as run:
        points = list(run.every(**given))
    [interval] = given.values()
    numbers = [getattr(point, key) for point in points]
    assert numbers == sorted(numbers)
    assert numbers[0] >= interval
    for point in points:
        assert point.rows <= 240
        assert point.epoch == point.batches["epoch"]
        assert math.isfinite(point.loss)
    if key != "seconds":
        assert numbers[-1] == {"rows": 240, "version": 48}[key]
    assert [h["seconds"] for h in run.history] == [point.seconds for point in points]
    # a point is a copy
    assert not any(
        np.shares_memory(p.values[w], q.values[w]) for p in points for q in points if p is not q
    )


def test_progress(group: synk.Group) -> None:
    train, _, data = counting(PLAIN, 240, Slowed(0.001, 0.001))
    with train.start(data, batches_of(240, 5)) as run:
        for _ in run.every(rows=60):
            found = run.progress()
            assert len(found) == group.size
            assert sum(each["rows"] for each in found) == pytest.approx(run.rows, abs=10)
        run.wait()
        last = run.progress()
    assert run.progress() == last
    assert sum(each["steps"] for each in last) == sum(each["exchanges"] for each in last) == 48
    assert all(0 <= each["waited"] <= 1 and each["idle"] >= 0 for each in last)
    assert all(each["alive"] and not each["present"] for each in last)
    for each in last:
        assert each["stalest"] >= each["staleness"]
    if group.size == 1:
        assert last[0]["staleness"] == 0


def test_numbers_are_set(group: synk.Group) -> None:
    """A rule whose alpha is 0 never moves the centre; the next run has the rule's own number."""
    train, ws, data = equal(rules.EASGD(1, alpha=0.0), 60)
    with pytest.warns(synk.UnusedWarning, match="never exchange"):
        run = train.start(data, batches_of(60, 2), epochs=60)
    with run:
        for point in run.every(rows=30):
            assert not point.values[ws[0]].any()
            break
        run.set(alpha=0.5)
        run.wait()
    moved = values(ws)
    assert np.all(moved[0] > 0)
    with pytest.warns(synk.UnusedWarning, match="never exchange"):
        run = train.start(data, batches_of(60, 2), epochs=2)
    with run:
        with pytest.raises(synk.InputError, match="set"):
            run.set(period=3)
        with pytest.raises(synk.InputError, match="alpha"):
            run.set(alpha=2.0)
        run.wait()
    np.testing.assert_array_equal(values(ws), moved)


def test_no_number_is_the_default_one(group: synk.Group) -> None:
    """As where the rule is made; the centre moves, and stays finite."""
    train, ws, data = equal(rules.EASGD(2, alpha=0.5), 60)
    with train.start(data, batches_of(60, 2)) as run:
        run.set(alpha=None)
        run.wait()
    assert run._participant.rule.alpha == 0.9 / group.size
    assert all((w > 0) & np.isfinite(w) for w in np.ravel(values(ws)))


def test_numbers_of_gossip(group2: synk.Group) -> None:
    train, _, data = equal(rules.GoSGD(0.0), 60, slowed=Slowed(0.001, 0.001))
    with train.start(data, batches_of(60, 1), epochs=2) as run:
        for _ in run.every(rows=20):
            break
        assert sum(found["exchanges"] for found in run.progress()) == 0
        run.set(probability=1.0)
        run.wait()
    assert sum(found["exchanges"] for found in run.progress()) > 0


def test_a_copy_that_waits_for_a_stalled_member_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By GoSGD each member shows its values after a step."""
    look = Run._name_stalled

    def named(run: Run) -> None:
        look(run)
        if "rank 1 has made no step for" in caplog.text:
            (tmp_path / "go").touch()

    monkeypatch.setattr(Run, "_name_stalled", named)
    late = threading.Timer(5.0, (tmp_path / "go").touch)
    with synk.Group(2):
        late.start()
        train, _, data = equal(rules.GoSGD(0.5), 60, slowed=Held(tmp_path / "go"))
        with train.start(data, batches_of(60, 10), stall_warning=0.05) as run:
            while not (tmp_path / "held").exists():
                time.sleep(0.001)
            assert np.isfinite(run.centre().values[train.params[0]]).all()
            assert late.is_alive()
    late.cancel()
    late.join()


def test_versions_of_gossip_count_messages(group: synk.Group) -> None:
    """However often the master has asked for a copy; and no note is about a last exchange."""
    train, _, data = equal(rules.GoSGD(0.5, seed=1), 60)
    for runs in (1, 2):
        with train.start(data, batches_of(60, 1)) as run:
            before = train.state[-1].get_value()[1]
            points = [run.centre() for _ in range(3)] + list(run.every(rows=20))
        sent = sum(found["exchanges"] for found in run.progress())
        assert train.state[-1].get_value().tolist() == [60 * runs, before + sent]
        versions = [point.version for point in points]
        assert versions == sorted(versions)
        assert before <= versions[0]
        assert versions[-1] <= before + sent
        assert run.notes == []


def test_stop_and_discard(group: synk.Group) -> None:
    train, w, data = counting(PLAIN, 20_000, Slowed(0.001, 0.001))
    batches = batches_of(20_000, 5)
    run = train.start(data, batches)
    assert not run.wait(timeout=0.02)
    run.stop()
    assert run.wait()
    assert run.wait()
    run.stop()
    run.discard()
    kept, state = w.get_value(), batches.state()
    assert -kept.sum() == run.rows == state["row"]
    with pytest.raises(synk.GroupError, match="has ended"):
        run.centre()
    assert list(run.every(rows=1)) == []
    run = train.start(data, batches)
    while not run.rows:
        run.wait(timeout=0.01)
    run.discard()
    np.testing.assert_array_equal(w.get_value(), kept)
    assert batches.state() == state


def test_a_stop_while_the_master_waits_for_the_last_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As by a signal handler, or since a member has raised: `wait` goes on to the end."""
    end = Run._end

    def stop(run: Run) -> None:
        if not run.progress()[0]["present"]:
            run.stop()

    def ended(run: Run, keep: bool) -> None:
        (tmp_path / "go").touch()
        end(run, keep)

    monkeypatch.setattr(Run, "_name_stalled", stop)
    monkeypatch.setattr(Run, "_end", ended)
    with synk.Group(2):
        train, w, data = counting(PLAIN, 10, Held(tmp_path / "go"))
        with train.start(data, batches_of(10, 5), share="fixed") as run:
            assert run.wait()
        assert (w.get_value() == -1).all()


@pytest.mark.parametrize("rule", [rules.Downpour(1, bound=0), rules.Downpour(1, quorum=2)], ids=str)
def test_times_count_while_the_master_waits_for_others(rule: rules.Rule, tmp_path: Path) -> None:
    with synk.Group(2):
        train, _, data = counting(rule, 40, Held(tmp_path / "go"))
        with train.start(data, batches_of(40, 5)) as run:
            while not run.progress()[1]["present"]:
                time.sleep(0.001)
            while not run.rows:
                assert not run.wait(timeout=0.02)
            assert not run.wait(timeout=0.02)  # the master waits after its first step
            assert next(iter(run.every(seconds=0.01))).rows == 5
            (tmp_path / "go").touch()
            assert run.wait()
    assert run.rows == 40


def test_a_block_that_raises(group: synk.Group) -> None:
    """Members stop, the variables get the centre, and the exception says so."""
    train, w, data = counting(PLAIN, 500, Slowed(0.001, 0.001))
    run = train.start(data, batches_of(500, 5))

    def block() -> None:
        with run:
            for _ in run.every(rows=50):
                raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        block()
    version = sum(found["exchanges"] for found in run.progress())
    assert f"was stopped; the variables have version {version} of" in caught.value.__notes__[0]
    assert -w.get_value().sum() == run.rows
    assert 50 <= run.rows < 500
    with train.start(data, batches_of(500, 50)) as run:
        run.wait()
    assert run.rows == 500


def test_statistics_are_averaged(group: synk.Group) -> None:
    """Variables of updates=, also whole numbers, are in the points and in the variables."""
    x = pt.vector("x", dtype="float64")
    w, mean = (pytensor.shared(np.zeros(()), name=name) for name in ("w", "mean"))
    count = pytensor.shared(np.asarray(7), name="count")
    train = make_train_function(
        *(((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.01),
        rule=rules.EASGD(1),
        updates=[(mean, 0.5 * mean + 0.5 * x.mean()), (count, count * 0 + 7)],
        mode=FAST,
    )
    data = train.build_inputs(np.full(80, 3.0))
    with train.start(data, batches_of(80, 2)) as run:
        points = list(run.every(rows=20))
    assert abs(points[-1].values[mean] - mean.get_value()) < 0.5  # or the last exchange is missing
    assert 2.5 < mean.get_value() <= 3.0
    assert points[-1].values[count] == count.get_value() == 7


def test_a_learning_rate_between_points(group: synk.Group) -> None:
    rate = pytensor.shared(np.asarray(0.0), name="rate")
    rows = pt.lvector("rows")
    w = pytensor.shared(np.zeros(200), name="w")
    slowed = Slowed(0.003, 0.003)
    train = make_train_function(
        w[rows].sum() + slowed(0.0), [w], rows, None, updates.sgd, rate, rule=PLAIN, mode=FAST
    )
    data = train.build_inputs(np.arange(200))
    with train.start(data, batches_of(200, 2)) as run:
        for point in run.every(rows=60):
            if not rate.get_value():
                assert not point.values[w].any()
                rate.set_value(1.0)
    assert {0.0, 1.0} == {*-w.get_value()}


def test_functions_meanwhile(group: synk.Group) -> None:
    """Plain functions and `as_pytensor` work on points; commands and a second run are refused."""
    train, ws, data = equal(PLAIN, 60)
    x = pt.vector("x", dtype="float64")
    total = synk.function([x], x.sum(), mode=FAST)
    with train.start(data, batches_of(60, 1), epochs=4) as run:
        for point in run.every(rows=60):
            assert total.as_pytensor(point.values[ws[0]]) == point.values[ws[0]].sum()
            refused = [
                lambda: total(np.ones(4)),
                lambda: synk.broadcast(ws[0]),
                lambda: train.start(data, batches_of(60, 1)),
            ]
            for call in refused:
                with pytest.raises(synk.GroupError, match="wait"):
                    call()
    assert total(np.ones(4)) == 4
    assert synk.get_value(group.size - 1, ws[0]).shape == (1,)


def test_runs_have_the_users_values(group: synk.Group) -> None:
    """Each run begins at the variables; optimizers begin anew."""
    train, ws, data = equal(rules.EASGD(2), 20)
    for start in (5.0, -3.0):
        for w in ws:
            w.set_value(np.full(1, start))
        with train.start(data, batches_of(20, 2)) as run:
            point = run.centre()
            assert run.rows or point.values[ws[0]][0] == start
        assert abs(ws[0].get_value()[0] - start) < abs(start - 1.5)


def towards_rows(rule: rules.Rule, start: float) -> tuple[Any, Any]:
    """Three parameters that begin at `start`, and a function that trains them towards rows."""
    x = pt.vector("x", dtype="float64")
    w = pytensor.shared(np.full(3, start), name="w")
    loss = ((w - x[:, None]) ** 2).sum(axis=1).mean()
    return w, make_train_function(loss, [w], x, None, updates.sgd, 0.05, rule=rule, mode=FAST)


@pytest.mark.parametrize("rule", [rules.EASGD(1), rules.Hogwild()], ids=str)
def test_a_refused_contribution_leaves_the_centre_whole(
    group: synk.Group, rule: rules.Rule
) -> None:
    """One step whose gradient is not finite; its loss is not in the means of later points."""
    w, train = towards_rows(rule, 0.0)
    rows = np.ones(100)
    rows[37] = np.nan
    data = train.build_inputs(rows)
    with train.start(data, batches_of(100, 2)) as run:
        points = list(run.every(rows=10))
    assert sum(found["refused"] for found in run.progress()) == 1
    assert all(np.isfinite(point.values[w]).all() for point in points)
    assert np.isfinite(w.get_value()).all()
    assert math.isfinite(points[-1].loss)


@pytest.mark.parametrize("name", ["easgd", "quorum", "gosgd", "hogwild"])
@pytest.mark.parametrize("size", [1, 2])
def test_parameters_that_stay_not_finite(size: int, name: str) -> None:
    """Three in a row raise, in the worker or in the master; the centre is kept."""
    with synk.Group(size) as group:
        rule = {
            "easgd": rules.EASGD(1),
            "quorum": rules.Downpour(1, quorum=2),
            "gosgd": rules.GoSGD(1.0),
            "hogwild": rules.Hogwild(),
        }[name]
        w, train = towards_rows(rule, 1.0)
        data = train.build_inputs(np.full(200, np.nan))
        error = FloatingPointError if size == 1 else (FloatingPointError, synk.WorkerError)
        with pytest.raises(error, match="not finite"), train.start(data, batches_of(200, 2)) as run:
            run.wait()
        if name != "gosgd":
            np.testing.assert_array_equal(w.get_value(), 1)
        assert group.alive
        w.set_value(np.ones(3))
        good = train.build_inputs(np.full(200, 2.0))
        with train.start(good, batches_of(200, 2)) as run:
            run.wait()
        assert np.all(w.get_value() > 1)


@pytest.mark.thorough
def test_fresh_interpreters() -> None:
    with synk.Group(2, start="exec"):
        train, ws, data = equal(rules.EASGD(2), 40)
        with train.start(data, batches_of(40, 2), epochs=5) as run:
            points = list(run.every(rows=20))
        assert points[-1].rows == 200
        assert whole(values(ws))
        assert np.all(ws[0].get_value() > 0)


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
@pytest.mark.parametrize("rule", [rules.EASGD(2), rules.GoSGD(0.5), FREE_RULES["centre"]])
def test_mode_jax(rule: rules.Rule) -> None:
    with synk.Group(2, start="exec"):
        x = pt.vector("x", dtype="float64")
        w = pytensor.shared(np.zeros(3), name="w")
        loss = ((w - x[:, None]) ** 2).sum(axis=1).mean()
        train = make_train_function(loss, [w], x, None, updates.adam, 0.1, rule=rule, mode="JAX")
        data = train.build_inputs(np.full(80, 2.0))
        with train.start(data, batches_of(80, 2), epochs=4) as run:
            points = list(run.every(rows=80))
        assert points[-1].rows == 320
        # a member that makes no step, on a busy machine, holds the mean at 1
        assert np.all((w.get_value() > 0.5) & (w.get_value() < 2.5))


@pytest.mark.new_group  # its members have the turns
@pytest.mark.parametrize("late", [True, False])
def test_a_master_that_began_late_is_named(
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    late: bool,
) -> None:
    """Its last exchange changes the centre after the last point; one line says so."""

    def ready(rank: int, steps: list[int]) -> bool:
        return rank == 0 or (steps[1] < 10 if late else steps[0] > 0)

    batches_wait(monkeypatch, ready)
    request.getfixturevalue("group2")
    train, ws, data = equal(rules.EASGD(8, alpha=0.5), n=16)
    started = time.monotonic()
    with train.start(data, batches_of(16, 1), epochs=1) as run:
        while late and run.rows < 9:
            assert time.monotonic() < started + 60
            time.sleep(0.01)
        points = list(run.every(rows=3 if late else 16))
    assert sum(member["rows"] for member in run.progress()) == 16
    if not late:
        assert run.notes == []
        return
    version = run.history[-1]["version"]
    [note] = run.notes
    assert f"the last point has {version}: the master began when" in note
    assert f"EASGD(period=8, alpha=0.5): {note}" in caplog.text
    assert not np.array_equal(points[-1].values[ws[0]], ws[0].get_value())
