"""Batches of items in a worker of a pool: it gives them to processes of its own.

A worker fits nothing itself. Its process may have threads, other numbers of threads in its
libraries, and its pool's own handlers of signals. So it starts the process of a slot, which lasts
from batch to batch, and which alone ends if an item crashes or is late.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import platform
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from synkhronos._errors import SynkhronosError
from synkhronos._host.environment import versions
from synkhronos._host.system import trouble
from synkhronos._transport.processes.interpreter import lifeline
from synkhronos._transport.processes.slots import in_memory, read_held, write_held
from synkhronos.pymc._map.parent import Ends, Fitter, Fleet, Item, Settings

# What decides whether a worker can read a function, and gives the same numbers
_PACKAGES = ("synkhronos", "pytensor", "pymc", "nutpie", "numpy", "numba", "cloudpickle")
_REST_SECONDS = 30.0  # for a process to wait for another batch


@functools.cache
def versions_here() -> dict[str, str | None]:
    """The versions that must be the same in all processes of a call."""
    return {"python": ".".join(platform.python_version_tuple()[:2]), **versions(_PACKAGES)}


def run_batch(head: bytes, batch: Mapping[str, Any], cores: int) -> dict[str, Any]:
    """Fit the items of a batch, in a worker whose process has `cores` for all its batches.

    Returns
    -------
    dict
        ``"ends"``: of each item, in order, the contents of the file of its result or None, why
        there is none, a traceback, and seconds. Or ``"wrong"``: why this worker fits no item.
    """
    if why := _wrong(batch, cores):
        return {"wrong": f"the worker on {platform.node()} {why}"}
    with _here.station(head, batch, cores) as station:
        return {"ends": station.fit(batch["items"])}


def end_job(job: str) -> None:
    """End the processes of a call in this worker, also those that fit items."""
    _here.end(job)


def _wrong(batch: Mapping[str, Any], cores: int) -> str:
    if trouble():
        return f"cannot fit items: {trouble()}"
    here, there = versions_here(), batch["versions"]
    other = [name for name, version in there.items() if here.get(name) != version]
    if other:
        said = ", ".join(f"{name} {here.get(name)} in place of {there[name]}" for name in other)
        return f"has {said}: install the same versions on all machines"
    if batch["members"] > cores:
        return f"has {cores} cores, and members={batch['members']}: give each worker more cores"
    return ""


class _Noted(Ends):
    """The ends of a batch's items."""

    def __init__(self, results: int) -> None:
        self._results = results  # the file in memory in which a process leaves a result
        self.began = 0.0
        self.found: dict[Item, tuple[bytes | None, str, str, float]] = {}

    def done(self, item: Item) -> None:
        """See `Ends`."""
        self.found[item] = read_held(self._results), "", "", time.monotonic() - self.began

    def fail(self, item: Item, why: str, text: str = "") -> None:
        """See `Ends`."""
        self.found[item] = None, why, text, time.monotonic() - self.began


class _LastingFleet(Fleet):
    """One slot, whose process waits for the next batch when it has fitted one."""

    def __init__(self, settings: Settings, ends: _Noted, limit: float) -> None:
        super().__init__([()], settings, ends, limit)
        self._noted = ends
        self._resting: list[Fitter] = []
        self._stopped = False

    def fit_batch(self, items: Sequence[Item]) -> None:
        """Fit items; the process is left, unless it has ended with its item."""
        self._left = list(items)[::-1]
        resting, self._resting = self._resting, []
        for process in resting:
            if not process.dead:  # else another one starts
                self.give(process)
        self.go_on()

    def give(self, process: Fitter) -> None:
        """Give the next item, or let the process rest."""
        self._noted.began = time.monotonic()
        if self._left:
            super().give(process)
        else:
            process.limit(math.inf)
            self._resting.append(process)

    def is_waited_for(self) -> bool:
        """Whether an item has not ended."""
        if self._stopped:
            raise SynkhronosError("map: the call has ended")
        return bool(self._left) or any(process.item is not None for process in self._running)

    def stop(self) -> None:
        """From another thread: end the process; `fit_batch` raises."""
        self._stopped = True
        for process in list(self._running):
            process.kill()


