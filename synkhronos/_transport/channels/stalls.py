"""Members that keep the master waiting: a warning after a while, an error at the limit.

The master's waits call `look` about ten times a second. It names the members that are late, their
states by the kernel, and their Python stacks. faulthandler writes these on SIGUSR1 into a file of
each worker, also while the worker computes in C.

A limit counts only time in which the master could look, and no member compiled. While the whole
machine stands still, as a suspended virtual machine does, no member is late.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Sequence

from synkhronos._errors import GroupTimeout, member_named
from synkhronos._host.descriptors import Descriptor
from synkhronos._transport.channels.channel import TimeLimits
from synkhronos._transport.processes.folded_stacks import folded, place_of
from synkhronos._transport.processes.stopped import is_stopped, state_of
from synkhronos._transport.processes.worker import Worker
from synkhronos._transport.shared_state.control_words import (
    BARRIER,
    COMPILING,
    REPORTED,
    ControlWords,
)
from synkhronos._warnings import log

COMPILE_SECONDS = 600.0  # of compiling, at most, that do not count as waiting
_LONGEST_GAP = 0.3  # seconds between two looks that count as waited
_STACK_SECONDS = 0.5  # that a member gets to write its stack
_STACK_BYTES = 4096  # of a stack that an error shows


class Inspector(TimeLimits):
    """Reports members that are late."""

    def __init__(
        self,
        words: ControlWords,
        master: int,
        workers: list[Worker],
        stacks: Sequence[Descriptor],
        devices: Sequence[str],
    ) -> None:
        super().__init__()
        # returns the late members of other nodes, and their names
        self.elsewhere: Callable[[], tuple[tuple[int, ...], str]] | None = None
        # gets whether a member of this node compiles; returns whether one of any node does
        self.compiling: Callable[[bool], bool] | None = None
        self._words = words.of
        self._master = master
        self._workers = workers
        self._stacks = stacks  # by rank, the file for the member's stacks
        self._devices = devices  # by rank, the member's device
        self._number = -1
        self._began = self._looked = 0.0
        self._compiled = 0.0  # seconds in which a member has compiled
        self._warned = False

    def start_again(self) -> None:
        """Count the time of a wait from now on, such as one for a command that was abandoned."""
        self._number = -1

    def look(self, number: int, what: str) -> None:
        """Warn or raise if command `number` keeps the master waiting for too long.

        Raises
        ------
        GroupTimeout
        """
        now = time.monotonic()
        if number != self._number:
            self._number, self._began, self._warned, self._compiled = number, now, False, 0.0
        else:
            self._began += max(0.0, now - self._looked - _LONGEST_GAP)
            if self._someone_compiles():
                since = min(now - self._looked, _LONGEST_GAP)
                self._compiled = min(self._compiled + since, COMPILE_SECONDS)
        self._looked = now
        waited = now - self._began
        limit = self.limit + self._compiled
        if waited < min(limit, math.inf if self._warned else self.warning):
            return
        others, nodes = self.elsewhere() if self.elsewhere is not None else ((), "")
        late = self._late(number, no_other_node=not others)
        if waited >= limit:
            raise GroupTimeout.of(
                (*(w.rank for w in late), *others), f"{what}: {self._report(late, waited, nodes)}"
            )
        if not self._warned and waited >= self.warning:
            self._warned = True
            log.warning("%s: %s", what, self._report(late, waited, nodes))

    def _someone_compiles(self) -> bool:
        words = self._words
        here = any(words[w.rank][COMPILING] and not is_stopped(w.pid) for w in self._workers)
        return here if self.compiling is None else self.compiling(here)

    def _late(self, number: int, no_other_node: bool) -> list[Worker]:
        """The workers that delay the others, or all that have not reported.

        `no_other_node`: True if no other node is late.
        """
        running = [w for w in self._workers if self._words[w.rank][REPORTED] < number]
        furthest = max(words[BARRIER] for words in self._words)
        behind = [w for w in running if self._words[w.rank][BARRIER] < furthest]
        return behind or (running if no_other_node else [])

    def _report(self, late: list[Worker], waited: float, nodes: str) -> str:
        if not late and not nodes:
            return f"no answer for {waited:.3g} s"
        named, stacks = [], ""
        for w in late:
            stack = self.stack(w)
            place = place_of(stack)
            doing = ", ".join(filter(None, [self._doing(w), place and f"at {place}"]))
            named.append(member_named(w.rank, w.pid, self._devices[w.rank], doing))
            stacks += f"\nrank {w.rank}:\n{folded(stack).rstrip()}" if stack else ""
        listed = ", ".join([*named, *filter(None, [nodes])])
        return f"waited {waited:.3g} s for {listed}{stacks}"

    def _doing(self, worker: Worker) -> str:
        if worker.dead():
            return "dead"
        if is_stopped(worker.pid):
            return f"stopped by a signal: kill -CONT {worker.pid}"
        if self._words[worker.rank][COMPILING]:
            return "compiling"
        state = state_of(worker.pid)
        return {"R": "running", "S": "waiting", "D": "waiting for a disk or device"}.get(
            state, f"in state {state}"
        )

    def stack(self, worker: Worker) -> str:
        """The present Python stacks of a worker's threads; empty if it is stopped."""
        if worker.dead() or is_stopped(worker.pid):
            return ""
        fd = self._stacks[worker.rank]
        before = os.fstat(fd).st_size
        with contextlib.suppress(ProcessLookupError):  # it died just now
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
        """Read and clear the stacks that a member has written, from a position in its file."""
        file = self._stacks[rank]
        if not file.is_ours:
            return ""
        text = os.pread(file, _STACK_BYTES, start).decode(errors="replace")
        os.ftruncate(file, 0)
        return text
