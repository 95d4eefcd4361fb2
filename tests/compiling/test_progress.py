"""What the user is told while a call compiles, and that nothing of it is left."""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synkhronos as synk
from synkhronos._compiling import progress
from synkhronos._compiling.compile_cache import operations_of
from synkhronos._compiling.progress import telling, watch
from synkhronos.extensions import make_train_function, updates
from synkhronos.testing.faults import Fault

LIMIT = 20  # seconds; a test that waits so long fails


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell after a moment, and often."""
    monkeypatch.setattr(progress, "SOON", 0.01)
    monkeypatch.setattr(progress, "FIRST", 0.01)
    monkeypatch.setattr(progress._LogLines, "pause", 0.01)
    monkeypatch.setattr(progress._LiveLine, "pause", 0.01)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """The lines logged so far."""
    with caplog.at_level(logging.INFO, "synkhronos"):
        yield lambda: [r.getMessage() for r in caplog.records if r.name == "synkhronos"]


class Terminal(io.StringIO):
    """Text that is shown to a person."""

    def isatty(self) -> bool:
        return True


def until(holds: Callable[[], object]) -> None:
    limit = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.005)


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "synkhronos"]


def test_lines_of_the_log(lines: Callable[[], list[str]]) -> None:
    with telling("compiling f", lambda: [1, 2]):
        assert threads()
        until(lambda: len(lines()) > 1)
    assert lines()[:2] == ["compiling f: ranks 1, 2 compiling, 0 s"] * 2
    assert lines()[-1] == "compiling f: done after 0 s"
    assert not threads()


def test_what_fails_is_not_done(lines: Callable[[], list[str]]) -> None:
    def fail() -> None:
        with telling("compiling f"):
            until(lines)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not threads()
    assert not [line for line in lines() if "done" in line]


def test_a_line_that_nobody_reads_fails_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def write(text: str) -> None:
        written.append(text)
        raise BrokenPipeError

    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda self: False)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=write))
    progress.tell("the model is sampled plainly")
    monkeypatch.undo()
    assert written == ["synkhronos: the model is sampled plainly\n"]


def test_what_is_short_is_not_told(
    lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "FIRST", 60)
    with telling("compiling f"):
        pass
    assert not threads()
    assert not lines()


def test_inside_another(lines: Callable[[], list[str]]) -> None:
    """One thread; the text is that of the innermost."""
    with telling("reading"):
        with telling("compiling"):
            until(lambda: any("compiling" in line for line in lines()))
            assert len(threads()) == 1
        n = len(lines())
        until(lambda: any("reading: 0 s" in line for line in lines()[n + 1 :]))
    assert lines()[-1].startswith("reading: done")


def test_a_line_at_a_terminal(
    lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with telling("compiling f"):
        until(lambda: screen.getvalue().count("compiling f: 0 s") > 1)
    assert "\n" not in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[2K")  # the line is empty again
    assert not lines()


def test_without_logging_it_goes_to_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with warnings, so that a script without any settings is not silent."""
    monkeypatch.setattr(progress.log, "hasHandlers", lambda: False)
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    with telling("compiling f"):
        until(said.getvalue)
    assert said.getvalue().startswith("synkhronos: compiling f: 0 s\n")


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_without_stderr(stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.log, "hasHandlers", lambda: False)
    if stream is not None:
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    with telling("compiling f"):
        time.sleep(0.05)
    assert not threads()


def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of processes fails nothing."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with telling("compiling f"):
        pass


@pytest.mark.parametrize("size", [1, 2])
def test_only_the_first_call_of_a_function_tells(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    start = progress._Told.start

    def started(told: progress._Told) -> None:
        texts.append(told.text)
        start(told)

    monkeypatch.setattr(progress._Told, "start", started)
    x = pt.vector("x", dtype="float64")
    with synk.Group(size):
        f = synk.function([x], [x.sum(), x.max()], mode="FAST_COMPILE", name="f")
        assert texts == ["proving f"]
        for n in (3, 4, 4):
            f(np.ones(n))
        assert texts[1:] == ["compiling f"]
        f(np.ones(3), output_subset=[0])  # another variant
        f(np.ones(3), output_subset=[0])
        assert texts[2:] == ["compiling f"]
        f.as_pytensor(np.ones(3))
        f.as_pytensor(np.ones(3))
        assert texts[3:] == ["compiling f"]
        del texts[:]
        w = pytensor.shared(np.zeros(()), name="w")
        train = make_train_function(
            ((w - x) ** 2).mean(), [w], x, None, updates.sgd, 0.1, mode="FAST_COMPILE"
        )
        for _ in range(3):
            train(np.ones(3))
        place = "function at test_progress.py:"
        assert all(text.startswith(("proving " + place, "compiling " + place)) for text in texts)
        assert 1 < len(texts) < 4


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("cache", [True, False])
def test_operations_of_numba(cache: bool, compile: bool) -> None:
    """Counted as numba compiles them, in the functions that PyTensor makes for it."""
    pytest.importorskip("numba")
    x = pt.vector("x", dtype="float64")
    with pytensor.config.change_flags(numba__cache=cache):
        f = pytensor.function([x], [x.sum(), x.argmax()], mode="NUMBA")
        with telling("compiling f"):
            told = progress._current.get()
            watch(f)
            assert str(told) == "compiling f: 0 of 2 operations, 0 s"
            if compile:
                f(np.ones(3))
            if compile and not cache:  # else the whole may be found in the cache
                assert str(told).startswith("compiling f: 2 of 2 operations, ")


def test_counts_go_on_from_function_to_function() -> None:
    """Each is longer than those before, so a count of its own would begin again."""
    with telling("compiling f"):
        told = progress._current.get()
        told.operations += [lambda: (12, 12), lambda: (1, 48)]
        assert str(told).startswith("compiling f: 13 of 60 operations, ")
        with telling("measuring f"):
            assert str(told).startswith("measuring f: 0 s")


def test_no_lines_come_between_those_of_a_table(lines: Callable[[], list[str]]) -> None:
    before = progress.spent()
    with progress.in_a_table(), telling("compiling f"):
        assert not threads()
        time.sleep(0.05)
    assert not lines()
    assert progress.spent() >= before + 0.05


def test_a_table_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its line is drawn, and taken away before the next one of the table."""
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress.in_a_table(), telling("compiling f"):
        until(lambda: "compiling f: 0 s" in screen.getvalue())
    assert screen.getvalue().endswith("\r\x1b[2K")


def test_other_linkers_do_not_count() -> None:
    x = pt.vector("x", dtype="float64")
    assert operations_of(pytensor.function([x], x.sum(), mode="FAST_COMPILE")) is None


def test_workers_are_forked_again_while_it_tells(lines: Callable[[], list[str]]) -> None:
    """A thread that is alive would keep a group from forking them."""
    with synk.Group(2, start="fork", max_restarts=1) as group:
        with telling("compiling f"):
            until(lines)
            with pytest.raises(synk.WorkerDied):
                group.run(Fault("SIGKILL"))
            assert not threads()
        assert (group.restarts, group.channel.started) == (1, "fork")
        assert group.run(Fault("nap", ranks=())) == 0


def test_ranks_that_compile(group2: synk.Group) -> None:
    found: list[list[int]] = []

    def look() -> None:
        until(lambda: group2.channel.compiling() == [1])
        found.append(group2.channel.compiling())

    thread = threading.Thread(target=look)
    thread.start()
    group2.run(Fault("compile"))
    thread.join()
    assert found == [[1]]
    assert group2.channel.compiling() == []
