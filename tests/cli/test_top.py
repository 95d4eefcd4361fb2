"""`synk top`: what it says of groups in each state, to whom, and in which form."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from rich.console import Console

import synkhronos as synk
from synkhronos._engine.commands.base import CALLS, CELLS, SIGN, SIGNED
from synkhronos._transport.shared_state.control_words import STATUS, STATUS_BYTES
from synkhronos._transport.shared_state.status import GroupStatus, MemberStatus, read_status
from synkhronos.cli._command_line import main
from synkhronos.cli._top import live_view, watched_groups
from synkhronos.cli._top.watched_chains import look_at_chains
from synkhronos.cli._top.watched_groups import Watch, WatchedGroup
from synkhronos.extensions import make_train_function, updates
from synkhronos.pymc._chains.progress import ChainProgress, ShownChains
from synkhronos.testing.faults import Fault


def look(watch: Watch) -> WatchedGroup:
    """The group of this process."""
    [group] = watch.look(os.getpid())
    return group


def until(seen: Callable[[WatchedGroup], bool], watch: Watch) -> WatchedGroup:
    """Look until something is seen."""
    limit = time.monotonic() + 60
    while not seen(found := look(watch)):
        assert time.monotonic() < limit, found
        time.sleep(0.02)
    return found


def test_memory_that_is_of_another_group_by_now() -> None:
    """It has another number of members than at the look before, so nothing is counted."""

    def of(members: int, calls: float) -> GroupStatus:
        clock = [0.0] * CELLS
        clock[SIGN], clock[CALLS] = SIGNED, calls
        member = MemberStatus(0, os.getpid(), 0, False, False, 0, (tuple(clock),))
        return GroupStatus(0, 1, None, "f", "", (member,) * members)

    assert watched_groups._deltas(of(2, 1), of(2, 5))
    assert watched_groups._deltas(of(2, 1), of(3, 5)) == []


def test_figures_of_training(group2: synk.Group) -> None:
    x = pt.matrix("x", dtype="float64")
    w = pytensor.shared(np.zeros(5), name="w")
    loss = ((x @ w - 1) ** 2).mean()
    train = make_train_function(loss, [w], x, None, updates.sgd, 0.1, mode=FAST, name="train")
    rows = synk.data(np.ones((30, 5)))
    train(rows)
    group2.note("\udce9 of a script's name in Latin-1")
    group2.note("näher " + 600 * "x")
    watch = Watch()
    began = time.monotonic()
    look(watch)
    for _ in range(50):
        train(rows)
    found = look(watch)
    seconds = time.monotonic() - began  # no less than between the looks
    assert found.what == "function train"
    assert found.note.startswith("näher xxx")
    assert len(found.note.encode()) == 512
    assert found.pid == os.getpid()
    assert found.steps == 50  # the first one compiles
    assert found.rates["steps"] >= 50 / seconds
    assert found.rates["rows"] == pytest.approx(30 * found.rates["steps"], rel=1e-6)
    assert [m.pid for m in found.members] == [group2.channel.pid(r) for r in (0, 1)]
    assert [m.state for m in found.members] == ["script", "idle"]
    for m in found.members:
        assert sum(m.share.values()) == pytest.approx(1)
        assert m.memory > 1e7
        assert not m.late


def test_states(group2: synk.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that computes while the master waits is late; then both are idle."""
    monkeypatch.setattr(watched_groups, "LATE_SECONDS", 0.05)
    watch = Watch()
    nap = threading.Thread(target=group2.run, args=(Fault("nap", ranks=(1,)),))
    nap.start()
    try:
        found = until(lambda g: g.members[1].late, watch)
        assert found.members[1].state == "compute"
        assert not found.members[0].late
        assert "LATE" in live_view.plain(found)
    finally:
        nap.join()
    until(lambda g: [m.state for m in g.members] == ["script", "idle"], watch)


class Awaited(Op):
    """The value itself; in the process `of` it is compiled once the event is set."""

    __props__ = ()
    of = 0
    event = threading.Event()

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def make_thunk(self, *args: Any, **options: Any) -> Any:
        assert os.getpid() != self.of or self.event.wait(60)
        return super().make_thunk(*args, **options)

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0].copy()

    def pullback(self, inputs: Any, outputs: Any, gradients: Any) -> Any:
        return gradients


