"""Whatever happens to a member of a free rule's run, and wherever: the others go on (promises 2, 9,
15, 16)."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
import trips
from free_runs import FREE_RULES, Slowed, at_centre, batches_of, counting, equal
from selection import thorough
from trips import ACTS, IN_GOSSIP, IN_TURNS, PLACES, VICTIM, set_trip

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions import Death
from synkhronos.extensions._apart.free import turns
from synkhronos.extensions._apart.free.pages import WEIGHT

pytestmark = pytest.mark.unhurried

AT_CENTRE = ("centre", "centre quorum")
ROWS, EPOCHS = 60, 2
ELEMENTS = 1000
LIMIT = 60.0  # seconds
SOON = 1.0  # seconds until the next owner of the turn on a busy machine; 0.1 are promised


# of a step, a claim, a turn, a message and an end; the others lie between these
TYPICAL = ("step", "claimed", "spare half written", "after DONE", "sent", "ending")


def cases() -> list[Any]:
    """The whole matrix; in the default selection each typical place once."""
    found, seen = [], set()
    acts = list(ACTS)
    names = sorted(FREE_RULES, key=AT_CENTRE.__contains__)  # these take no turn of others
    for i, place in enumerate(PLACES):
        fitting = [
            n
            for n in names
            if not (place in IN_GOSSIP and n != "gosgd")
            and not (place in IN_TURNS and n in ("gosgd", "hogwild"))
        ]
        for j, act in enumerate(acts):
            for k, name in enumerate(fitting):
                turns = len(fitting) - len(AT_CENTRE) * (AT_CENTRE[0] in fitting)
                default = place in TYPICAL and (i + j) % len(acts) == 0 and k == i % turns
                default |= (place, act, name) == ("spare half written", "SIGKILL", "centre")
                seen.add(default and place)
                marks = () if default else pytest.mark.thorough
                found.append(
                    pytest.param(place, act, name, marks=marks, id=f"{place}-{act}-{name}")
                )
    assert seen - {False} == {*TYPICAL}
    return found


def whole(arrays: Any, name: str) -> None:
    """Whether all elements have one value: those of one version. Hogwild's never need to."""
    found = {float(v) for a in arrays for v in (a.min(), a.max())}
    assert np.isfinite([*found]).all()
    assert len(found) == 1 or name == "hogwild"


@pytest.mark.parametrize(("place", "act", "name"), cases())
def test_the_others_go_on(monkeypatch: pytest.MonkeyPatch, place: str, act: str, name: str) -> None:
    """The survivors use all rows; no point is torn; the variables get the centre."""
    trip = set_trip(monkeypatch, place, act)
    with synk.Group(3) as group:
        train, ws, data = equal(FREE_RULES[name], ROWS, ELEMENTS, Slowed(0.001, 0.001))
        batches = batches_of(ROWS, 1)
        # a late member of a quorum commits nothing, and one on a busy core may get few messages: it
        # takes longer until it comes to the place
        epochs = EPOCHS * (5 if "quorum" in name or place in IN_GOSSIP else 1)
        run = train.start(data, batches, epochs=epochs)
        pid = group.channel.pid(VICTIM)
        with trips.continued(pid, 0.3) if act == "SIGSTOP" else contextlib.nullcontext():
            for point in over(run):
                whole([point.values[w] for w in ws], name)
                check_states(at_centre(point.values), point.version, name)
        assert trip.tripped, "the victim has not come to the place"
        whole([w.get_value() for w in ws], name)
        assert np.all(ws[0].get_value() > 0)
        check_states(at_centre(train.state), train.state[-1].get_value()[1], name)
        check(run, batches, act, epochs)
        if name == "gosgd":
            alive = [p for r, p in enumerate(run._pages) if r != VICTIM or act != "SIGKILL"]
            left = sum(page.reals[WEIGHT] for page in alive)
            assert left > 0
            if act != "exception" or place not in IN_GOSSIP:  # where none comes from by itself
                assert left <= 1 + 1e-12
                assert left == pytest.approx(1) or act == "SIGKILL"
        assert group.alive == (act != "SIGKILL")
        if group.alive:
            monkeypatch.setattr(trip, "place", trips.Place("nowhere"))
            with train.start(data, batches_of(ROWS, 5)) as again:
                again.wait()


def check_states(states: Any, version: int, name: str) -> None:
    """The states of the optimizer at the centre are those of one version, and of this one."""
    for state in states:
        whole([state], name)
    if name == "centre":  # the last one counts the steps
        assert states[-1] == version


