"""The batches of a call on a pool: they go out, and their ends come back."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from synkhronos._errors import SynkhronosError
from synkhronos._host.secrets import cause_of, without_secrets
from synkhronos._transport.pools.pool import Pool
from synkhronos._transport.pools.stations import end_job
from synkhronos._warnings import log

TRIES = 2  # of work whose worker ends
_LOOK_SECONDS = 1.0  # between two looks at the workers
_START_SECONDS = 600.0  # for a pool without workers to get one
_END_SECONDS = 30.0  # for a pool to give up batches, and to end the processes of its workers

_ended: deque[str] = deque(maxlen=64)  # jobs of this process


class Batches[B](ABC):
    """Submits batches to a pool, and takes their ends, until there are no more.

    Parameters
    ----------
    what : str
        Names the call in errors.
    pool : Pool
    run : callable
        Runs a batch in a worker, see `Pool.submit`. It returns a dict, with ``"wrong"`` if this
        worker can run none.
    common : mapping
        What all batches have: at least ``"versions"`` and ``"members"``.
    ahead : int
        Batches of a slot that are submitted.
    """

    goes_on = ""  # how a call that has ended too soon goes on, in messages

    def __init__(
        self,
        what: str,
        pool: Pool,
        run: Callable[..., object],
        common: Mapping[str, Any],
        ahead: int,
    ) -> None:
        self._what = what
        self._pool = pool
        self._run = run
        # few pools can tell all workers that a call has ended: batches of the next one do
        self._common = {**common, "job": uuid.uuid4().hex, "ended": tuple(_ended)}
        self._ahead = ahead
        self._running: dict[Future[Any], B] = {}
        self._ended: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        self._slots = 0
        self._looked = -_LOOK_SECONDS

    @abstractmethod
    def head(self) -> bytes:
        """The bytes that a worker needs for all batches."""

    @abstractmethod
    def wants_more(self) -> bool:
        """Whether there is another batch."""

    @abstractmethod
    def next(self, slots: int) -> B:
        """The next batch; `slots` of them run at the same time."""

    @abstractmethod
    def given(self, batch: B) -> dict[str, object]:
        """All that a worker gets of a batch beside `common`."""

    @abstractmethod
    def take(self, batch: B, found: Mapping[str, Any]) -> None:
        """A batch has ended with what `run` has returned."""

    @abstractmethod
    def lost(self, batch: B, exc: Exception) -> None:
        """The worker of a batch has ended."""

    def run(self) -> None:
        """Submit batches, and take their ends.

        Raises
        ------
        SynkhronosError
            The workers cannot run them, or the pool has no workers any more.
        Exception
            Of the methods.
        """
        seen = time.monotonic()  # when the pool had workers for the last time
        with self._asked():
            head = self._pool.held(self.head())
        try:
            while self._running or self.wants_more():
                self._look()
                if self._slots:
                    seen = time.monotonic()
                self._fill(head)
                try:
                    self._take(self._ended.get(timeout=_LOOK_SECONDS))
                    seen = time.monotonic()
                except queue.Empty:
                    self._check(time.monotonic() - seen)
        finally:
            self._end()

    def _look(self) -> None:
        if time.monotonic() >= self._looked + _LOOK_SECONDS:
            with self._asked():
                self._slots = self._pool.slots()
            self._looked = time.monotonic()

    def _check(self, seconds: float) -> None:
        if why := self._pool.trouble():
            raise SynkhronosError(f"{self._what}: {self._pool.name}: {why}. {self.goes_on}")
        if not self._slots and seconds > _START_SECONDS:
            raise SynkhronosError(
                f"{self._what}: {self._pool.name} has had no worker of {self._common['members']} "
                f"cores for {_START_SECONDS:g} seconds: start workers. {self.goes_on}"
            )

    def _fill(self, head: object) -> None:
        """Submit batches, also one to a pool without workers, which may start some for it."""
        slots = max(1, self._slots)
        while len(self._running) < self._ahead * slots and self.wants_more():
            batch = self.next(slots)
            given = {**self._common, **self.given(batch)}
            with self._asked():
                future = self._pool.submit(self._run, head, given)
            self._running[future] = batch
            future.add_done_callback(self._ended.put)

    def _take(self, future: Future[Any]) -> None:
        batch = self._running.pop(future)
        try:
            found: Mapping[str, Any] = future.result()
        except Exception as exc:
            if not self._pool.is_loss(exc):
                raise self._broken(exc) from cause_of(exc)
            self.lost(batch, exc)
            return
        if "wrong" in found:
            raise SynkhronosError(f"{self._what}: {self._pool.name}: {found['wrong']}")
        self.take(batch, found)

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """A context for what a pool cannot do that is closed, or whose workers are gone."""
        try:
            yield
        except Exception as exc:
            raise self._broken(exc) from cause_of(exc)

    def _broken(self, exc: Exception) -> SynkhronosError:
        why = f"{type(exc).__name__}: {exc}"
        if trouble := self._pool.trouble(exc):
            why = f"{trouble} ({why})"
        return SynkhronosError(
            f"{self._what}: {self._pool.name} runs no batches: {without_secrets(why)}. "
            f"{self.goes_on}"
        )

    def _end(self) -> None:
        """Give up what still runs, and end the processes of workers."""
        job = str(self._common["job"])
        _ended.append(job)
        # a thread, since a worker that is frozen answers nothing, and pools wait for it
        ending = threading.Thread(target=self._end_in_pool, args=[job], daemon=True)
        ending.start()
        end_job(job)
        ending.join(_END_SECONDS)
        if ending.is_alive():
            log.warning(
                "%s: %s has not given up its batches for %g seconds: a worker does not answer, "
                "and may still run one",
                self._what,
                self._pool.name,
                _END_SECONDS,
            )

    def _end_in_pool(self, job: str) -> None:
        for future in self._running:
            with contextlib.suppress(Exception):
                self._pool.cancel(future)
        with contextlib.suppress(Exception):  # of a pool that is gone
            self._pool.everywhere(end_job, job)
