"""A process on the cores of a slot, and the messages with it: lines of JSON on two pipes."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from synkhronos._host import files
from synkhronos._host.launch_settings import PART, LaunchSettings, without_settings
from synkhronos._transport.processes.child_process import ChildProcess
from synkhronos._transport.processes.interpreter import start_interpreter

END_SECONDS = 30.0  # for a process to end after its last message
_CHUNK = 1 << 16
_LONGEST = 1 << 24  # bytes of a message
_REPLY_SECONDS = 1.0
_LOOK_SECONDS = 0.001


class SlotProcess:
    """A fresh interpreter, bound to the cores of its slot."""

    def __init__(
        self,
        # its `main(task)` runs. The task has also `requests` and `replies`: descriptors of the
        # pipes, that it writes to and reads from
        module: str,
        task: Mapping[str, object],
        cores: Sequence[int],  # none: those of this process, with a thread for each member
        *,
        descriptors: Sequence[int],  # what the process inherits beside the pipes
        lifeline: int,  # see `interpreter.lifeline`
        members: int | None,  # what `fork()` starts in it
        # a file for what it prints, which is appended. None: it prints where this process does
        log: Path | None,
    ) -> None:
        self.cores = cores
        self.told = False  # whether what it was asked for has been told
        self.silent = False  # whether it has closed its end of the pipe, which is readable for ever
        self.until = float("inf")  # when it is killed, by time.monotonic
        self.late = ""  # why it was killed at `until`
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
            asked = () if members is None else (members,)
            settings = LaunchSettings(members=asked).environment()
            environ = without_settings(os.environ)
            environ.pop(PART, None)  # it has divided what this process is a part of
            with _opened(log) as output:
                popen = start_interpreter(
                    module,
                    {**task, "requests": to_us, "replies": from_us},
                    descriptors=(to_us, from_us, *descriptors),
                    lifeline=lifeline,
                    cores=cores or None,
                    n_threads=members,
                    environ={**environ, **settings},
                    stdout=output,
                    stderr=output,
                )
            self._child = ChildProcess(popen.pid, popen)
            ours.pop_all()  # they stay open

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
            The process has not read earlier replies for a second; others wait meanwhile.
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

    def limit(self, seconds: float) -> None:
        """Kill it after some seconds from now."""
        self.until = time.monotonic() + seconds
        self.late = f"it took longer than limit={seconds:g} seconds"

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
def _opened(log: Path | None) -> Iterator[IO[bytes] | None]:
    if log is None:
        yield None
        return
    with open(files.appending(log), "ab") as file:
        yield file
