"""Processes that a signal such as SIGSTOP has stopped: they do nothing until SIGCONT."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from synkhronos._warnings import log

_LOOK_SECONDS = 5.0  # between two looks, each of which takes about 20 us for a process


class StoppedProcesses:
    """Warns of processes that are stopped, once for each stop.

    Parameters
    ----------
    what : str
        Names the call that waits for them.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._named = set[int]()
        self._next = time.monotonic() + _LOOK_SECONDS

    def look(self, pids: Iterable[int]) -> None:
        """Look at processes, unless the latest look was just now."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _LOOK_SECONDS
        found = {pid for pid in pids if is_stopped(pid)}
        for pid in sorted(found - self._named):
            log.warning(
                "%s: process %d is stopped by a signal, and its work waits: kill -CONT %d",
                *(self._what, pid, pid),
            )
        self._named = found


def is_stopped(pid: int) -> bool:
    """Whether a signal, or a debugger, has stopped a process."""
    return state_of(pid) in "Tt"


def state_of(pid: int) -> str:
    """The letter of /proc/PID/stat for a process's state; "gone" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "gone"
