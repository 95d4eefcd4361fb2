"""The two guards that end a process when its parent ends, such as a worker with the master.

The first is PR_SET_PDEATHSIG: SIGKILL within a millisecond. It is bound to the starting *thread*,
which has to last: see lasting_thread.py. The second is the lifeline: a pipe whose write end only
the parent holds. Each process asks for SIGKILL at its end of file (F_SETSIG with O_ASYNC). The
kernel acts in both, so that a process inside a C call that holds the GIL ends, too.

A fresh interpreter runs this file before any other import, so it imports only Python's own library.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def guard(
    *,
    inherited: Sequence[int],  # descriptors that exec left inheritable by children
    lifeline: int | None,  # None: the process outlives its parent
    parent: int,  # the pid of the process that started this one
    interruptible: bool,  # false: it ignores Ctrl-C
) -> None:
    """In a new process: end when its parent ends, for any reason."""
    for fd in inherited:
        os.set_inheritable(fd, False)
    signal.set_wakeup_fd(-1)
    if not interruptible:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    if lifeline is not None:
        end_with_parent()
        hold(lifeline)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before the guards were set
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def end_with_parent() -> None:
    """Ask the kernel for SIGKILL when the thread that started this process ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def hold(lifeline: int) -> int:
    """Ask the kernel for SIGKILL when the last write end of the lifeline closes.

    An open file has one receiver of signals, so each process opens the pipe again for itself.
    """
    own = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    os.close(lifeline)
    return own