def over(run: Any) -> Any:
    """The points of a run to its end, which is a WorkerError if the victim has raised."""
    try:
        with run:
            yield from run.every(seconds=0.02)
            run.wait()
    except synk.WorkerError as exc:
        run.raised = exc


def check(run: Any, batches: Any, act: str, epochs: int) -> None:
    rows = run.rows
    if act == "exception":
        assert run.raised.rank == VICTIM
        assert "ZeroDivisionError" in str(run.raised)
        assert not run.deaths
        return
    assert [d.rank for d in run.deaths] == ([VICTIM] if act == "SIGKILL" else [])
    assert batches.state()["epoch"] == epochs
    total = ROWS * epochs
    if act == "SIGSTOP":
        assert rows == total
    else:  # the dead member's batch is used again, whether or not it had counted
        assert total - 1 <= rows <= total + 1


@pytest.mark.parametrize("place", ["before DONE", *IN_TURNS[:2]])
def test_the_next_owner(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Promise 16: the death of the one whose turn it is delays the others by some milliseconds."""
    trip = set_trip(monkeypatch, place, "SIGKILL")
    with synk.Group(3):
        train, _, data = equal(rules.Downpour(1), ROWS, ELEMENTS)
        # on a loaded machine the victim may begin late: the others go on until it has come
        with train.start(data, batches_of(ROWS, 1), epochs=1000 * EPOCHS) as run:
            for _ in run.every(seconds=0.02):
                if trip.tripped and trip.committed():
                    break
    late = trip.committed()[0] - trip.tripped
    print(f"the next version came {1e3 * late:.1f} ms after the death, {place}")
    assert late < SOON


def test_a_member_that_is_stopped_in_its_turn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The others make further steps, and try again; the warning names it."""
    trip = set_trip(monkeypatch, "before DONE", "SIGSTOP")
    with synk.Group(3) as group:
        train, _, data = equal(rules.EASGD(1), ROWS, ELEMENTS)
        pid = group.channel.pid(VICTIM)
        with (
            train.start(data, batches_of(ROWS, 1), epochs=20, stall_warning=0.3) as run,
            trips.continued(pid, 1.0),
        ):
            while not trip.tripped:
                run.wait(timeout=0.01)
            before = [found["steps"] for found in run.progress()]
            run.wait(timeout=0.8)
            after = [found["steps"] for found in run.progress()]
            assert after[0] > before[0] + 2
            assert after[2] > before[2] + 2
            assert run.progress()[0]["put_off"] > 0
            run.wait(timeout=1.0)
    assert "rank 1 has made no step for" in caplog.text


def test_a_member_that_is_stopped_while_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is passed once, not at each exchange."""
    trip = set_trip(monkeypatch, "asking", "SIGSTOP")
    with synk.Group(3) as group:
        train, _, data = equal(rules.EASGD(1), ROWS)
        pid = group.channel.pid(VICTIM)
        with train.start(data, batches_of(ROWS, 1), epochs=100) as run:
            try:
                while not trip.tripped:
                    run.wait(timeout=0.01)
                in_vain = count_waits_in_vain(run, monkeypatch)
                before = run.progress()[0]["exchanges"]
                until = time.monotonic() + LIMIT
                while run.progress()[0]["exchanges"] < before + 20:
                    run.wait(timeout=0.1)
                    assert time.monotonic() < until
            finally:
                os.kill(pid, signal.SIGCONT)
            # one of them for the member that is stopped; on a busy machine also others
            assert sum(in_vain) < 10


def count_waits_in_vain(run: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets a 1 for each wait of the master for a turn that it has not got."""
    peers, found = run._participant.peers, []
    wait = peers.wait

    def counted(ready: Any, seconds: float = math.inf) -> bool:
        done = wait(ready, seconds)
        found.append(int(not done and seconds == turns.PATIENCE))
        return bool(done)

    monkeypatch.setattr(peers, "wait", counted)
    return found


@pytest.mark.parametrize("name", ["quorum", "gosgd", *thorough("easgd", "bound", "hogwild")])
def test_all_workers_die(name: str) -> None:
    """The master goes on alone."""
    with synk.Group(3) as group:
        train, ws, data = equal(FREE_RULES[name], ROWS, slowed=Slowed(0.001, 0.005))
        batches = batches_of(ROWS, 1)
        with train.start(data, batches, epochs=3) as run:
            for _ in run.every(rows=20):
                break
            pids = {rank: group.channel.pid(rank) for rank in (1, 2)}
            for pid in pids.values():
                os.kill(pid, signal.SIGKILL)
            run.wait()
        done = [found["steps"] for found in run.progress()]
        for death in sorted(run.deaths, key=lambda death: death.rank):
            rank = death.rank
            assert death == Death(rank, pids.pop(rank), death.how, done[rank])
            assert "SIGKILL" in death.how
        assert not pids
        assert batches.state()["epoch"] == 3
        whole([w.get_value() for w in ws], name)
        assert not group.alive


def test_too_few_are_left(group2: synk.Group) -> None:
    train, w, data = counting(rules.Downpour(1, scale="none"), 4000)
    run = train.start(data, batches_of(4000, 1), epochs=1000, least=2)
    assert not run.wait(timeout=0.05)
    os.kill(group2.channel.pid(1), signal.SIGKILL)
    with pytest.raises(synk.WorkerDied, match="rank 1") as caught:
        run.wait()
    assert caught.value.ranks == (1,)
    assert 0 < -w.get_value().sum() < 4_000_000


def test_restarted_workers_take_part_in_the_next_run() -> None:
    with synk.Group(3, max_restarts=1) as group:
        train, w, data = counting(rules.Downpour(1, scale="none"), 400, Slowed(0.001, 0.001))
        with train.start(data, batches_of(400, 2), epochs=500) as run:
            run.wait(timeout=0.05)
            os.kill(group.channel.pid(1), signal.SIGKILL)
        assert group.alive
        w.set_value(np.zeros(400))
        with train.start(data, batches_of(400, 2), epochs=500) as run:
            until = time.monotonic() + LIMIT
            while not all(found["steps"] for found in run.progress()):
                assert time.monotonic() < until
                run.wait(timeout=0.01)
        assert -w.get_value().sum() == run.rows


def interrupt(after: float, times: int = 1) -> threading.Timer:
    def press() -> None:
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)

    timer = threading.Timer(after, press)
    timer.start()
    return timer


