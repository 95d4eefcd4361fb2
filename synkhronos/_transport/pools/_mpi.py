"""``MPIPoolExecutor`` of mpi4py: its workers are the ranks of a launch, on any machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any

from synkhronos._backends.mpi import Mover, launch
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
        _mover.sends(_nbytes((data, batch)), lambda: found.running() or found.done())
        return found


_mover = Mover()


def _in_rank(run: Callable[..., object], data: object, batch: object) -> object:
    _mover.rest()  # the result before this one has been sent
    found = run(data, batch, cores=cores_of_rank())
    _mover.sends(_nbytes(found))
    return found


def _nbytes(value: object) -> int:
    """The bytes of all that a batch has, or its result, about as many as it is sent in."""
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, Mapping):
        value = list(value.values())
    return sum(map(_nbytes, value)) if isinstance(value, list | tuple) else 0


def cores_of_rank() -> int:
    """The cores of this rank: as Slurm says, else what it may use, shared with its neighbours."""
    if (given := of_slurm_task()) is not None:
        return given
    found, started = len(available()), launch()
    bound = found < (os.cpu_count() or 1)
    return found if started is None or bound else max(1, found // started.local_size)
