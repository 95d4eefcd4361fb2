"""A lock of threads that is free in a fork of the process."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator


class ForkSafeLock:
    """A lock that its thread may take again, and that a fork of the process has free.

    In the fork only one thread goes on. Another one may have held the lock, and would hold it for
    ever.
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):  # Windows has no forks
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A context that one thread at a time is in."""
        with self._lock:
            yield