@pytest.mark.parametrize("name", ["easgd", "gosgd", *thorough("quorum", "bound")])
def test_ctrl_c(name: str) -> None:
    """Promise 9: all stop, the variables have the centre, and the group goes on."""
    with synk.Group(2) as group:
        train, ws, data = equal(FREE_RULES[name], ROWS, ELEMENTS, Slowed(0.001, 0.001))
        run = train.start(data, batches_of(ROWS, 1), epochs=500)

        def block() -> None:
            with run:
                run.wait()

        timer = interrupt(0.2)
        with pytest.raises(KeyboardInterrupt) as caught:
            block()
        timer.join()
        assert "was stopped; the variables have version" in caught.value.__notes__[0]
        whole([w.get_value() for w in ws], name)
        assert 0 < run.rows < 500 * ROWS
        assert group.alive
        with train.start(data, batches_of(ROWS, 10)) as again:
            again.wait()


@pytest.mark.parametrize("name", ["quorum", *thorough("bound", "easgd", "gosgd")])
def test_ctrl_c_twice(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The second one ends a worker that is stopped; it may be what the master waits for."""
    caplog.set_level(logging.ERROR)
    with synk.Group(2) as group:
        train, ws, data = equal(FREE_RULES[name], ROWS, ELEMENTS, Slowed(0.001, 0.001))
        run = train.start(data, batches_of(ROWS, 1), epochs=500)

        def block() -> None:
            with run:
                run.wait(timeout=0.1)
                os.kill(group.channel.pid(1), signal.SIGSTOP)
                timers.append(interrupt(0.2, times=2))
                run.wait()

        timers: list[threading.Timer] = []
        with pytest.raises(KeyboardInterrupt):
            block()
        timers[0].join()
        whole([w.get_value() for w in ws], name)
        assert [d.rank for d in run.deaths] == [1]
        assert not group.alive


@pytest.mark.each_choice
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["easgd", "quorum", "gosgd", "hogwild"])
def test_a_step_that_raises(monkeypatch: pytest.MonkeyPatch, name: str, rank: int) -> None:
    """In the master or in a worker: all stop, and the group goes on."""
    monkeypatch.setattr(trips, "VICTIM", rank)
    trip = set_trip(monkeypatch, "step", "exception")
    with synk.Group(2) as group:
        train, ws, data = equal(FREE_RULES[name], ROWS, ELEMENTS, Slowed(0.001, 0.001))
        run = train.start(data, batches_of(ROWS, 1), epochs=500)
        with pytest.raises(ZeroDivisionError if rank == 0 else synk.WorkerError):
            for _ in run.every(rows=10):
                pass
        assert trip.tripped
        whole([w.get_value() for w in ws], name)
        assert group.alive
        monkeypatch.setattr(trip, "place", trips.Place("nowhere"))
        with train.start(data, batches_of(ROWS, 10)) as again:
            again.wait()