class Station:
    """One slot of a worker, for the batches of one call."""

    def __init__(self, head: bytes, batch: Mapping[str, Any]) -> None:
        self._length = len(head)
        with contextlib.ExitStack() as made:
            self._held = made.enter_context(in_memory(head, "synk-items"))
            results = made.enter_context(in_memory(b"", "synk-result"))
            end = made.enter_context(lifeline())
            entropy, members = int(batch["entropy"]), batch["members"]
            settings = Settings(self._held, self._length, end, members, entropy, results)
            self._noted = _Noted(results)
            self._fleet = _LastingFleet(settings, self._noted, batch["limit"] or math.inf)
            self._open = made.pop_all()

    def fit(
        self, given: list[tuple[str, str, bytes]]
    ) -> list[tuple[bytes | None, str, str, float]]:
        """How each item ends, which is given by its name, its digest and its pickle."""
        begin, items = self._length, []
        for name, digest, packed in given:
            items.append(Item(name, (begin, begin + len(packed)), digest))
            begin += len(packed)
        write_held(self._held, b"".join(packed for *_, packed in given), self._length)
        self._fleet.fit_batch(items)
        found, self._noted.found = self._noted.found, {}
        return [found[item] for item in items]

    def stop(self) -> None:
        """End its process, from another thread than the one that fits; that one closes it."""
        self._fleet.stop()

    def close(self) -> None:
        """End its process, and give up its files."""
        self._fleet.give_up()
        self._open.close()


class Here:
    """The stations of this process, and how many of its cores batches use."""

    def __init__(self) -> None:
        self.forget()
        if hasattr(os, "register_at_fork"):  # Windows has no forks
            os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """In a fork: the stations of its parent are not its own."""
        self._changed = threading.Condition()
        self._used = 0
        self._busy: dict[Station, str] = {}  # with the job of each
        self._resting: dict[Station, tuple[str, threading.Timer]] = {}
        self._ended: set[str] = set()  # jobs

    @contextlib.contextmanager
    def station(self, head: bytes, batch: Mapping[str, Any], cores: int) -> Iterator[Station]:
        """A context with a station, once as many of the `cores` are free as a batch needs."""
        job, members = batch["job"], batch["members"]
        with self._changed:
            self._changed.wait_for(lambda: self._used + members <= cores or job in self._ended)
            if job in self._ended:
                raise SynkhronosError("map: the call has ended")
            found = self._rested(job) or Station(head, batch)
            self._used += members
            self._busy[found] = job
        ended = True
        try:
            yield found
            ended = False
        finally:
            with self._changed:
                self._used -= members
                del self._busy[found]
                self._changed.notify_all()
                ended = ended or job in self._ended
                if not ended:
                    self._let_rest(job, found)
            if ended:
                found.close()

    def _rested(self, job: str) -> Station | None:
        for station, (other, timer) in self._resting.items():
            if other == job:
                timer.cancel()
                del self._resting[station]
                return station
        return None

    def _let_rest(self, job: str, station: Station) -> None:
        timer = threading.Timer(_REST_SECONDS, self._close, [station])
        timer.daemon = True
        self._resting[station] = job, timer
        timer.start()

    def _close(self, station: Station) -> None:
        with self._changed:
            _, timer = self._resting.pop(station, (None, None))
        if timer is not None:  # no batch has it
            timer.cancel()
            station.close()

    def end(self, job: str) -> None:
        """End the processes of a call, now and later."""
        with self._changed:
            self._ended.add(job)
            self._changed.notify_all()
            resting = [station for station, (its, _) in self._resting.items() if its == job]
            busy = [station for station, its in self._busy.items() if its == job]
        for station in resting:
            self._close(station)
        for station in busy:
            station.stop()


_here = Here()
