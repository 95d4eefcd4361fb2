"""Clients of Dask: the only file that imports it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any
from uuid import uuid4

import distributed
from distributed.comm import get_address_host

from synkhronos._host.addresses import is_elsewhere
from synkhronos._transport.pools.pool import Pool

_ANSWER_SECONDS = 60.0  # for a scheduler that is frozen
_LIVING = (distributed.Status.running, distributed.Status.paused)


class DaskPool(Pool):
    """The workers of a client; each thread of a worker is one core."""

    name = "Dask"

    def __init__(self, client: distributed.Client, members: int) -> None:
        self._client = client
        self._members = members
        self._executor = client.get_executor(pure=False)
        self._threads: dict[str, int] = {}  # of each worker, by its address

    def slots(self) -> int:
        """See `Pool`; asks the scheduler."""
        return sum(each // self._members for each in self._asked().values())

    def elsewhere(self) -> str:
        """See `Pool`."""
        return next(filter(is_elsewhere, map(get_address_host, self._asked())), "")

    def _asked(self) -> dict[str, int]:
        if self._client.status == "running":  # else the client calls the scheduler again
            try:
                ask = self._client.scheduler.ncores
                self._threads = self._client.sync(ask, callback_timeout=_ANSWER_SECONDS)
            except TimeoutError:
                said = f"its scheduler has not answered for {_ANSWER_SECONDS:g} seconds"
                raise TimeoutError(said) from None
        return self._threads

    def held(self, data: bytes) -> object:
        """A task that returns the data: they come again if their worker ends."""
        return self._client.submit(bytes, data, key=f"synk-map-{uuid4().hex}")

    def submit(self, run: Callable[..., object], data: object, batch: object) -> Future[Any]:
        """See `Pool`."""
        found: Future[Any] = self._executor.submit(_in_worker, run, data, batch)
        return found

    def is_loss(self, exc: BaseException) -> bool:
        """Whether workers have ended: Dask itself tries a batch in several."""
        return isinstance(exc, distributed.KilledWorker)

    def trouble(self, exc: BaseException | None = None) -> str:
        """Whether the scheduler is gone: then batches are cancelled, and the client calls it."""
        lives = self._client.status in ("running", "connecting")
        if lives and not isinstance(exc, CancelledError):
            return ""
        return "its scheduler is gone, or the client is closed"

    def everywhere(self, function: Callable[..., object], argument: object) -> None:
        """See `Pool`."""
        if self._client.status == "running":
            self._client.run(function, argument, on_error="ignore")


_lock, _workers = threading.Lock(), weakref.WeakSet[Any]()  # of this process, that have had a batch


def _in_worker(run: Callable[..., object], data: object, batch: object) -> object:
    """Workers of one process, such as LocalCluster(processes=False) has, share their cores."""
    own = distributed.get_worker()
    with _lock:
        _workers.add(own)
        living = [worker for worker in _workers if worker is own or worker.status in _LIVING]
    return run(data, batch, cores=sum(worker.state.nthreads for worker in living))
