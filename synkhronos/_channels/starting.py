"""Starting workers, by fork or by fork+exec, and the two guards that end them with the master.

Guard one is PR_SET_PDEATHSIG: SIGKILL within a millisecond, but bound to the forking *thread*, so
only the main thread may use it. Guard two is the lifeline: a pipe whose write end the master alone
holds; each worker asks for SIGKILL on its end of file (F_SETSIG with O_ASYNC). Both are the
kernel's, so a worker in a C call that holds the GIL ends too.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from synkhronos._cores import environment

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>

# The first code of an exec'd worker: its cores first, before any library counts them.
_BOOTSTRAP = """
import json, os, sys
hello = json.loads(sys.argv[1])
try:
    os.sched_setaffinity(0, hello["cores"])
except OSError:
    pass
sys.path[:] = hello["path"]
import importlib
importlib.import_module(hello["module"]).main(hello["wiring"])
"""


@dataclass(frozen=True)
class Wiring:
    """All that a worker needs to find its group; plain numbers and text."""

    rank: int
    size: int
    master: int
    arena_fd: int
    region_bytes: int
    mirror: bool
    bells: list[int]
    abort: int
    lifeline: int
    stacks: int
    parent: int
    cores: list[int]
    crowded: bool
    by_main_thread: bool
    debug: bool
    forked: bool
    profile: bool

    def descriptors(self) -> list[int]:
        """The descriptors that an exec'd worker inherits."""
        return [self.arena_fd, *self.bells, self.abort, self.lifeline, self.stacks]


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back while processes are half made."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork_worker(
    wiring: Wiring, main: Callable[[dict[str, Any]], None], not_for_it: list[int]
) -> int:
    """Start a worker as a copy of this process, without some descriptors; returns its pid."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    with warnings.catch_warnings():
        # safety.py has looked at the threads more closely than Python's own warning does
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for fd in not_for_it:
            os.close(fd)
        main(asdict(wiring))
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def exec_worker(wiring: Wiring, module: str) -> subprocess.Popen[bytes]:
    """Start a worker in a fresh interpreter that runs `module.main(wiring)`."""
    hello = {
        "path": sys.path,
        "module": module,
        "wiring": asdict(wiring),
        "cores": wiring.cores,
    }
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return subprocess.Popen(
        [sys.executable, *flags, "-c", _BOOTSTRAP, json.dumps(hello)],
        stdin=None if wiring.debug else subprocess.DEVNULL,
        pass_fds=wiring.descriptors(),
        env=os.environ | environment(len(wiring.cores)),
    )


def guard(wiring: Wiring) -> None:
    """In a new worker: ignore Ctrl-C, end with the master whatever it dies of."""
    for fd in wiring.descriptors():  # exec has left them open to whatever this process starts
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


def started_by_main_thread() -> bool:
    """Whether PDEATHSIG can be trusted: it fires when the forking thread ends."""
    return threading.current_thread() is threading.main_thread()