def test_the_first_compilation(group2: synk.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker waits for the master's since the call, and is not late."""
    monkeypatch.setattr(watched_groups, "LATE_SECONDS", 0.0)
    monkeypatch.setattr(Awaited, "of", os.getpid())
    x = pt.matrix("x", dtype="float64")
    w = pytensor.shared(np.zeros(5), name="w")
    loss = ((Awaited()(x @ w) - 1) ** 2).mean()
    train = make_train_function(loss, [w], x, None, updates.sgd, 0.1, mode=FAST, reduction="avg")
    watch, began = Watch(), time.monotonic()
    call = threading.Thread(target=train, args=(np.ones((30, 5)),))
    call.start()
    try:
        found = until(lambda g: [m.state for m in g.members] == ["compile", "wait"], watch)
        assert found.members[1].seconds <= time.monotonic() - began
        assert not found.members[1].late
    finally:
        Awaited.event.set()
        call.join()
    until(lambda g: [m.state for m in g.members] == ["script", "idle"], watch)


def test_a_member_that_has_ended(group2: synk.Group) -> None:
    watch = Watch()
    os.kill(group2.channel.pid(1), signal.SIGKILL)
    os.waitid(os.P_PID, group2.channel.pid(1), os.WEXITED | os.WNOWAIT)
    until(lambda g: g.members[1].state == "ended", watch)


def test_groups_of_one_and_closed_ones() -> None:
    watch = Watch()
    with synk.Group(1) as group:
        group.note("alone")
        found = look(watch)
        assert (found.note, len(found.members)) == ("alone", 1)
    assert watch.look(os.getpid()) == []


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_one_look(
    arguments: list[str], group2: synk.Group, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = str(group2.channel.pid(1))
    assert main(["top", pid, "--interval", "0.05", *arguments]) == 0
    out = capsys.readouterr().out
    if arguments:
        found = json.loads(out)
        [group] = found["groups"]
        assert group["pid"] == os.getpid()
        assert [m["rank"] for m in group["members"]] == [0, 1]
        assert {"state", "seconds", "share", "memory", "late", "pid"} <= set(group["members"][1])
    else:
        assert re.search(rf"^  1     {pid}\s+idle ", out, re.MULTILINE)
    assert main(["top", "1", "--interval", "0.05"]) == 1
    assert "no group of this user" in capsys.readouterr().out
    assert main(["top", "--interval", "0"]) == 2


@pytest.mark.parametrize("header", [False, True], ids=["any bytes", "a group's first words"])
def test_memory_of_that_name_with_other_contents(
    group2: synk.Group, header: bool, trials: Callable[[int, int], int]
) -> None:
    """Another program of this user may have such a memory; it is left out, or its figures are."""
    draw = np.random.default_rng(3)
    page = os.pread(group2.arena.fd, STATUS + STATUS_BYTES, 0)
    told = set()
    for _ in range(trials(100, 20_000)):
        raw = bytearray(page if header else draw.bytes(len(page)))
        for _ in range(int(draw.integers(1, 40))):
            word = int(draw.integers(STATUS // 8, len(raw) // 8))
            some = [draw.bytes(8), np.int64(draw.integers(-2, 40)).tobytes(), b"\xff" * 8]
            raw[8 * word : 8 * word + 8] = some[int(draw.integers(3))]
        memory = os.memfd_create("synkhronos")
        try:
            os.ftruncate(memory, os.fstat(group2.arena.fd).st_size)
            os.write(memory, raw)
            status, seen = read_status(memory), watched_groups._EarlierLooks()
        finally:
            os.close(memory)
        for _ in range(2 if status else 0):
            watched_groups._watched(status, seen)
        told.add(status is not None)
    assert told == ({True, False} if header else {False})


def test_drawings(group2: synk.Group) -> None:
    """The table of rich has the same texts as the plain one."""
    console = pytest.importorskip("rich.console").Console(width=120)
    found = look(Watch())
    with console.capture() as captured:
        console.print(live_view.drawn([found]))
    for row in live_view.rows_of(found):
        for text in row:
            assert text in captured.get()
    with console.capture() as captured:
        console.print(live_view.drawn([]))
    assert "no group" in captured.get()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0042, "4 ms"), (59.94, "59.9 s"), (61, "1:01"), (3725, "1:02:05")],
)
def test_durations(seconds: float, text: str) -> None:
    assert live_view.duration(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(0.5, "0.5"), (1234, "1.23k"), (5.05e6, "5.05M")])
