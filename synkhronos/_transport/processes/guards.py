"""The two guards that end a worker when its master ends.

The first is PR_SET_PDEATHSIG: SIGKILL within a millisecond. It is bound to the forking *thread*,
which has to last: see lasting_thread.py. The second is the lifeline: a pipe whose write end only
the master holds. Each worker asks for SIGKILL at its end of file (F_SETSIG with O_ASYNC). The
kernel acts in both, so that a worker inside a C call that holds the GIL ends, too.

A fresh interpreter runs this file before any other import, so it imports only Python's own library.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
from typing import Any

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def inherited(wiring: Any) -> list[int]:
    """The descriptors that a worker started by exec inherits."""
    return [wiring.arena_fd, *wiring.bells, wiring.abort, wiring.lifeline, wiring.stacks]


def guard(wiring: Any) -> None:
    """In a new worker: ignore Ctrl-C, and end when the master ends, for any reason."""
    for fd in inherited(wiring):  # exec left them inheritable by children
        os.set_inheritable(fd, False)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    if not wiring.debug:
        os.setpgid(0, 0)  # the terminal's Ctrl-C reaches only the master
    end_with_parent()
    hold(wiring.lifeline)
    if os.getppid() != wiring.parent:
        os._exit(1)  # the master died before the guards were set
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def end_with_parent() -> None:
    """Ask the kernel for SIGKILL when the thread that started this process ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def hold(lifeline: int) -> int:
    """Ask the kernel for SIGKILL when the last write end of the lifeline closes.

    An open file has one receiver of signals, so each worker opens the pipe again for itself.
    """
    own = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    os.close(lifeline)
    return own
