"""Processes that a signal has stopped, while others wait for them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from synkhronos._transport.processes import stopped
from synkhronos._transport.processes.stopped import StoppedProcesses


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.mark.timeout(60)
def test_each_stop_is_told_once(
    sleeper: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopped, "_LOOK_SECONDS", 0.0)
    looks = StoppedProcesses("map")
    for number, change in ((signal.SIGSTOP, os.WSTOPPED), (signal.SIGCONT, os.WCONTINUED)) * 2:
        os.kill(sleeper, number)
        os.waitid(os.P_PID, sleeper, change)
        for _ in range(2):
            looks.look([sleeper])
    said = f"map: process {sleeper} is stopped by a signal, and its work waits"
    assert caplog.messages == [f"{said}: kill -CONT {sleeper}"] * 2
