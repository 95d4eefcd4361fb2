"""Processes as the one that has started them sees them: deaths, their causes, and the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from synkhronos._host import cgroups
from synkhronos._host.descriptors import Descriptor
from synkhronos._host.memory_limits import oom_kills, smallest
from synkhronos._host.polling import readable

_KNOWN = frozenset(int(s) for s in signal.Signals)  # most real-time signals have no name
_HINTS: dict[int, str] = {
    signal.SIGKILL: "perhaps by the OOM killer or by hand",
    signal.SIGSEGV: "a crash in compiled code",
    signal.SIGBUS: "memory that could not be provided",
    signal.SIGABRT: "an assertion in compiled code",
}
END_SECONDS = 30.0  # after SIGKILL; only a process in uninterruptible sleep takes longer


@dataclass
class ChildProcess:
    """A process that this one has started; signals go to its pidfd: the system reuses pids."""

    pid: int
    popen: subprocess.Popen[bytes] | None = None  # what has started it; None: a fork
    pidfd: Descriptor = field(init=False)
    ended: str = ""  # how it ended; empty until it is reaped

    def __post_init__(self) -> None:
        self._cgroups = cgroups.of(self.pid)
        self._oom_kills = oom_kills(self._cgroups)
        try:
            self.pidfd = Descriptor(os.pidfd_open(self.pid))
        except OSError:  # not reaped yet, so the pid is not reused
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise

    def dead(self) -> bool:
        """Whether the process has ended, reaped or not."""
        return bool(self.ended) or not self.pidfd.is_ours or bool(readable(self.pidfd))

    def kill(self) -> None:
        """Send SIGKILL to this process."""
        if not self.pidfd.is_ours:  # the lifeline, which is closed too, ends it
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def leave(self) -> None:
        """Close the descriptor."""
        self.pidfd.close()

    def reap(self) -> None:
        """Read the exit status of the dead process, and kill the rest of its process group."""
        if self.ended:
            return
        code = 0
        if not self.pidfd.is_ours:
            self.ended = "lost, since this program has closed descriptors of the group (closerange)"
            if self.popen is not None:
                self.popen.returncode = code
            return
        try:
            status = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # another process may have the pid by now
            self.ended = (
                "ended; its exit status was taken by someone else, as when SIGCHLD is ignored"
            )
        else:
            assert status is not None
            code = status.si_status
            self.ended = self._how(status)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        if self.popen is not None:
            self.popen.returncode = code

    def _how(self, status: os.waitid_result) -> str:
        number = status.si_status
        if status.si_code == os.CLD_EXITED:
            return f"exited with code {number}"
        if number not in _KNOWN:
            return f"killed by signal {number}"
        hint = _HINTS.get(number)
        if number == signal.SIGKILL and oom_kills(self._cgroups) > self._oom_kills:
            hint = f"by the OOM killer: {smallest().text} bytes"
        return f"killed by {signal.Signals(number).name}" + (f" ({hint})" if hint else "")


def end(children: Sequence[ChildProcess], grace: float, patience: float = END_SECONDS) -> None:
    """Wait `grace` seconds for processes to end, kill the rest, and reap all.

    Those that are not gone `patience` seconds after that are not reaped.
    """
    _await_ends(children, grace)
    for child in children:
        if not child.ended:
            child.kill()
    _await_ends(children, patience)


def _await_ends(children: Sequence[ChildProcess], seconds: float) -> None:
    until = time.monotonic() + seconds
    for child in children:
        if not child.pidfd.is_ours:
            child.reap()
    alive: dict[int, ChildProcess] = {c.pidfd: c for c in children if not c.ended}
    while alive:
        for fd in readable(*alive, seconds=max(0.0, until - time.monotonic())):
            alive.pop(fd).reap()
        if time.monotonic() >= until:
            return
