"""The two guards that end a worker with its master.

Guard one is PR_SET_PDEATHSIG: SIGKILL within a millisecond, but bound to the forking *thread*, so
only the main thread may use it. Guard two is the lifeline: a pipe whose write end the master alone
holds; each worker asks for SIGKILL on its end of file (F_SETSIG with O_ASYNC). Both are the
kernel's, so a worker in a C call that holds the GIL ends too.

A fresh interpreter runs this file before it imports anything: it needs Python's own library alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
from typing import Any

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def inherited(wiring: Any) -> list[int]:
    """The descriptors that an exec'd worker inherits."""
    return [wiring.arena_fd, *wiring.bells, wiring.abort, wiring.lifeline, wiring.stacks]


def guard(wiring: Any) -> None:
    """In a new worker: ignore Ctrl-C, end with the master whatever it dies of."""
    for fd in inherited(wiring):  # exec has left them open to whatever this process starts
        os.set_inheritable(fd, False)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    if not wiring.debug:
        os.setpgid(0, 0)  # Ctrl-C of the terminal reaches the master alone
    if wiring.by_main_thread:
        end_with_parent()
    _hold(wiring.lifeline)
    if os.getppid() != wiring.parent:
        os._exit(1)  # the master died before the guards stood
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def end_with_parent() -> None:
    """Ask for SIGKILL when the thread that started this process ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _hold(lifeline: int) -> int:
    """Ask for SIGKILL when the last write end of the lifeline closes.

    The receiver of the signal belongs to the open file, so each worker opens the pipe anew.
    """
    own = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    os.close(lifeline)
    return own
