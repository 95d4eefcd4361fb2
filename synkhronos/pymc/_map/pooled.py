"""The items of a call on a pool: batches go out, and their ends come back."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from synkhronos._errors import SynkhronosError
from synkhronos._transport.pools.pool import Pool
from synkhronos.pymc._map.batches import end_job, run_batch, versions_here
from synkhronos.pymc._map.pace import AHEAD, Pace, batch_size
from synkhronos.pymc._map.parent import Item, Record
from synkhronos.pymc._map.results import Folder, write_result

log = logging.getLogger("synkhronos")

_LOOK_SECONDS = 1.0  # between two looks at the workers
_START_SECONDS = 600.0  # for a pool without workers to get one
_END_SECONDS = 30.0  # for a pool to give up batches, and to end the processes of its workers
_TRIES = 2  # of an item whose worker ends


@dataclass(frozen=True)
class Job:
    """A call, as all of its batches know it.

    `data` are the bytes of `fit`, whose number is `length`, and then of the items.
    """

    data: bytes
    length: int
    members: int
    entropy: int
    limit: float | None

    def common(self) -> dict[str, object]:
        """All that a worker needs beside `fit` and items, as values that any version can read."""
        return {
            "job": uuid.uuid4().hex,
            "versions": versions_here(),
            "members": self.members,
            "entropy": str(self.entropy),
            "limit": self.limit,
        }


class PooledItems:
    """Runs items on a pool, until each has ended.

    An item whose worker ends comes once again, in a batch of its own. Then it has failed.
    """

    def __init__(
        self, items: Sequence[Item], job: Job, pool: Pool, folder: Folder, record: Record
    ) -> None:
        self._left = list(items)[::-1]
        self._lost: list[Item] = []  # to come again, each in a batch of its own
        self._tries: dict[Item, int] = {}
        self._job = job
        self._common = job.common()
        self._pool = pool
        self._folder = folder
        self._record = record
        self._pace = Pace()
        self._running: dict[Future[Any], list[Item]] = {}
        self._ended: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        self._slots = 0
        self._looked = -_LOOK_SECONDS

    def run(self) -> None:
        """Submit batches, and take their ends.

        Raises
        ------
        SynkhronosError
            The workers cannot fit items, or the pool has no workers any more; see also `Record`.
        """
        began = time.monotonic()
        with self._asked():
            head = self._pool.held(self._job.data[: self._job.length])
        try:
            while self._left or self._lost or self._running:
                self._look()
                self._fill(head)
                try:
                    self._take(self._ended.get(timeout=_LOOK_SECONDS))
                    began = time.monotonic()
                except queue.Empty:
                    self._check(time.monotonic() - began)
        finally:
            self._end()

    def _look(self) -> None:
        if time.monotonic() >= self._looked + _LOOK_SECONDS:
            with self._asked():
                self._slots = self._pool.slots()
            self._looked = time.monotonic()

    def _check(self, seconds: float) -> None:
        if why := self._pool.trouble():
            raise SynkhronosError(f"map: {self._pool.name}: {why}. {self._folder.goes_on}")
        if not self._slots and seconds > _START_SECONDS:
            raise SynkhronosError(
                f"map: {self._pool.name} has had no worker of {self._job.members} cores for "
                f"{_START_SECONDS:g} seconds: start workers. {self._folder.goes_on}"
            )

    def _fill(self, head: object) -> None:
        """Submit batches, also one to a pool without workers, which may start some for it."""
        slots = max(1, self._slots)
        while (self._left or self._lost) and len(self._running) < AHEAD * slots:
            if self._left:
                count = batch_size(self._pace.seconds, len(self._left), slots)
                items = [self._left.pop() for _ in range(count)]
            else:
                items = [self._lost.pop()]
            batch = {**self._common, "items": [self._given(item) for item in items]}
            with self._asked():
                future = self._pool.submit(run_batch, head, batch)
            self._running[future] = items
            future.add_done_callback(self._ended.put)

    def _given(self, item: Item) -> tuple[str, str, bytes]:
        begin, end = item.at
        return str(item.name), item.digest, self._job.data[begin:end]

    def _take(self, future: Future[Any]) -> None:
        items = self._running.pop(future)
        try:
            found: Mapping[str, Any] = future.result()
        except Exception as exc:
            if not self._pool.is_loss(exc):
                raise self._broken(exc) from exc
            self._try_again(items, exc)
            return
        if "wrong" in found:
            raise SynkhronosError(f"map: {self._pool.name}: {found['wrong']}")
        ends = found["ends"]
        self._pace.note(seconds for *_, seconds in ends)
        for item, (packed, why, text, _) in zip(items, ends, strict=True):
            if packed is None:
                self._record.fail(item, why, text)
            else:
                # some 10 ms to force it to the disk would be the limit of all workers together
                write_result(self._folder.path, item.name, packed, lasting=False)
                self._record.done(item)

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """A context for what a pool cannot do that is closed, or whose workers are gone."""
        try:
            yield
        except Exception as exc:
            raise self._broken(exc) from exc

    def _broken(self, exc: Exception) -> SynkhronosError:
        why = f"{type(exc).__name__}: {exc}"
        if trouble := self._pool.trouble(exc):
            why = f"{trouble} ({why})"
        return SynkhronosError(
            f"map: {self._pool.name} runs no batches: {why}. {self._folder.goes_on}"
        )

    def _try_again(self, items: Sequence[Item], exc: Exception) -> None:
        for item in items:
            self._tries[item] = self._tries.get(item, 1) + 1
            if self._tries[item] > _TRIES:
                self._record.fail(item, f"its worker has ended {_TRIES} times: {exc}")
            else:
                self._lost.append(item)

    def _end(self) -> None:
        """Give up what still runs, and end the processes of workers."""
        job = str(self._common["job"])
        # a thread, since a worker that is frozen answers nothing, and pools wait for it
        ending = threading.Thread(target=self._end_in_pool, args=[job], daemon=True)
        ending.start()
        end_job(job)
        ending.join(_END_SECONDS)
        if ending.is_alive():
            log.warning(
                "map: %s has not given up its batches for %g seconds: a worker does not answer, "
                "and may still fit items",
                self._pool.name,
                _END_SECONDS,
            )

    def _end_in_pool(self, job: str) -> None:
        for future in self._running:
            with contextlib.suppress(Exception):
                self._pool.cancel(future)
        with contextlib.suppress(Exception):  # of a pool that is gone
            self._pool.everywhere(end_job, job)
