"""Ctrl-C in the master: held back where a half-done step would leave members unequal.

pthread_sigmask is not enough in CPython: a SIGINT that arrived just before is raised in the middle
of the protected code. So the handler itself is exchanged for one that takes a note.
"""

from __future__ import annotations

import signal
import threading

# the functions of the module signal spend 3 us on converting enums
from _signal import getsignal as get_handler  # type: ignore[import-not-found]
from _signal import signal as set_handler
from types import FrameType
from typing import Any

_SIGINT = int(signal.SIGINT)
_DEFAULT = int(signal.SIG_DFL)
_main_thread = threading.main_thread()


class Interrupts:
    """A context in which SIGINT is noted, and raised at its end or at `check`.

    It holds for the main thread, which alone receives signals; in others it does nothing.

    Attributes
    ----------
    firm : bool
        Until the context's end (or until it is false again) `check` raises nothing.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._depth = 0
        self._noted: tuple[int, FrameType | None] | None = None
        self.firm = False

    def __enter__(self) -> None:
        """Hold SIGINT back."""
        if threading.get_ident() != _main_thread.ident:
            return
        # the handler first: an interrupt before it has been exchanged must leave nothing counted,
        # since __exit__ does not run then
        if self._depth == 0:
            self._exchange()
        self._depth += 1

    def _exchange(self) -> None:
        before = get_handler(_SIGINT)
        # None is a handler of C code, which could not be put back; our own stands there if another
        # signal's handler has raised before the last context's end
        if before is not None and before != self._note:
            self._before = before
            set_handler(_SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = number, frame

    def check(self) -> None:
        """Where it does no harm: raise what has been noted."""
        if self._noted is None or self.firm or threading.get_ident() != _main_thread.ident:
            return
        self._raise(self._before)

    def __exit__(self, *exc: object) -> None:
        """Let SIGINT through again."""
        if threading.get_ident() != _main_thread.ident:
            return
        self._depth -= 1
        if self._depth == 0:
            self._let_through()

    def release(self) -> None:
        """End the context if another signal's handler has raised as it was about to end."""
        if threading.get_ident() == _main_thread.ident and (self._depth or self._before):
            self._depth = 0
            self._let_through()

    def _let_through(self) -> None:
        self.firm = False
        before = self._before
        if before is not None:
            set_handler(_SIGINT, before)
            self._before = None
        if self._noted is not None:
            self._raise(before)

    def _raise(self, handler: Any) -> None:
        noted, self._noted = self._noted, None
        if callable(handler) and noted is not None:
            handler(*noted)
        elif handler == _DEFAULT:  # the user wants to be killed by it
            set_handler(_SIGINT, handler)
            signal.raise_signal(_SIGINT)