def test_counts(number: float, text: str) -> None:
    assert live_view.count(number) == text


# imports come first: the other user may not read them
OTHER_USER = """
import os, sys
from synkhronos.cli._top.watched_groups import Watch
path = sys.argv[1]
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    os.open(path, os.O_RDONLY)
except PermissionError as exc:
    print(exc.errno)
print(Watch().look())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_chains_that_are_sampled_into_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    def chain(made: int, divergences: int) -> ChainProgress:
        return ChainProgress(made > 0, made, 110, range(divergences), 7, 0.5, 6000)

    pid = os.getpid()
    with ShownChains(Path("/runs/night"), [60, 0]) as shown:
        shown.write([chain(90, 2), chain(30, 0)])
        [found] = look_at_chains(pid)
        said = "2 chains, 120 of 220 draws (tuning too), 2 divergences, about 0:00:10 left"
        assert (found.pid, found.folder, found.said) == (pid, "/runs/night", said)
        assert main(["top", str(pid), "--once", "--interval", "0.05"]) == 0
        assert capsys.readouterr().out.splitlines()[-2:] == [f"{pid}  /runs/night", f"{said}"]
        assert main(["top", str(pid), "--json", "--interval", "0.05"]) == 0
        assert json.loads(capsys.readouterr().out)["chains"][0]["said"] == said
        shown.write([chain(110, 2), chain(110, 0)])
        assert look_at_chains(pid)[0].said.endswith("220 of 220 draws (tuning too), 2 divergences")
        console = Console(record=True, width=90, file=io.StringIO())
        console.print(live_view.drawn([], look_at_chains(pid)))
        assert "220 of 220 draws" in console.export_text()
    assert look_at_chains(pid) == []


def test_another_user_sees_nothing(group2: synk.Group) -> None:
    path = f"/proc/{os.getpid()}/fd/{group2.arena.fd}"
    assert look(Watch()).pid == os.getpid()
    done = subprocess.run(
        [sys.executable, "-P", "-c", OTHER_USER, path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == [str(errno.EACCES), "[]"], done.stderr


def test_memory_that_is_not_a_group() -> None:
    """Also of one that has not started yet, and of another version."""
    fd = os.memfd_create("synkhronos")
    try:
        assert read_status(fd) is None
        os.ftruncate(fd, 1 << 21)
        assert read_status(fd) is None
    finally:
        os.close(fd)


def status(**changes: Any) -> GroupStatus:
    cells = (*[0.0] * 7, 3.0, 30.0, 0.0, 5.0, 6.0, 0.0, 0.0, 0.0, watched_groups.SIGNED)
    member = MemberStatus(0, os.getpid(), 4, False, False, 0, (cells,))
    members = member, replace(member, rank=1)
    return replace(GroupStatus(0, 4, None, "f", "", members), **changes)


@pytest.mark.parametrize(
    ("members", "late"),
    [
        (["compute", "compute"], []),
        (["wait", "compute"], [1]),
        (["compute", "compute", "idle"], []),
        (["wait", "compute", "idle"], [1]),
        (["wait", "compute", "compute"], []),
        (["compute", "idle"], []),
        (["compute"], []),
    ],
)
def test_a_member_is_late_if_all_others_wait(members: list[str], late: list[int]) -> None:
    """For more than 5 s; the first one is the master, which computes its own part first."""
    told = tuple(
        MemberStatus(rank, os.getpid(), 4 if doing == "idle" else 3, doing == "wait", False, 0, ())
        for rank, doing in enumerate(members)
    )
    for seconds in (4, 10):
        now = status(members=told, began=time.perf_counter() - seconds)
        found = watched_groups._watched(now, watched_groups._EarlierLooks())
        assert [m.rank for m in found.members if m.late] == (late if seconds > 5 else [])


def test_clocks_that_have_become_other_memory() -> None:
    """Cells that carry no sign are no figures."""
    before = status()
    other = tuple(replace(m, clocks=((1e30,) * 16,)) for m in before.members)
    assert watched_groups._deltas(before, status(members=other)) == []
    assert watched_groups._current(status(members=other)) == []
    grown = tuple(
        replace(m, clocks=(tuple(c + 1 if i < 9 else c for i, c in enumerate(m.clocks[0])),))
        for m in before.members
    )
    assert len(watched_groups._deltas(before, status(members=grown))) == 2
