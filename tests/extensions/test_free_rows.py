"""Free rules use each row once in an epoch, at any speeds, and the Batches go on from there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from free_runs import TURN_RULES, Held, Slowed, batches_of, batches_wait, counting
from selection import thorough

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions._apart.free.claims import BatchOrder, Claims, RowsOfBatches
from synkhronos.extensions._apart.free.pages import AT_WORK, CLAIMED, REALS, Page, length
from synkhronos.extensions._apart.free.run import Run

PLAIN = rules.Downpour(1, scale="none")


def used(w: Any) -> np.ndarray:
    """How often each row has been used."""
    return -w.get_value()


@pytest.mark.each_choice
@pytest.mark.parametrize("slow", [None, "master", "workers"])
@pytest.mark.parametrize("last", ["keep", "drop"])
@pytest.mark.parametrize("begun", [0, 3])
@pytest.mark.parametrize("share", ["claimed", "fixed"])
def test_each_row_once_an_epoch(
    group: synk.Group, slow: str | None, last: str, begun: int, share: str
) -> None:
    """97 rows in batches of 10; of a first epoch that has begun, the rest."""
    slowed = None if slow is None else Slowed(**{slow: 0.003})
    train, w, data = counting(PLAIN, 97, slowed)
    batches, twin = (batches_of(97, 10, last=last) for _ in range(2))
    wanted = np.zeros(97)
    for each in (batches, twin):
        each.restore({**each.state(), "row": 10 * begun})
    for epoch in range(3):
        for rows in list(twin):
            wanted[rows] += 1
        assert twin.state()["epoch"] == epoch + 1
    with train.start(data, batches, epochs=3, share=share) as run:
        run.wait()
    np.testing.assert_array_equal(used(w), wanted)
    assert run.rows == wanted.sum()
    assert batches.state() == twin.state()
    steps = [found["steps"] for found in run.progress()]
    if share == "fixed":
        assert max(steps) - min(steps) <= 1
    with train.start(data, batches, epochs=2) as run:  # it goes on from there
        run.wait()
    for rows in [*list(twin), *list(twin)]:
        wanted[rows] += 1
    np.testing.assert_array_equal(used(w), wanted)
    assert batches.state() == twin.state()


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_member_makes_fewer_steps(monkeypatch: pytest.MonkeyPatch, slow: int) -> None:
    """It takes a batch when the other has made twice as many steps, and else the other does."""
    batches_wait(
        monkeypatch, lambda rank, steps: (rank == slow) == (steps[1 - slow] > 2 * steps[slow])
    )
    with synk.Group(2, start="fork"):
        train, w, data = counting(PLAIN, 300)
        with train.start(data, batches_of(300, 5)) as run:
            run.wait()
        np.testing.assert_array_equal(used(w), 1)
    steps = [found["steps"] for found in run.progress()]
    assert 0 < steps[slow] < steps[1 - slow]


def test_what_is_stopped_goes_on(group2: synk.Group) -> None:
    train, w, data = counting(PLAIN, 210, Slowed(0.002, 0.002))
    batches = batches_of(210, 5)
    with train.start(data, batches, epochs=500) as run:
        for _ in run.every(rows=30):
            break
    assert 0 < run.rows < 500 * 210
    assert used(w).sum() == run.rows == 210 * batches.state()["epoch"] + batches.state()["row"]
    whole = batches.state()["epoch"] + 1
    while batches.state()["epoch"] < whole:
        with train.start(data, batches) as run:
            run.wait()
    np.testing.assert_array_equal(used(w), whole)


@pytest.mark.each_choice
@pytest.mark.parametrize("name", [*TURN_RULES])
@pytest.mark.parametrize("period", [1, 3])
def test_each_batch_once_whatever_the_rule(size: int, name: str, period: int) -> None:
    """Refused contributions to a quorum are made again, also the last ones, of half a period."""
    rule = TURN_RULES[name]
    rule = type(rule)(**{**vars(rule), "period": period})
    with synk.Group(size):
        train, _, data = counting(rule, 130, Slowed(workers=0.001))
        with train.start(data, batches_of(130, 5), epochs=2, record=True) as run:
            run.wait()
    entries = [e for log in run.log.values() for e in log]
    numbers = sorted(b for e in entries if e[4] != "read" for b in e[5])
    assert numbers == list(range(52))
    assert run.rows == 5 * 52  # refused ones are not counted twice
    if "quorum" in name and size > 1:
        closed = [e for e in entries if "close" in e[4]]
        given = [e for e in entries if "contribute" in e[4]]
        # each contribution is in some version, also if nobody was left to wait for another
        assert max(e[0] for e in given) <= max(e[0] for e in closed)


def test_refused_contributions_occur(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three are enough: while the master is between two steps, they make new versions."""
    batches_wait(
        monkeypatch,
        lambda rank, steps: steps[0] > 0 if rank else steps[0] != 1 or max(steps[1:]) >= 6,
    )
    with synk.Group(3, start="fork"):
        rule = rules.Downpour(2, quorum=2)
        train, _, data = counting(rule, 130)
        with train.start(data, batches_of(130, 5), epochs=2, record=True) as run:
            run.wait()
    assert sum(found["refused"] for found in run.progress()) > 0
    numbers = [b for log in run.log.values() for e in log if e[4] != "read" for b in e[5]]
    assert sorted(numbers) == list(range(52))


