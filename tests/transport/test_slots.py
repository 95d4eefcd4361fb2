"""Slots: how processes end, as the thread that waits for them sees it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from synkhronos._transport.processes.slots import Slots
from synkhronos._transport.processes.stopped import StoppedProcesses


class Told:
    """In place of a process: a test writes its messages, and its end."""

    pid = 7

    def __init__(self, cores: Sequence[int]) -> None:
        self.cores, self.told, self.silent, self.late = cores, False, False, "it is late"
        self.until = float("inf")
        self._pipe, self._end = os.pipe(), os.pipe()
        self.descriptors = self._pipe[0], self._end[0]
        self.dead = False
        os.set_blocking(self._pipe[0], False)

    def send(self, text: bytes) -> None:
        """As the process would."""
        os.write(self._pipe[1], text)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Those that have arrived."""
        with contextlib.suppress(BlockingIOError):
            for text in os.read(self._pipe[0], 100).decode():
                yield {"said": text}

    def kill(self) -> None:
        """It has ended."""
        self.dead = True
        os.write(self._end[1], b".")

    def close(self) -> str:
        """How it ended."""
        for descriptor in (*self._pipe, *self._end):
            os.close(descriptor)
        return "killed"


class Noting(Slots[Any]):
    """Notes the messages of processes, and why some are lost."""

    def __init__(self, processes: int, taken: Callable[[Noting, Told, str], None]) -> None:
        super().__init__([()] * processes, "test")
        self.left = processes
        self.processes: list[Told] = []
        self.said: list[tuple[int, str]] = []
        self.why: list[tuple[int, str]] = []
        self._taken = taken

    def wants_more(self) -> bool:
        return self.left > 0

    def started(self, cores: Sequence[int]) -> Told:
        self.left -= 1
        self.processes.append(Told(cores))
        return self.processes[-1]

    def take(self, process: Told, message: dict[str, Any]) -> None:
        self.said.append((self.processes.index(process), message["said"]))
        self._taken(self, process, message["said"])

    def lost(self, process: Told, why: str) -> None:
        self.why.append((self.processes.index(process), why))

    def given_up(self, process: Told) -> None:
        raise AssertionError("all processes have ended")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ends", [True, False])
def test_a_process_that_ends_while_another_is_served(ends: bool) -> None:
    """It has told its end within its limit, so it is not late; without a word it is."""

    def taken(slots: Noting, process: Told, said: str) -> None:
        first, other = slots.processes
        if process is first:
            if ends:
                other.send(b"e")
            other.until = time.monotonic() - 1  # to serve the first one has taken as long
        process.told = True
        process.until = float("inf")
        process.kill()

    slots = Noting(2, taken)
    start = slots.started

    def started(cores: Sequence[int]) -> Told:
        process = start(cores)
        if len(slots.processes) == 1:
            process.send(b"a")
        return process

    slots.started = started  # type: ignore[method-assign]
    slots.run()
    assert slots.said == [(0, "a"), (1, "e")][: 1 + ends]
    assert slots.why == ([] if ends else [(1, "it is late")])


def test_processes_that_a_signal_has_stopped_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a call waits for them without a word."""
    looked: list[int] = []
    monkeypatch.setattr(StoppedProcesses, "look", lambda self, pids: looked.extend(pids))

    def taken(slots: Noting, process: Told, said: str) -> None:
        process.told = True
        process.kill()

    slots = Noting(1, taken)
    start = slots.started

    def started(cores: Sequence[int]) -> Told:
        process = start(cores)
        process.send(b"a")
        return process

    slots.started = started  # type: ignore[method-assign]
    slots.run()
    assert set(looked) == {7}
