"""What a person sees of a run: at a terminal, in a file, in a notebook."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from screen import Screen

import synkhronos as synk
from synkhronos._compiling import progress
from synkhronos._engine.commands.base import Command
from synkhronos.training._record import console as consoles
from synkhronos.training._record.console import Console, Told

LIMIT = 20  # seconds; a test that waits so long fails


@dataclass(frozen=True)
class Speak(Command):
    """Print in workers."""

    text: str

    def run(self, member: Any) -> None:
        if member.rank:
            print(self.text)


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Screen]]:
    """Lets this process print to a terminal, from the call on: before, pytest has its own way."""

    def take() -> Screen:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stdout", made.stream)
        monkeypatch.setattr(sys, "stderr", made.stream)
        return made

    made = Screen()
    yield take
    made.close()


def at(rows: int, values: Callable[[], dict[str, float]] = dict) -> Told:
    """Progress in an epoch of 1000 rows, of 2."""
    before = (rows - 1) // 1000
    return Told(1 + before, 2, rows - 1000 * before, 1000, rows, values)


def test_the_line_of_the_manual(terminal: Callable[[], Screen], clock: Clock) -> None:
    """One line that is drawn over and over, and at the end stays."""
    screen = terminal()
    console = Console(clock=clock)
    console.banner(["4 members x 1 core, by fork", "seed 0 | runs/a"])
    values = {"loss": 0.41249, "val_acc": 0.885}
    console.progress(Told(3, 20, 13600, 60000, 133600, lambda: values))
    head = ["4 members x 1 core, by fork", "seed 0 | runs/a"]
    assert screen.lines[:2] == head
    assert screen.lines[2] == "epoch 3/20  23 %  loss 0.412  val_acc 0.885"
    clock.now += 0.5
    console.progress(Told(3, 20, 22200, 60000, 142200, lambda: values))
    line = "epoch 3/20  37 %  17.2k rows/s  loss 0.412  val_acc 0.885  eta 1:02"
    assert screen.lines == [*head, line]
    assert screen.read().endswith("\r")  # as the line of _compiling.progress leaves the cursor
    console.close()
    console.close()
    assert screen.lines == [*head, line]
    assert screen.read().endswith("\n")
    assert (sys.stdout, sys.stderr) == (screen.stream, screen.stream)


def test_it_is_drawn_seldom(terminal: Callable[[], Screen], clock: Clock) -> None:
    """Twice a second; the latest numbers are not lost."""
    screen = terminal()

    def values() -> dict[str, float]:
        asked.append(clock.now)
        return {}

    asked: list[float] = []
    console = Console(clock=clock)
    for rows in range(1, 1001):
        clock.now += 0.001
        console.progress(at(rows, values=values))
    assert len(asked) == 2
    console.progress(at(1001, values=values))
    console.close()
    assert screen.lines == ["epoch 2/2  0 %  1k rows/s  eta 0:01"]
    console.line("after the end")
    console.progress(at(1100))
    assert len(screen.lines) == 1


def test_lines_of_others_stand_above(terminal: Callable[[], Screen], clock: Clock) -> None:
    """Also those without an end, those of workers, and lines of our own."""
    screen = terminal()

    def draw(rows: int) -> None:
        clock.now += 1
        console.progress(at(rows))

    console = Console(clock=clock)
    draw(100)
    print("printed, and shorter")
    draw(200)
    print("to stderr", file=sys.stderr)
    sys.stdout.writelines(["two\n", "lines\n"])
    assert screen.lines == ["printed, and shorter", "to stderr", "two", "lines"]
    draw(300)
    print("no end", end="")
    draw(400)
    console.line("best so far\nsaved")
    shown = "epoch 1/2  40 %  100 rows/s  eta 0:16"
    assert screen.lines[4:] == ["no end", "best so far", "saved", shown]
    with synk.Group(2) as group:
        group.run(Speak("of a worker"))
        draw(500)
    console.close()
    assert screen.lines[6:-1] == ["saved", "[rank 1] of a worker"]
    assert screen.lines[-1].startswith("epoch 1/2  50 %")


def test_lines_of_a_log_stand_above(terminal: Callable[[], Screen], clock: Clock) -> None:
    """Logging keeps the stream that it has found at its start."""
    screen = terminal()
    handler = logging.StreamHandler()
    log = logging.getLogger("synkhronos")
    log.addHandler(handler)
    try:
        console = Console(clock=clock)
        console.progress(at(100))
        log.warning("short")
        clock.now += 1
        console.progress(at(200))
        console.close()
        assert screen.lines == ["short", "epoch 1/2  20 %  100 rows/s  eta 0:18"]
        assert handler.stream is screen.stream
    finally:
        log.removeHandler(handler)


def test_it_does_not_garble_what_compiling_tells(
    terminal: Callable[[], Screen], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread tells of compiling while a step runs; each erases the line of the other."""
    screen = terminal()
    pytest.importorskip("rich")
    monkeypatch.setattr(progress, "SOON", 0.01)
    monkeypatch.setattr(progress._LiveLine, "pause", 0.01)
    console = Console(clock=clock)
    for rows in (100, 200, 300):
        clock.now += 1
        console.progress(at(rows))
        with progress.telling("compiling f"):
            limit = time.monotonic() + LIMIT
            while not (lines := screen.lines) or not lines[0].startswith("compiling f: "):
                assert time.monotonic() < limit
                assert len(lines) <= 1
        assert screen.lines == []
        clock.now += 1
        console.progress(at(rows + 50))
        assert len(screen.lines) == 1
        assert screen.lines[0].startswith(f"epoch 1/2  {rows // 10 + 5} %")
    console.close()
    assert len(screen.lines) == 1


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (50, "epoch 1/2  10 %  損失 0.5  acc 0.25  é 1"),
        (40, "epoch 1/2  10 %  損失 0.5  acc 0.25"),
        (20, "epoch 1/2  10 %"),
        (9, "epoch 1/"),
    ],
)
def test_narrow_terminals(
    width: int, shown: str, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """What matters less goes first; a line never fills the last column."""
    monkeypatch.setenv("TERM", "xterm")
    narrow = Screen(width)
    console = Console(narrow.stream, clock=clock)
    values = {"損失": 0.5, "acc": 0.25, "é": 1}
    console.progress(at(100, lambda: values))
    assert narrow.lines == [shown]
    console.close()
    narrow.close()


def test_plain_lines_elsewhere(clock: Clock) -> None:
    """One each ten seconds, and one at the end."""
    file = io.StringIO()
    console = Console(file, clock=clock)
    console.banner(["a", "b"])
    for rows in range(1, 2001, 2):
        console.progress(at(rows, lambda rows=rows: {"loss": 1 / rows}))
        clock.now += 0.0101
    lines = ["a", "b", "epoch 2/2  98 %  198 rows/s  loss 0.000504  eta 0:01"]
    assert file.getvalue().splitlines() == lines
    console.line("saved")
    console.progress(at(2000))
    console.close()
    last = "epoch 2/2  100 %  198 rows/s"
    assert file.getvalue().splitlines() == [*lines, "saved", last]


def test_a_run_that_has_told_its_end(terminal: Callable[[], Screen], clock: Clock) -> None:
    """A lasting line that comes after the progress replaces it at the end, here and in a file."""
    screen, file = terminal(), io.StringIO()
    for stream in (sys.stderr, file):
        console = Console(stream, clock=clock)
        for rows in (1000, 1990, 1999):
            console.progress(at(rows))
            clock.now += 1e-3
        console.line("ended: all epochs")
        console.close()
    assert screen.lines == file.getvalue().splitlines() == ["ended: all epochs"]


def test_a_pipe(clock: Clock) -> None:
    """Lines arrive at once, and its end does not fail the run."""
    reader, writer = os.pipe()
    with open(writer, "w", encoding="ascii") as file:
        console = Console(file, clock=clock)
        console.line("ü")
        console.progress(at(100))
        clock.now += 10
        console.progress(at(200, lambda: {"\x1b[2J\n": float("nan")}))
        assert os.read(reader, 1000).decode().splitlines() == [
            r"\xfc",
            r"epoch 1/2  20 %  10 rows/s  \x1b[2J\n nan  eta 3:00",
        ]
        os.close(reader)
        for rows in (300, 400):
            clock.now += 10
            console.progress(at(rows))
            console.line("nobody reads")
        console.close()
        with pytest.raises(BrokenPipeError):
            file.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)


