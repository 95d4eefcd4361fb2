"""One start of a script: its process, its output, and the signals on their way to it."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import time
import warnings
from collections.abc import Collection
from typing import IO

from synkhronos._errors import StartFailed
from synkhronos._host.rank_logs import RankLogs
from synkhronos.cli._run.output import Output
from synkhronos.cli._run.plan import Plan
from synkhronos.cli._run.signals import Received, SignalDescriptor

GRACE = 45.0  # seconds from a signal to the kill; fit needs up to 30 for its checkpoint
_IDLE_MS = 200  # without output, until the beginning of a line is shown
_LAST_SECONDS = 1.0  # to read the output of a script that has ended
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


class Process:
    """The script's process, or that of the launcher which starts it on several nodes.

    It never outlives this one: the kernel ends it when this process ends, for any reason.
    """

    def __init__(
        self, plan: Plan, signals: SignalDescriptor, logs: RankLogs | None, grace: float = GRACE
    ) -> None:
        self._plan = plan
        self._signals = signals
        self._grace = grace
        self._until: float | None = None  # when the process is killed
        self.asked_to_end: set[int] = set()  # the signals that this process has got meanwhile
        self._parent = os.getpid()
        self._is_script = plan.launcher == "fork"
        # At a terminal the script stays in this process's group, so that it can read from it; the
        # terminal then sends Ctrl-C to both.
        terminal = os.isatty(0)
        self._in_our_group = terminal and self._is_script
        piped = subprocess.PIPE if plan.relays else None
        try:
            with warnings.catch_warnings():
                # `_begin` makes two calls of the kernel: it needs nothing that a thread may hold
                warnings.simplefilter("ignore", DeprecationWarning)
                self._popen = subprocess.Popen(
                    plan.words,
                    env=plan.environment,
                    stdin=subprocess.DEVNULL if terminal and not self._is_script else None,
                    stdout=piped,
                    stderr=piped,
                    process_group=None if self._in_our_group else 0,
                    preexec_fn=self._begin,
                )
        except FileNotFoundError:
            raise StartFailed(f"{plan.words[0]} was not found") from None
        except OSError as exc:
            raise StartFailed(f"{plan.words[0]} cannot be started: {exc.strerror}") from None
        self._pipes: dict[int, tuple[int, IO[bytes]]] = {}  # by descriptor: stream and file
        for stream, pipe in ((1, self._popen.stdout), (2, self._popen.stderr)):
            if pipe is not None:
                self._pipes[pipe.fileno()] = stream, pipe
        self._output = Output(plan.shown, logs)

    def _begin(self) -> None:
        """In the new process: get the signals again, and end with the parent."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._signals.mask_before)
        # a launcher that gets SIGTERM ends its processes on all nodes
        number = signal.SIGKILL if self._is_script else signal.SIGTERM
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != self._parent:
            os._exit(1)  # it has ended before

    def wait(self) -> int:
        """Pass signals and output on until the process ends; returns its status as in Popen."""
        ended = os.pidfd_open(self._popen.pid)
        try:
            while self._popen.returncode is None:
                ready = self._ready(self._patience(), ended)
                self._pass_on(ready)
                if self._signals.fileno() in ready:
                    for received in self._signals.read():
                        self._take(received)
                if ended in ready:
                    self._popen.wait()
                elif self._until is not None and time.monotonic() > self._until:
                    self._popen.kill()
            self._note_signals([self._signals.fileno()])
            self._read_rest()
        finally:
            os.close(ended)
            self._end()
        return self._popen.returncode

    def _end(self) -> None:
        if self._popen.returncode is None:
            self._popen.kill()
            self._popen.wait()
        for _, pipe in self._pipes.values():
            pipe.close()

    def _patience(self) -> float | None:
        """Milliseconds to wait."""
        waits = [] if self._until is None else [1000 * max(0.0, self._until - time.monotonic())]
        if self._output.unfinished:
            waits.append(_IDLE_MS)
        return min(waits, default=None)

    def _ready(self, milliseconds: float | None, *more: int) -> list[int]:
        """Wait for signals, output of the script, readers of it, and more descriptors."""
        poller = select.poll()
        for descriptor in (self._signals.fileno(), *more):
            poller.register(descriptor, select.POLLIN)
        for descriptor in () if self._output.full else self._pipes:
            poller.register(descriptor, select.POLLIN)
        for stream in self._output.blocked:
            poller.register(stream, select.POLLOUT)
        return [descriptor for descriptor, _ in poller.poll(milliseconds)]

    def _pass_on(self, ready: Collection[int]) -> None:
        self._output.flush()
        if not ready:
            self._output.idle()
        for descriptor in set(ready) & self._pipes.keys():
            stream, pipe = self._pipes[descriptor]
            if data := os.read(descriptor, 1 << 16):
                self._output.feed(stream, data)
            else:
                del self._pipes[descriptor]
                pipe.close()

    def _read_rest(self) -> None:
        """Read what is left; a process that the script has left behind may keep the pipes open.

        As a script itself would, this waits for a slow reader of the output; after a signal only
        for a moment.
        """
        until = time.monotonic() + _LAST_SECONDS
        while self._pipes and time.monotonic() < until:
            waits = self._output.full and not self.asked_to_end
            ready = self._ready(None if waits else _IDLE_MS)
            self._note_signals(ready)
            if not (ready or waits):
                break
            if waits:
                until = time.monotonic() + _LAST_SECONDS
            self._pass_on(ready)
        self._output.end()
        until = time.monotonic() + _LAST_SECONDS
        while self._output.blocked and not (self.asked_to_end and time.monotonic() > until):
            self._note_signals(self._ready(_IDLE_MS))
            self._output.flush()

    def _note_signals(self, ready: Collection[int]) -> None:
        if self._signals.fileno() in ready:
            self.asked_to_end |= {received.number for received in self._signals.read()}

    def _take(self, received: Received) -> None:
        """Pass a signal on, once; SIGTERM, SIGHUP and a second one set a limit."""
        again = bool(self.asked_to_end)
        self.asked_to_end.add(received.number)
        if received.number in (signal.SIGTERM, signal.SIGHUP) or again:
            self._until = self._until or time.monotonic() + self._grace
        if self._is_script:
            if not (self._in_our_group and received.from_terminal):
                self._popen.send_signal(received.number)
        else:
            # a launcher would end its job at once; SIGUSR1 reaches the script, which can save
            self._popen.send_signal(signal.SIGTERM if again else signal.SIGUSR1)
