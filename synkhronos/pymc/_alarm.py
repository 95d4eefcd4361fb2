"""Raises an error of a sampler's thread in the main thread, which called the sampler.

nutpie evaluates in threads of its own and treats an exception there as a divergence: it would go on
and return meaningless draws. The main thread waits inside nutpie and handles signals.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Container
from types import FrameType
from typing import Any

_SIGNAL = signal.SIGURG  # ignored by default, and seldom used


class Alarm:
    """Raises an exception in the main thread while a sampler waits there.

    It works only if it is made in the main thread. `close` restores the signal's handler.
    """

    def __init__(self) -> None:
        self._pending: BaseException | None = None
        self._before: Any = None
        self._armed = threading.current_thread() is threading.main_thread()
        if self._armed:
            self._before = signal.signal(_SIGNAL, self._handle)

    def raise_in_main(self, exc: BaseException) -> bool:
        """Raise `exc` in the main thread if that waits in a sampler; return whether it does."""
        main = threading.main_thread()
        if not self._armed or threading.current_thread() is main:
            return False
        if caller_of(sys._current_frames().get(main.ident or 0), ("nutpie",)) is None:
            return False
        self._pending = exc
        signal.pthread_kill(main.ident or 0, _SIGNAL)
        return True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        exc, self._pending = self._pending, None
        if exc is not None:
            raise exc
        if callable(self._before):
            self._before(number, frame)

    def close(self) -> None:
        """Restore the signal's former handler."""
        if self._armed and threading.current_thread() is threading.main_thread():
            self._armed = False
            # a later Alarm has replaced this handler, and passes signals on to it
            if self._before is not None and signal.getsignal(_SIGNAL) == self._handle:
                signal.signal(_SIGNAL, self._before)


def caller_of(frame: FrameType | None, packages: Container[str]) -> str | None:
    """The package of these whose code this frame runs, or one that has called it; else None."""
    while frame is not None:
        package: str = frame.f_globals.get("__name__", "").split(".")[0]
        if package in packages:
            return package
        frame = frame.f_back
    return None
