"""Signals of the first process of a container.

The kernel gives process 1 no signal whose action is the default. So a program that a container
starts without an init does not end by SIGTERM, unless something handles it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)

_users: list[object] = []  # one for each group that needs the handler


def end_by_signals() -> Callable[[], None]:
    """Let SIGTERM and SIGHUP end this process if it is the first one; returns what undoes that.

    Only signals with the default action are handled, and only the main thread can do this.
    """
    if os.getpid() != 1 or threading.current_thread() is not threading.main_thread():
        return lambda: None
    user = object()
    _users.append(user)
    for number in ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)
    return lambda: _leave(user)


def is_usual(number: int) -> bool:
    """Whether a signal ends this process because nobody has asked for another action."""
    return signal.getsignal(number) in (signal.SIG_DFL, _end)


def end(number: int) -> None:
    """End this process by a signal, as its default action does elsewhere."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(128 + number)  # the first process goes on; shells report an end by a signal so


def _end(number: int, frame: FrameType | None) -> None:
    end(number)


def _leave(user: object) -> None:
    _users.remove(user)
    if _users or threading.current_thread() is not threading.main_thread():
        return
    for number in ENDING:
        if signal.getsignal(number) == _end:
            signal.signal(number, signal.SIG_DFL)
