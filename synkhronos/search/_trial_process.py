"""One trial's process, as the parent sees it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from synkhronos._host import files
from synkhronos._host.launch_settings import LaunchSettings, without_settings
from synkhronos._transport.processes.child_process import ChildProcess
from synkhronos._transport.processes.interpreter import start_interpreter

END_SECONDS = 30.0  # for a process to end after its last message
_CHUNK = 1 << 16
_LONGEST = 1 << 24  # bytes of a message
_REPLY_SECONDS = 1.0
_LOOK_SECONDS = 0.001


@dataclass(frozen=True)
class Settings:
    """The settings that all trials of a search have in common.

    `objective` and `lifeline` are descriptors: a file in memory with the pickled function, and the
    read end of a pipe whose write end only the parent holds. `log_dir` is a folder for what trials
    print; None: they print where the parent does.
    """

    objective: int
    lifeline: int
    members: int | None
    folds: int
    log_dir: Path | None


class TrialProcess:
    """A trial in a fresh interpreter, bound to the cores of its slot.

    Attributes
    ----------
    trial : optuna.Trial
    cores : sequence of int
    told : bool
        Whether its end was told to the study.
    silent : bool
        Whether it has closed its end of the pipe, which then is readable for ever.
    until : float
        When it is killed, by time.monotonic.
    late : str
        Why it was killed at `until`.
    """

    def __init__(self, trial: Any, cores: Sequence[int], settings: Settings, limit: float) -> None:
        self.trial = trial
        self.cores = cores
        self.told = self.silent = False
        self.until = time.monotonic() + limit
        self.late = f"it took longer than limit={limit:g} seconds"
        self._rest = b""
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._from, to_us = os.pipe()
            ours.callback(os.close, self._from)
            theirs.callback(os.close, to_us)
            from_us, self._to = os.pipe()
            ours.callback(os.close, self._to)
            theirs.callback(os.close, from_us)
            os.set_blocking(self._from, False)
            os.set_blocking(self._to, False)
            popen = self._started(settings, to_us, from_us)
            self._child = ChildProcess(popen.pid, popen)
            ours.pop_all()  # they stay open

    def _started(self, settings: Settings, to_us: int, from_us: int) -> subprocess.Popen[bytes]:
        task = {
            "number": self.trial.number,
            "cores": list(self.cores),
            "members": settings.members,
            "folds": settings.folds,
            "requests": to_us,
            "replies": from_us,
            "objective": settings.objective,
        }
        members = () if settings.members is None else (settings.members,)
        with _log_of(settings.log_dir, self.trial.number) as output:
            return start_interpreter(
                "synkhronos.search._entry",
                task,
                descriptors=(to_us, from_us, settings.objective),
                lifeline=settings.lifeline,
                cores=self.cores,
                environ={
                    **without_settings(os.environ),
                    **LaunchSettings(members=members).environment(),
                },
                stdout=output,
                stderr=output,
            )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._child.pid

    @property
    def descriptors(self) -> tuple[int, int]:
        """The descriptors that become readable: at a message, and at the end of the process."""
        return self._from, self._child.pidfd

    def messages(self) -> Iterator[dict[str, object]]:
        """Those that have arrived.

        Raises
        ------
        ValueError
            The process has sent something else.
        """
        while data := self._read():
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                found = json.loads(line)
                if not isinstance(found, dict):
                    raise ValueError(f"{line[:80]!r} is not a message")
                yield found
            if len(self._rest) > _LONGEST:
                raise ValueError("a message is too long")

    def _read(self) -> bytes:
        try:
            found = os.read(self._from, _CHUNK)
        except BlockingIOError:
            return b""
        self.silent = not found
        return found

    def reply(self, message: dict[str, object]) -> None:
        """Answer a request.

        Raises
        ------
        BlockingIOError
            The process has not read earlier replies for a second; other trials wait meanwhile.
        """
        rest = json.dumps(message).encode() + b"\n"
        until = time.monotonic() + _REPLY_SECONDS
        with contextlib.suppress(BrokenPipeError):  # it has ended
            while rest:
                try:
                    rest = rest[os.write(self._to, rest) :]
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(_LOOK_SECONDS)

    def ends_soon(self) -> None:
        """Its last message has come: limit the time until its end."""
        self.told = True
        self.until = time.monotonic() + END_SECONDS

    @property
    def dead(self) -> bool:
        """Whether the process has ended."""
        return self._child.dead()

    def kill(self) -> None:
        """End the process."""
        self._child.kill()

    def close(self) -> str:
        """Reap the process that has ended, and what it has started; says how it ended."""
        self._child.reap()
        for descriptor in (self._from, self._to, self._child.pidfd):
            os.close(descriptor)
        return self._child.ended


@contextlib.contextmanager
def _log_of(folder: Path | None, number: int) -> Iterator[IO[bytes] | None]:
    """The file for what a trial prints; None without a folder."""
    if folder is None:
        yield None
        return
    with open(files.appending(folder / f"trial-{number}.log"), "ab") as file:
        yield file
