"""Clients of Dask: the only file that imports it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any
from uuid import uuid4

import distributed

from synkhronos._transport.pools.pool import Pool


class DaskPool(Pool):
    """The workers of a client; each thread of a worker is one core."""

    name = "Dask"

    def __init__(self, client: distributed.Client, members: int) -> None:
        self._client = client
        self._members = members
        self._executor = client.get_executor(pure=False)
        self._slots = 0

    def slots(self) -> int:
        """See `Pool`; asks the scheduler."""
        if self._client.status == "running":  # else the client calls the scheduler again
            threads = self._client.nthreads().values()
            self._slots = sum(each // self._members for each in threads)
        return self._slots

    def held(self, data: bytes) -> object:
        """A task that returns the data, so that they come again if the worker with them ends."""
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


def _in_worker(run: Callable[..., object], data: object, batch: object) -> object:
    return run(data, batch, cores=distributed.get_worker().state.nthreads)
