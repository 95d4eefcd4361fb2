"""Executors of ``concurrent.futures``, whose workers are on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from synkhronos._host.cores import available
from synkhronos._transport.pools.pool import Pool


class ExecutorPool(Pool):
    """An executor. It does not say how many workers it has: one for each of our cores, or more."""

    def __init__(self, executor: Executor, members: int) -> None:
        self.name = type(executor).__name__
        self._executor = executor
        self._members = members

    def slots(self) -> int:
        """As many as this machine has room for."""
        return max(1, len(available()) // self._members)

    def submit(self, run: Callable[..., object], data: object, batch: object) -> Future[Any]:
        """See `Pool`."""
        given = run, data, batch, self._members, os.getpid()
        return self._executor.submit(_in_worker, *given)


def _in_worker(
    run: Callable[..., object], data: object, batch: object, members: int, caller: int
) -> object:
    """A process gets the cores of a batch, since it runs one at a time; threads share ours."""
    threads = os.getpid() == caller
    return run(data, batch, cores=max(members, len(available())) if threads else members)
