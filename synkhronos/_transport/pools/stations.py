"""Stations of a worker of a pool, which may last from batch to batch, and the cores they use."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from synkhronos._errors import SynkhronosError
from synkhronos._host.system import trouble
from synkhronos._host.versions import versions

_REST_SECONDS = 30.0  # for a station to wait for another batch


def versions_here(packages: Iterable[str]) -> dict[str, str | None]:
    """The versions that must be the same in all processes of a call."""
    return {"python": ".".join(platform.python_version_tuple()[:2]), **versions(packages)}


def why_not(batch: Mapping[str, Any], cores: int) -> str:
    """Why this worker, whose process has `cores`, cannot run a batch; empty: it can."""
    why = _wrong(batch, cores)
    return f"the worker on {platform.node()} {why}" if why else ""


def _wrong(batch: Mapping[str, Any], cores: int) -> str:
    if trouble():
        return f"cannot start processes: {trouble()}"
    there = batch["versions"]
    here = versions_here(name for name in there if name != "python")
    other = [name for name, version in there.items() if here.get(name) != version]
    if other:
        said = ", ".join(f"{name} {here.get(name)} in place of {there[name]}" for name in other)
        return f"has {said}: install the same versions on all machines"
    if batch["members"] > cores:
        return f"has {cores} cores, and members={batch['members']}: give each worker more cores"
    return ""


class Station(ABC):
    """Processes of a worker for the batches of one call."""

    rests = True  # after a batch, until the next one

    @abstractmethod
    def stop(self) -> None:
        """End its processes, from another thread than the one that uses it; that one closes it."""

    @abstractmethod
    def close(self) -> None:
        """End its processes, and give up its files."""


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
    def station[S: Station](
        self, make: Callable[[], S], batch: Mapping[str, Any], cores: int
    ) -> Iterator[S]:
        """A context with a station, once as many of the `cores` are free as a batch needs.

        It is one that rests, of the same call, or a new one. Those of earlier calls end.

        Raises
        ------
        SynkhronosError
            The call has ended.
        """
        job, members = batch["job"], batch["members"]
        for other in set(batch.get("ended", ())) - self._ended:
            self.end(other)
        with self._changed:
            self._changed.wait_for(lambda: self._used + members <= cores or job in self._ended)
            if job in self._ended:
                raise SynkhronosError("the call has ended")
            # a call has stations of one kind
            found = cast("S", self._rested(job)) or make()
            self._used += members
            self._busy[found] = job
        ended = True
        try:
            yield found
            ended = not found.rests
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


here = Here()


def end_job(job: str) -> None:
    """End the processes of a call in this worker, also those that have work."""
    here.end(job)
