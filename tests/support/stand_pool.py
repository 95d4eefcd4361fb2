"""A pool in this thread, for tests of what becomes of batches."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from synkhronos._transport.pools.pool import Pool


class Loss(Exception):
    """A worker has ended."""


class Stand(Pool):
    """`act` gives the end of a batch from one `part` of it, or raises.

    A `Loss` is that of its worker. After a LookupError the batch never ends.
    """

    name = "Stand"

    def __init__(self, act: Callable[[Any], object], slots: int = 2, part: str = "items") -> None:
        self.act, self._slots, self._part = act, slots, part
        self.said = self.other = ""
        self.batches: list[Any] = []
        self.everyone: list[object] = []
        self.cancelled = 0

    def slots(self) -> int:
        """As given."""
        return self._slots

    def elsewhere(self) -> str:
        """As set by the test."""
        return self.other

    def submit(self, run: Callable[..., object], data: object, batch: Any) -> Future[Any]:
        """Act at once."""
        self.batches.append(batch[self._part])
        future: Future[Any] = Future()
        try:
            found = self.act(batch[self._part])
        except Loss as exc:
            future.set_exception(exc)
        except LookupError:
            pass
        else:
            future.set_result(found)
        return future

    def cancel(self, future: Future[Any]) -> None:
        """Count it."""
        self.cancelled += 1
        super().cancel(future)

    def is_loss(self, exc: BaseException) -> bool:
        """A `Loss` is one."""
        return isinstance(exc, Loss)

    def trouble(self, exc: BaseException | None = None) -> str:
        """As set by the test."""
        return self.said

    def everywhere(self, function: Callable[..., object], argument: object) -> None:
        """Note it."""
        self.everyone.append(function)
