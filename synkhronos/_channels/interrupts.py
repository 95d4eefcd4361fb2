"""Ctrl-C in the master: held back where a half-done step would leave members unequal.

pthread_sigmask is not enough in CPython: a SIGINT that arrived just before is raised in the middle
of the protected code. So the handler itself is exchanged for one that takes a note.
"""

from __future__ import annotations

import signal
import threading

# signal.signal spends 3 us on converting enums
from _signal import signal as set_handler  # type: ignore[import-not-found]
from types import FrameType
from typing import Any

_SIGINT = int(signal.SIGINT)
_main_thread = threading.main_thread()


class Interrupts:
    """A context in which SIGINT is noted, and raised at its end or at `check`."""

    def __init__(self) -> None:
        self._before: Any = None
        self._depth = 0
        self._noted: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> None:
        """Hold SIGINT back (in the main thread, which alone receives it)."""
        # the handler first: an interrupt before it has been exchanged must leave nothing counted,
        # since __exit__ does not run then
        if self._depth == 0 and threading.get_ident() == _main_thread.ident:
            self._before = set_handler(_SIGINT, self._note)
        self._depth += 1

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = number, frame

    def check(self) -> None:
        """Where it does no harm: raise what has been noted."""
        if self._noted is not None:
            self._raise()

    def __exit__(self, *exc: object) -> None:
        """Let SIGINT through again."""
        self._depth -= 1
        if self._depth == 0 and self._before is not None:
            before, self._before = self._before, None
            set_handler(_SIGINT, before)
            if self._noted is not None:
                self._raise(before)

    def _raise(self, handler: Any = None) -> None:
        noted, self._noted = self._noted, None
        handler = handler or self._before
        if callable(handler) and noted is not None:
            handler(*noted)
        elif handler == signal.SIG_DFL:
            raise KeyboardInterrupt
