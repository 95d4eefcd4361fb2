"""Signals while a run trains: the step at hand ends, then a checkpoint is written."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from synkhronos._engine.exit_codes import AGAIN
from synkhronos._host.first_process import end, is_usual

GRACE = 30.0  # seconds from a SIGTERM until the process ends without a checkpoint


class Signals:
    """A context in which signals are noted, so that the step at hand can end.

    These are SIGINT, and in a run with a folder SIGTERM and SIGUSR1.
    A second SIGINT is a KeyboardInterrupt at once. After SIGTERM or SIGUSR1, also one that follows
    a SIGINT, the process ends after 30 seconds in any case. Other threads than the main one cannot
    handle signals; there, nothing changes.

    Parameters
    ----------
    saved : bool
        Whether checkpoints are written, so that SIGTERM and SIGUSR1 are noted too.
    """

    def __init__(self, saved: bool) -> None:
        self.received = 0  # the number of the first signal; 0 if there was none
        self._limiting = 0  # that of the first one after which the process ends in any case
        self._noted = [signal.SIGINT]
        if saved:
            self._noted += [signal.SIGTERM, signal.SIGUSR1]
        self._before: dict[int, Any] = {}
        self._alarm = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._noted:
                kept = signal.getsignal(number) == signal.default_int_handler
                if kept if number == signal.SIGINT else is_usual(number):  # else it is the user's
                    self._before[number] = signal.signal(number, self._note)
        if self._before:
            _active.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        self._restore()

    def _restore(self) -> None:
        """Give the signals back."""
        _active[:] = [each for each in _active if each is not self]
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def name(self) -> str:
        """The name of the signal."""
        return signal.Signals(self.received).name

    def act(self) -> None:
        """Raise what the signal means, at the end of the run."""
        if self.received == signal.SIGINT:
            raise _told()
        if self.received:
            raise SystemExit(AGAIN)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received:
            raise KeyboardInterrupt
        if self._limiting:
            return
        self.received = self.received or number
        until = "; again: at once"
        if number != signal.SIGINT:
            self._limiting, until = number, f", within {GRACE:.0f} s"
            if signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:
                self._alarm = True
                signal.signal(signal.SIGALRM, self._too_late)
                signal.setitimer(signal.ITIMER_REAL, GRACE)
        _say(f"{signal.Signals(number).name}: the run ends after this step{until}")

    def _too_late(self, number: int, frame: FrameType | None) -> None:
        _say(f"the step has not ended within {GRACE:.0f} s: the run ends without a checkpoint")
        end(self._limiting)


# In a fork of the process, such as a process of multiprocessing, signals act as before the run:
# else it would not end by the SIGTERM of its parent, which waits for its end.
_active: list[Signals] = []


def _part() -> None:
    for signals in reversed(_active):
        signals._restore()


os.register_at_fork(after_in_child=_part)


def _told() -> KeyboardInterrupt:
    """A Ctrl-C of which the run has told: no traceback follows if nobody catches it.

    Python's exit stays that of a Ctrl-C, which a subclass would not have.
    """
    error = KeyboardInterrupt()
    error.told = True  # type: ignore[attr-defined]
    _hide_told()
    return error


def _hide_told() -> None:
    """From now on, show no traceback of what `_told` has made."""
    shown_by = sys.excepthook
    if getattr(shown_by, "hides_told", False):
        return

    def show(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None, /
    ) -> None:
        if not getattr(error, "told", False):
            shown_by(kind, error, trace)

    show.hides_told = True  # type: ignore[attr-defined]
    sys.excepthook = show


def _say(text: str) -> None:
    """Write a line; by the kernel's call, since the signal may have interrupted a print."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{text}\n".encode())
