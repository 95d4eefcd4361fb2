"""Processes that any thread has started end with this process, and not before (promise 6)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from synkhronos._transport.processes import guards
from synkhronos._transport.processes.lasting_thread import LastingThread

GUARDED = f"import runpy; runpy.run_path({guards.__file__!r})['end_with_parent'](); print(input())"


def in_thread(call: Callable[[], Any]) -> Any:
    """What a call returns in a thread that ends then; the exception that it raises."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except OSError as exc:
            found.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def guarded() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", GUARDED]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "synkhronos" in thread.name]


def test_a_process_outlives_the_thread_that_asked_for_it() -> None:
    made: list[subprocess.Popen[str]] = []
    lasting = LastingThread(lambda: [os.pidfd_open(p.pid) for p in made])
    process = in_thread(lambda: lasting.call(lambda: made.append(guarded()) or made[0]))
    assert len(names()) == 1
    assert process.communicate("still here\n", timeout=120)[0] == "still here\n"
    lasting.join()
    assert not names()


def test_the_main_thread_lasts() -> None:
    lasting = LastingThread(lambda: [])
    assert lasting.call(threading.current_thread) is threading.main_thread()
    assert not names()


def test_an_error_of_the_start_is_raised() -> None:
    def fails() -> None:
        raise OSError("no process")

    lasting = LastingThread(lambda: [])
    assert str(in_thread(lambda: lasting.call(fails))) == "no process"
    lasting.join()
    assert not names()


def test_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuses(thread: threading.Thread) -> None:
        if "synkhronos" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuses)
    found = in_thread(lambda: LastingThread(lambda: []).call(lambda: 1))
    assert isinstance(found, BlockingIOError)  # as of a fork that is refused
    assert "can't start new thread" in str(found)
