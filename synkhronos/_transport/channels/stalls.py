"""Who is awaited, and what they do: a warning after a while, an error after a limit.

The master's waits ask it about ten times a second. It names the members that have not come, what
state the kernel says they are in, and their Python stacks, which faulthandler writes on SIGUSR1
into a file of each worker's, also while it computes in C.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from synkhronos._errors import GroupTimeout, member_named
from synkhronos._transport.channels.channel import TimeLimits
from synkhronos._transport.channels.control_words import BARRIER, COMPILING, REPORTED, Words
from synkhronos._transport.channels.processes import Worker

COMPILE_SECONDS = 600.0  # that a member which compiles is given
_STACK_SECONDS = 0.5  # for a member to write its stack
_STACK_BYTES = 4096  # of a stack, shown with an error

log = logging.getLogger("synkhronos")


class Inspector(TimeLimits):
    """Looks after the master's waits.

    Parameters
    ----------
    words : Words
    master : int
    workers : list of Worker
    stacks : sequence of int
        By rank, the file that the member's stacks are written to.
    devices : sequence of str
        By rank, what the member computes on.

    Attributes
    ----------
    elsewhere : callable or None
        Says which members of other nodes are awaited, and names them.
    """

    def __init__(
        self,
        words: Words,
        master: int,
        workers: list[Worker],
        stacks: Sequence[int],
        devices: Sequence[str],
    ) -> None:
        super().__init__()
        self.elsewhere: Callable[[], tuple[tuple[int, ...], str]] | None = None
        self._words = words.of
        self._master = master
        self._workers = workers
        self._stacks = stacks
        self._devices = devices
        self._number = -1
        self._began = 0.0
        self._warned = False

    def look(self, number: int, what: str) -> None:
        """Warn or raise if command `number` has kept the master waiting for too long.

        Raises
        ------
        GroupTimeout
        """
        now = time.monotonic()
        if number != self._number:
            self._number, self._began, self._warned = number, now, False
        waited = now - self._began
        if waited < min(self.limit, math.inf if self._warned else self.warning):
            return
        others, nodes = self.elsewhere() if self.elsewhere is not None else ((), "")
        late = self._late(number, alone=not others)
        compiling = any(self._words[w.rank][COMPILING] and not _stopped(w.pid) for w in late)
        if waited >= (max(self.limit, COMPILE_SECONDS) if compiling else self.limit):
            raise GroupTimeout.of(
                (*(w.rank for w in late), *others), f"{what}: {self._report(late, waited, nodes)}"
            )
        if not self._warned and waited >= self.warning:
            self._warned = True
            log.warning("%s: %s", what, self._report(late, waited, nodes))

    def _late(self, number: int, alone: bool) -> list[Worker]:
        """The workers that have not reported; those among them that hold the others up.

        `alone`: it is not other nodes that all of these wait for.
        """
        coming = [w for w in self._workers if self._words[w.rank][REPORTED] < number]
        furthest = max(words[BARRIER] for words in self._words)
        behind = [w for w in coming if self._words[w.rank][BARRIER] < furthest]
        return behind or (coming if alone else [])

    def _report(self, late: list[Worker], waited: float, nodes: str) -> str:
        if not late and not nodes:
            return f"no answer for {waited:.3g} s"
        named = [member_named(w.rank, w.pid, self._devices[w.rank], self._doing(w)) for w in late]
        listed = ", ".join([*named, *filter(None, [nodes])])
        stacks = [f"\nrank {w.rank}:\n{stack.rstrip()}" for w in late if (stack := self.stack(w))]
        return f"waiting since {waited:.3g} s for {listed}{''.join(stacks)}"

    def _doing(self, worker: Worker) -> str:
        if worker.dead():
            return "dead"
        if _stopped(worker.pid):
            return f"stopped by a signal: kill -CONT {worker.pid}"
        if self._words[worker.rank][COMPILING]:
            return "compiling"
        state = _state(worker.pid)
        return {"R": "running", "S": "waiting", "D": "waiting for a disk or device"}.get(
            state, f"in state {state}"
        )

    def stack(self, worker: Worker) -> str:
        """The Python stacks of a worker's threads, as they are now; nothing if it is stopped."""
        if worker.dead() or _stopped(worker.pid):
            return ""
        fd = self._stacks[worker.rank]
        before = os.fstat(fd).st_size
        with contextlib.suppress(ProcessLookupError):  # it has just died
            signal.pidfd_send_signal(worker.pidfd, signal.SIGUSR1)
        until = time.monotonic() + _STACK_SECONDS
        size = before
        while time.monotonic() < until:
            time.sleep(0.01)
            last, size = size, os.fstat(fd).st_size
            if size == last > before:
                break
        return self.left(worker.rank, before)

    def left(self, rank: int, start: int = 0) -> str:
        """What a member has left of its stacks, from a place in the file on."""
        text = os.pread(self._stacks[rank], _STACK_BYTES, start).decode(errors="replace")
        os.ftruncate(self._stacks[rank], 0)
        return text


def _stopped(pid: int) -> bool:
    return _state(pid) in "Tt"


def _state(pid: int) -> str:
    """The letter of /proc/PID/stat for a process's state."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "gone"
