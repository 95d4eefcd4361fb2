"""The interface of all pools of workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Pool(ABC):
    """Workers that call functions; a batch is one call.

    The function is one of this package, and its arguments are bytes and plain values. So a worker
    whose versions differ can read them, and say so. It gets ``cores=`` as well: the number that the
    pool has given to the process of the worker, for all its calls together.
    """

    name: str  # in messages

    @abstractmethod
    def slots(self) -> int:
        """How many batches run at the same time now; 0: there are no workers yet."""

    def elsewhere(self) -> str:
        """A machine beside this one that certainly has workers; empty if none is known."""
        return ""

    def held(self, data: bytes) -> object:
        """A handle, which `submit` takes in place of the data; workers get the data themselves."""
        return data

    @abstractmethod
    def submit(self, run: Callable[..., object], data: object, batch: object) -> Future[Any]:
        """Call ``run(data, batch, cores=...)`` in a worker.

        Raises
        ------
        Exception
            The pool is closed, or its workers are gone.
        """

    def cancel(self, future: Future[Any]) -> None:
        """Give up a batch, also one that runs if the pool can; else its result is not taken."""
        future.cancel()

    def is_loss(self, exc: BaseException) -> bool:
        """Whether a batch has raised this since its worker is gone, and may run in another one."""
        del exc
        return False

    def trouble(self, exc: BaseException | None = None) -> str:
        """Why no more results will come, of which a batch may have raised; empty: they may."""
        del exc
        return ""

    def everywhere(self, function: Callable[..., object], argument: object) -> None:
        """Call a function in each worker that lives, if the pool can, at the end of all batches."""
        del function, argument
