"""Ctrl-C in the master: delayed where a step that is half done would leave members unequal.

pthread_sigmask is not enough in CPython: a SIGINT that arrived just before is raised inside the
protected code. So the handler is replaced by one that only notes the signal.
"""

from __future__ import annotations

import os
import signal
import threading

# the wrappers in the module signal take 3 us to convert enums
from _signal import getsignal as get_handler  # type: ignore[import-not-found]
from _signal import signal as set_handler
from types import FrameType

_SIGINT = int(signal.SIGINT)
_DEFAULT = int(signal.SIG_DFL)
_IGNORED = int(signal.SIG_IGN)
_main = [threading.main_thread().ident]  # the thread that receives signals; a fork has another


class Interrupts:
    """A context in which SIGINT is noted, and raised at its end or at `check`.

    Only the main thread receives signals; in other threads the context does nothing.
    """

    def __init__(self) -> None:
        self._before: object = None
        self._depth = 0
        self._noted: tuple[int, FrameType | None] | None = None
        self.firm = False  # while true, and at most until the context ends, `check` does not raise

    def __enter__(self) -> None:
        if threading.get_ident() != _main[0]:
            return
        # the handler first: an interrupt before that must not change the depth, since __exit__ does
        # not run then
        if self._depth == 0:
            self._exchange()
        self._depth += 1

    def _exchange(self) -> None:
        before = get_handler(_SIGINT)
        if before == _IGNORED:  # as in workers: nothing to hold back
            return
        # None is a handler of C code, which cannot be restored; our own is found if the handler of
        # another signal raised before the last context ended
        if before is not None and before != self._note:
            self._before = before
            set_handler(_SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = number, frame

    def check(self) -> None:
        """Raise a noted interrupt, at a place where that leaves members equal."""
        if self._noted is None or self.firm or threading.get_ident() != _main[0]:
            return
        self._raise(self._before)

    def __exit__(self, *exc: object) -> None:
        if threading.get_ident() != _main[0]:
            return
        self._depth -= 1
        if self._depth == 0:
            self._let_through()

    def release(self) -> None:
        """End the context if the handler of another signal raised just before its end."""
        if threading.get_ident() == _main[0] and (self._depth or self._before):
            self._depth = 0
            self._let_through()

    def part(self) -> object:
        """In a fork that was made meanwhile: hold nothing back; returns the user's handler."""
        before, self._before, self._noted = self._before, None, None
        return before

    def _let_through(self) -> None:
        self.firm = False
        before = self._before
        if before is not None:
            set_handler(_SIGINT, before)
            self._before = None
        if self._noted is not None:
            self._raise(before)

    def _raise(self, handler: object) -> None:
        noted, self._noted = self._noted, None
        if callable(handler) and noted is not None:
            handler(*noted)
        elif handler == _DEFAULT:  # the user has set SIGINT to end the process
            set_handler(_SIGINT, handler)
            signal.raise_signal(_SIGINT)


def _part() -> None:
    """In a fork: the thread that has forked is the main one, and Ctrl-C is no more held back."""
    _main[0] = threading.main_thread().ident
    found = handler = get_handler(_SIGINT)
    while isinstance(holder := getattr(handler, "__self__", None), Interrupts):
        handler = holder.part()
    if handler is not found:
        set_handler(_SIGINT, handler)


os.register_at_fork(after_in_child=_part)
