"""``MPIPoolExecutor`` of mpi4py: its workers are the ranks of a launch, on any machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from synkhronos._backends.mpi import launch
from synkhronos._host.cores import available, of_slurm_task
from synkhronos._transport.pools.pool import Pool


class MPIPool(Pool):
    """The executor; MPI ends the whole launch if one of its processes ends."""

    name = "MPIPoolExecutor"

    def __init__(self, executor: Executor) -> None:
        self._executor: Any = executor

    def slots(self) -> int:
        """The number of its workers, which it knows once they have started."""
        return int(self._executor.num_workers)

    def elsewhere(self) -> str:
        """See `Pool`."""
        started = launch()
        alone = started is None or started.size == started.local_size
        return "" if alone else "where other ranks are"

    def submit(self, run: Callable[..., object], data: object, batch: object) -> Future[Any]:
        """See `Pool`."""
        found: Future[Any] = self._executor.submit(_in_rank, run, data, batch)
        return found


def _in_rank(run: Callable[..., object], data: object, batch: object) -> object:
    return run(data, batch, cores=cores_of_rank())


def cores_of_rank() -> int:
    """The cores of this rank: as Slurm says, else what it may use, shared with its neighbours."""
    if (given := of_slurm_task()) is not None:
        return given
    found, started = len(available()), launch()
    bound = found < (os.cpu_count() or 1)
    return found if started is None or bound else max(1, found // started.local_size)
