"""Slots of cores, each with a process: one thread fills them, answers, and notices ends."""

from __future__ import annotations

import contextlib
import math
import os
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from synkhronos._errors import SynkhronosError
from synkhronos._transport.processes.slot_process import SlotProcess
from synkhronos._transport.processes.stopped import StoppedProcesses
from synkhronos._transport.processes.worker import signals_blocked

_GONE_SECONDS = 30.0  # for a killed process to be gone
_PIECE = 1 << 30  # bytes that are read together; Linux reads at most 2 GB
_LOOK_SECONDS = 5.0  # between two looks at limits, and at whether there is more to do


class Slots[P: SlotProcess](ABC):
    """Runs processes in slots until nothing is left to do.

    Parameters
    ----------
    slots : sequence of sequences of int
        The cores of each; the last one is filled first.
    what : str
        Names the call in errors.
    """

    def __init__(self, slots: Sequence[Sequence[int]], what: str) -> None:
        self._free = list(slots)
        self._what = what
        self._running: list[P] = []
        self._poller = select.poll()
        self._looks = StoppedProcesses(what)

    @abstractmethod
    def wants_more(self) -> bool:
        """Whether there is work for one more process."""

    @abstractmethod
    def started(self, cores: Sequence[int]) -> P:
        """A new process on these cores."""

    @abstractmethod
    def take(self, process: P, message: dict[str, Any]) -> None:
        """Act on a message, and reply if it is a request.

        Raises
        ------
        BlockingIOError
            Of `SlotProcess.reply`.
        """

    @abstractmethod
    def lost(self, process: P, why: str) -> None:
        """A process has ended without having told what it was asked for."""

    @abstractmethod
    def given_up(self, process: P) -> None:
        """The same, of a process that `give_up` has killed."""

    def run(self) -> None:
        """Run processes until there is no work; at an exception, kill and give up what runs.

        Raises
        ------
        SynkhronosError
            A process does not end after SIGKILL.
        Exception
            Of the methods.
        """
        try:
            self.go_on()
        finally:
            self.give_up()

    def go_on(self) -> None:
        """As `run`, but leave the processes at an exception."""
        while True:
            while self._free and self.wants_more():
                with signals_blocked():  # an interrupt would lose what nobody knows yet
                    self._start()
            if not self.is_waited_for():
                return
            self._wait()

    def is_waited_for(self) -> bool:
        """Whether processes have work; else none of those that run is waited for."""
        return bool(self._running)

    def _start(self) -> None:
        process = self.started(self._free[-1])
        self._free.pop()
        self._running.append(process)
        for descriptor in process.descriptors:
            self._poller.register(descriptor, select.POLLIN)

    def _wait(self) -> None:
        """Wait for messages, ends and limits."""
        until = min(process.until for process in self._running)
        seconds = min(max(0.0, until - time.monotonic()), _LOOK_SECONDS)
        ready = {descriptor for descriptor, _ in self._poller.poll(math.ceil(1000 * seconds))}
        self._looks.look(process.pid for process in self._running)
        for process in list(self._running):
            if ready.intersection(process.descriptors):
                self._serve(process)
            if self._is_late(process):
                self._serve(process)  # it may have ended in time, while others were served
            if self._is_late(process):
                self._stop(process)

    def _is_late(self, process: P) -> bool:
        return process in self._running and time.monotonic() > process.until

    def _serve(self, process: P) -> None:
        """Take messages; the order makes sure that none of a dead process is lost."""
        dead = process.dead
        messages = process.messages()
        while True:
            try:
                message = next(messages, None)
            except ValueError as exc:  # as for JSON
                process.late = f"its process has sent something else than messages: {exc}"
                self._stop(process)
                return
            if message is None:
                break
            try:
                self.take(process, message)
            except BlockingIOError:
                process.late = "its process asks, and does not read the replies"
                self._stop(process)
                return
        if dead:
            how = self._free_slot(process)
            if not process.told:
                self.lost(process, f"its process has ended without a value: {how}")
        elif process.silent:
            with contextlib.suppress(KeyError):  # it has been left out before
                self._poller.unregister(process.descriptors[0])

    def _stop(self, process: P) -> None:
        """Kill a process that is late or wrong."""
        process.kill()
        if not _gone(process, _GONE_SECONDS):
            raise SynkhronosError(f"{self._what}: process {process.pid} does not end after SIGKILL")
        told, why = process.told, process.late
        self._free_slot(process)
        if not told:
            self.lost(process, why)

    def _free_slot(self, process: P) -> str:
        self._running.remove(process)
        self._free.append(process.cores)
        for descriptor in process.descriptors:
            with contextlib.suppress(KeyError):  # of a silent process
                self._poller.unregister(descriptor)
        return process.close()

    def give_up(self) -> None:
        """End what still runs."""
        left = list(self._running)
        for process in left:
            process.kill()
        for process in left:
            if _gone(process, _GONE_SECONDS):
                self._free_slot(process)
        for process in left:
            if not process.told:
                self.given_up(process)


def _gone(process: SlotProcess, seconds: float) -> bool:
    poller = select.poll()
    poller.register(process.descriptors[1], select.POLLIN)
    return bool(poller.poll(1000 * seconds))


@contextlib.contextmanager
def in_memory(data: bytes, name: str) -> Iterator[int]:
    """The descriptor of a file in memory, which processes inherit."""
    held = os.memfd_create(name)
    try:
        write_held(held, data)
        del data  # it may be large
        yield held
    finally:
        os.close(held)


def write_held(held: int, data: bytes, begin: int = 0) -> None:
    """Write to a file in memory from a place on, which is then its end.

    Raises
    ------
    OSError
        There is too little memory.
    """
    os.ftruncate(held, begin + len(data))
    rest = memoryview(data)
    while rest:
        written = os.pwrite(held, rest, begin)
        rest, begin = rest[written:], begin + written


def read_held(held: int, begin: int = 0, end: int | None = None) -> bytes:
    """Read a piece of a file in memory. Processes may read at once: they share no position."""
    if end is None:
        end = os.fstat(held).st_size
    pieces = []
    while begin < end and (piece := os.pread(held, min(end - begin, _PIECE), begin)):
        pieces.append(piece)
        begin += len(piece)
    return b"".join(pieces)
