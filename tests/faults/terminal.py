"""A terminal with a shell, in whose foreground programs run: keys reach them as a user's do.

The shell has imported the programs' file once, and forks for each. A program is in a process group
of its own, and the interpreter ends as it always does: with the traceback of what it raised.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from synkhronos._host.polling import readable
from synkhronos.testing.killing import _processes

CTRL_C, CTRL_Z = b"\x03", b"\x1a"
LIMIT = 100.0  # seconds; a hang fails
_GONE = 30.0  # for the last process to go after the first


@dataclass
class Program:
    """A program in the foreground."""

    pid: int
    printed: str = ""
    said: list[tuple[float, str]] = field(default_factory=list)

    def when(self, text: str) -> float | None:
        """When it, or the shell of it, said something that begins so."""
        return next((at for at, said in self.said if said.startswith(text)), None)

    def number(self, text: str) -> int:
        """What it said behind that."""
        return next(int(said.split()[1]) for _, said in self.said if said.startswith(text))


class Terminal:
    """A terminal and its shell.

    Parameters
    ----------
    path : str
        A file with a function `program(say, *args)`.

    Attributes
    ----------
    patience : float
        Seconds that a program may take to end.
    """

    patience = LIMIT

    def __init__(self, path: str) -> None:
        self._keys, screen = os.openpty()
        orders, self._orders = os.pipe()
        self._events, events = os.pipe()
        try:
            self.shell = subprocess.Popen(
                [sys.executable, "-P", __file__, path, str(orders), str(events)],
                stdin=screen,
                stdout=screen,
                stderr=screen,
                pass_fds=(orders, events),
                start_new_session=True,
            )
        finally:
            for fd in (screen, orders, events):
                os.close(fd)
        self._rest = b""
        self.program = Program(0)
        assert self.await_word("ready"), self.program.printed

    @property
    def free(self) -> bool:
        """Whether another program may be started."""
        return self.program.pid == 0 or self.program.when("ended") is not None

    def close(self) -> None:
        """End whatever is in it."""
        for pid in _processes(self.shell.pid):
            if pid != self.shell.pid:
                os.kill(pid, signal.SIGKILL)
        self.shell.kill()
        self.shell.wait(LIMIT)
        for fd in (self._keys, self._orders, self._events):
            os.close(fd)

    def run(self, *args: Any) -> Program:
        """Start a program in the foreground."""
        self.program = Program(0)
        self._order(args)
        assert self.await_word("started"), "the shell does not answer"
        self.program.pid = self.program.number("started")
        return self.program

    def foreground(self) -> None:
        """What `fg` does with a program that is stopped."""
        self._order(["fg"])
        assert self.await_word("continued"), "the shell does not answer"

    def press(self, keys: bytes) -> float:
        """Press keys; returns when."""
        at = time.monotonic()
        os.write(self._keys, keys)
        return at

    def _order(self, order: Any) -> None:
        os.write(self._orders, json.dumps(order).encode() + b"\n")

    def await_word(self, text: str, limit: float = LIMIT) -> bool:
        """Wait until the program or the shell says something; False if it does not."""
        until = time.monotonic() + limit
        while self.program.when(text) is None:
            left = max(0.0, until - time.monotonic())
            ready = readable(self._keys, self._events, seconds=left)
            if not ready:
                return False
            if self._keys in ready:
                self._read_screen()
            if self._events in ready:
                read = os.read(self._events, 65536)
                if not read:  # the shell has ended
                    return False
                *lines, self._rest = (self._rest + read).split(b"\n")
                self.program.said += [tuple(json.loads(line)) for line in lines]
        return True

    def _read_screen(self) -> None:
        with contextlib.suppress(OSError):  # nobody has the terminal open
            self.program.printed += os.read(self._keys, 65536).decode(errors="replace")

    def left(self) -> list[int]:
        """The processes of the session that are still there in a moment, but for the shell."""
        while readable(self._keys):
            self._read_screen()
        until = time.monotonic() + _GONE
        while found := [pid for pid in _processes(self.shell.pid) if pid != self.shell.pid]:
            if time.monotonic() > until:
                break
            time.sleep(0.002)
        return found


def serve(path: str, orders: int, events: int) -> Callable[[], None] | None:
    """The shell; in the process of a program it returns the program."""
    for number in (signal.SIGINT, signal.SIGTSTP, signal.SIGTTOU, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    spec = importlib.util.spec_from_file_location("programs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["programs"] = module
    spec.loader.exec_module(module)

    def say(text: str) -> None:
        os.write(events, json.dumps([time.monotonic(), text]).encode() + b"\n")

    lines = os.fdopen(orders)
    say("ready")
    while line := lines.readline():
        pid = os.fork()
        if not pid:
            lines.close()
            _come_to_the_front(os.getpid())
            for number in (signal.SIGTSTP, signal.SIGTTOU, signal.SIGQUIT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)  # below nohup SIGHUP is ignored too
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return lambda: module.program(say, *json.loads(line))
        _come_to_the_front(pid)
        say(f"started {pid}")
        while os.WIFSTOPPED(status := os.waitpid(pid, os.WUNTRACED)[1]):
            os.tcsetpgrp(0, os.getpgrp())
            say("stopped")
            lines.readline()
            os.tcsetpgrp(0, pid)
            os.killpg(pid, signal.SIGCONT)
            say("continued")
        os.tcsetpgrp(0, os.getpgrp())
        say(f"ended {os.waitstatus_to_exitcode(status)}")
    return None


def _come_to_the_front(pid: int) -> None:
    with contextlib.suppress(OSError):  # the other of the two has done it
        os.setpgid(pid, pid)
        os.tcsetpgrp(0, pid)


if __name__ == "__main__":
    program = serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    if program is not None:
        program()