def test_a_terminal_that_hangs_up(terminal: Callable[[], Screen], clock: Clock) -> None:
    screen = terminal()
    console = Console(clock=clock)
    console.progress(at(100))
    screen.hang_up()
    for rows in (200, 300):
        clock.now += 1
        console.progress(at(rows))
    console.close()
    assert sys.stderr is screen.stream


def test_where_there_is_nothing_to_write_to(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        console = Console(stream, clock=clock)
        console.banner(["a"])
        console.progress(at(100))
        clock.now += 20
        console.progress(at(200))
        console.close()


def test_nothing_is_drawn_when_disabled(terminal: Callable[[], Screen], clock: Clock) -> None:
    screen = terminal()

    def refuse() -> dict[str, float]:
        raise AssertionError

    console = Console(enabled=False, clock=clock)
    assert sys.stdout is screen.stream
    console.banner(["a"])
    console.line("b")
    for rows in (100, 200):
        clock.now += 20
        console.progress(at(rows, values=refuse))
    console.close()
    assert screen.read() == ""


def test_counts_that_begin_anew(clock: Clock) -> None:
    file = io.StringIO()
    console = Console(file, clock=clock)
    for rows in (0, 1000, 500, 1500):
        console.progress(Told(7, 7, rows, 2000, rows))
        clock.now += 10
    console.close()
    assert file.getvalue().splitlines() == [
        "epoch 7/7  50 %  100 rows/s  eta 0:10",
        "epoch 7/7  25 %  eta 1:00",
        "epoch 7/7  75 %  100 rows/s  eta 0:10",
    ]


@pytest.mark.parametrize(("term", "is_terminal"), [("dumb", True), ("", True), ("xterm", False)])
def test_terminals_that_cannot_redraw(
    term: str, is_terminal: bool, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    monkeypatch.setenv("TERM", term)
    file = Stream()
    console = Console(file, clock=clock)
    console.progress(at(100))
    clock.now += 10
    console.progress(at(200))
    console.close()
    assert file.getvalue() == "epoch 1/2  20 %  10 rows/s  eta 3:00\n"


def test_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain lines, where the output of the cell is."""
    out = io.StringIO()
    shells = [None, SimpleNamespace(kernel=None)]  # a library may have imported IPython
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shells.pop(0)))
    assert not progress.in_notebook()
    monkeypatch.setattr(sys, "stdout", out)
    console = Console()
    console.line("a")
    console.close()
    assert out.getvalue() == "a\n"


def test_a_fork_leaves_the_line_alone(terminal: Callable[[], Screen], clock: Clock) -> None:
    screen = terminal()
    console = Console(clock=clock)
    console.progress(at(100))
    before = screen.read()
    pid = os.fork()
    if not pid:
        clock.now += 1
        console.progress(at(200))
        console.close()
        os._exit(sys.stdout is not screen.stream)
    assert os.waitpid(pid, 0)[1] == 0
    assert screen.read() == before
    console.close()


def test_no_thread(terminal: Callable[[], Screen], clock: Clock) -> None:
    screen = terminal()
    before = threading.active_count()
    console = Console(clock=clock)
    console.progress(at(100))
    assert threading.active_count() == before
    console.close()
    assert screen.lines


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.2, "1:00"), (130, "2:10"), (3723, "1:02:03"), (90061, "1 d 1:01:01")],
)
def test_durations(seconds: float, text: str) -> None:
    assert consoles._duration(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        *[(0.1234, "0.123"), (999.4, "999"), (999.9, "1k"), (17_240, "17.2k"), (999_900, "1M")],
        (2.5e9, "2,500M"),
    ],
)
def test_rates(rate: float, text: str) -> None:
    assert consoles._short(rate) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[(0.41249, "0.412"), (1234.4, "1,234"), (-1234, "-1,234"), (1e6, "1e+06")],
        *[(float("nan"), "nan"), (float("inf"), "inf"), (1e-9, "1e-09")],
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert consoles._number(value) == text