@pytest.mark.parametrize("period", [*thorough(1), 4])
def test_a_death_loses_at_most_a_period(period: int, caplog: pytest.LogCaptureFixture) -> None:
    with synk.Group(3) as group:
        rule = rules.Downpour(period, scale="none")
        # the rest of the rows takes half a second, so that none is missing when the signal comes
        train, w, data = counting(rule, 4000, Slowed(0.002, 0.002))
        with train.start(data, batches_of(4000, 5)) as run:
            for _ in run.every(rows=100):
                break
            os.kill(group.channel.pid(2), signal.SIGKILL)
            run.wait()
        found = used(w)
        assert 5 * period >= (found == 0).sum()
        assert (found > 1).sum() <= 5
        assert found.max() <= 2
        [death] = run.deaths
        assert (death.rank, death.how.split()[0]) == (2, "killed")
        assert not run.progress()[2]["alive"]
        assert "rank 2" in caplog.text
        assert not group.alive


def test_the_batch_of_a_dead_member_is_a_contribution_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The master has contributed its last step, and waits for a quorum, when the other dies."""
    claim, pids = Claims.next, []

    def second(claims: Any, stopped: Any) -> int | None:
        until = time.monotonic() + 60
        while claims._peers.rank == 0 and not claims._pages[1].words[AT_WORK]:
            assert time.monotonic() < until
            time.sleep(0.001)
        return claim(claims, stopped)

    def kill(run: Run) -> None:
        if pids and not run.progress()[0]["present"]:
            os.kill(pids.pop(), signal.SIGKILL)

    monkeypatch.setattr(Claims, "next", second)
    monkeypatch.setattr(Run, "_name_stalled", kill)
    with synk.Group(2) as group:
        train, w, data = counting(rules.Downpour(2, quorum=2), 10, Held(tmp_path / "never"))
        pids.append(group.channel.pid(1))
        with pytest.warns(synk.UnusedWarning, match="exchange at their end only"):
            run = train.start(data, batches_of(10, 5))
        with run:
            run.wait()
    assert [death.rank for death in run.deaths] == [1]
    np.testing.assert_array_equal(used(w), 1)


def test_no_row_of_a_fixed_share_is_left_out(tmp_path: Path) -> None:
    """A run that goes on after a stop begins with the batches of the slowest member."""
    with synk.Group(2):
        train, w, data = counting(PLAIN, 40, Held(tmp_path / "go"))
        batches = batches_of(40, 5)
        with train.start(data, batches, share="fixed") as run:
            while run.progress()[0]["steps"] < 4 or not run._pages[1].words[AT_WORK]:
                run.wait(timeout=0.02)
            assert run.centre().batches["row"] == 15
            run.stop()
            (tmp_path / "go").touch()
        assert run.rows == 25
        # members have taken batches 0, 2, 4, 6 and 1
        assert batches.state()["row"] == 15
        with train.start(data, batches, share="fixed") as run:
            run.wait()
        assert {*used(w)} == {1, 2}
        assert (used(w) == 2).sum() == 10


def test_places_of_fixed_shares() -> None:
    """Each member's next batch, without those of the dead."""
    pages = [Page(np.zeros(length(3), np.int64), np.zeros(REALS), 3) for _ in range(3)]
    dead: set[int] = set()
    peers: Any = SimpleNamespace(
        rank=0, size=3, others=lambda: [rank for rank in (1, 2) if rank not in dead]
    )
    claims = Claims(pages, peers, 10, True)
    assert claims.reached() == 0
    for taken, place in ((0, 1), (2, 1), (1, 3), (4, 3), (3, 5), (5, 6), (6, 7), (9, 7), (7, 8)):
        pages[taken % 3].words[CLAIMED] = taken + 1
        assert claims.reached() == place
    dead.add(2)
    assert claims.reached() == 10


def test_places_of_batches_by_number() -> None:
    """The pure part: an order that has begun, whose last batches are short or left out."""
    for last in ("keep", "drop"):
        batches, twin = (batches_of(23, 5, last=last) for _ in range(2))
        for each in (batches, twin):
            each.restore({**each.state(), "row": 10})
        order = BatchOrder.of(batches, 3)
        rows = RowsOfBatches(order)
        wanted = [list(r) for _ in range(3) for r in list(twin)]
        assert [list(rows[b]) for b in range(order.total)] == wanted
        assert order.after(order.total) == twin.state()
        assert order.after(0) == batches.state()


def test_no_contribution_is_lost_at_the_end_of_a_round(group2: synk.Group) -> None:
    """Of nodes that meet: a quorum that is not full then is applied."""
    between = rules.Average(period=5)  # 10 batches a round, in periods of 3
    train, w, data = counting(rules.Nodes(rules.Downpour(3, quorum=2), between), 200)
    with train.start(data, batches_of(200, 5)) as run:
        run.wait()
    assert (w.get_value() < 0).all()


def test_a_contribution_that_nobody_has_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a round: another member was present when it was made, and has no rows."""
    claim, master = Claims.next, os.getpid()

    def late(claims: Any, stopped: Any) -> int | None:
        if os.getpid() != master:
            time.sleep(0.1)
        found = claim(claims, stopped)
        if found is None and os.getpid() == master:
            time.sleep(0.02)  # the other has come
        return found

    monkeypatch.setattr(Claims, "next", late)
    with synk.Group(2):
        inside, between = rules.Downpour(2, quorum=2), rules.Average(period=1)
        train, w, data = counting(rules.Nodes(inside, between), 15)
        with train.start(data, batches_of(15, 5)) as run:  # rounds of two batches and of one
            run.wait()
        assert (w.get_value() < 0).all()
