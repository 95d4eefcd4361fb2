"""Turns: one thread at a time does something that threads cannot do at once."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator


class Turns:
    """A lock that a thread may take again, and that a fork of the process has free.

    In the fork only one thread goes on. Another one may have held the lock, and would hold it for
    ever.
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """A context that one thread at a time is in."""
        with self._lock:
            yield
