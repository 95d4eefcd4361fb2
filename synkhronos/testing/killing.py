"""Killing a process at its k-th system call, for every k: a crash test that leaves no gap.

A *scenario* is a Python file with a function ``scenario(trial)``: a program that starts a group
and uses it. A *stage* is a process that has imported the scenario once; for each trial it forks a
fresh process, in a session of its own, that runs it. Where the scenario says so, the *victim* (the
master, or a worker) halts, strace takes hold of it, and delivers SIGKILL as it enters its k-th
system call from there. Nothing in the program is instrumented. It needs strace and the right to
trace.

::

    def scenario(trial):
        trial.pause("start")                  # the master may be the victim from here on
        with synk.Group(2) as group:
            trial.mark(group)                 # or from here on; or a worker
            ...
        trial.say("finished")
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from synkhronos._commands import Command

if TYPE_CHECKING:
    from synkhronos._group import Group
    from synkhronos._member import Member

LIMIT = 20.0  # seconds for a trial; what takes longer hangs
_ATTACH = 5.0  # for strace to take hold
_GONE = 1.0  # for the last process to go after the first has
# Spinning is a system call, too, and thousands of them in a row are all the same place.
CALLS = "!sched_yield"
KILL = "signal=SIGKILL"
NEVER = 65535  # the largest k that strace takes


@dataclass
class Outcome:
    """What became of one trial.

    Attributes
    ----------
    victim, calls, fault : str
    k : int
        The system call at which it happened, counted from the victim's halt; 0: nothing was done.
    events : list of (float, str)
        What the scenario said, and when, in seconds of time.monotonic.
    died : float or None
        When the victim ended.
    ended : float
        When the scenario's process ended, by the same clock.
    status : int or None
        Its wait status; None: it was still there at the limit.
    reached : bool
        Whether the fault has happened; False: the victim made fewer than k such system calls.
    made : int
        How many such system calls the victim made, about.
    left : list of str
        Processes and files that were there afterwards.
    printed : str
    """

    victim: str
    k: int
    calls: str
    fault: str
    events: list[tuple[float, str]] = field(default_factory=list)
    died: float | None = None
    ended: float = 0.0
    status: int | None = None
    reached: bool = False
    made: int = 0
    left: list[str] = field(default_factory=list)
    printed: str = ""

    @property
    def hung(self) -> bool:
        """Whether it had to be ended."""
        return self.status is None

    def said(self, start: str) -> float | None:
        """When the scenario first said something that begins so."""
        return next((at for at, text in self.events if text.startswith(start)), None)


class Trial:
    """What a scenario knows of the trial it is in."""

    def __init__(self, folder: Path, victim: str) -> None:
        self.folder = folder
        self.victim = victim

    def pause(self, name: str) -> None:
        """Halt here if the victim has this name, until it is watched."""
        if name != self.victim:
            return
        with (self.folder / "at").open("w") as at:
            at.write(f"{os.getpid()}\n")
        with (self.folder / "go").open() as go:
            go.read(1)

    def mark(self, group: Group) -> None:
        """Halt the master, or the worker "rank N", if that is the victim."""
        self.pause("master")
        if self.victim.startswith("rank "):
            group.run(_Halt(int(self.victim.split()[1]), str(self.folder), self.victim), "mark")

    def say(self, text: str) -> None:
        """Note what has happened, and when."""
        with (self.folder / "events").open("a") as file:
            file.write(json.dumps([time.monotonic(), text]) + "\n")


@dataclass(frozen=True)
class _Halt(Command):
    rank: int
    folder: str
    victim: str

    def run(self, member: Member) -> None:
        if member.rank == self.rank:
            Trial(Path(self.folder), self.victim).pause(self.victim)


class Stage:
    """A process that has a scenario ready; a context manager.

    Parameters
    ----------
    scenario : path
        A file with a function `scenario(trial)`.
    """

    def __init__(self, scenario: str | Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(scenario)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(LIMIT)
        self._process.stdout.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the stage has ended: can the scenario be imported?")
        return json.loads(line)

    def trial(self, victim: str = "", k: int = 0, calls: str = CALLS, fault: str = KILL) -> Outcome:
        """Run the scenario once, and kill the victim at its k-th system call.

        Parameters
        ----------
        victim : str
            A name that the scenario pauses for, "master", or "rank N". Without one, and with k=0,
            nothing is killed.
        k : int
        calls : str
            The system calls that count, as strace takes them.
        fault : str
            What happens to it instead, as strace's `inject` takes it: "error=ENOSPC".

        Raises
        ------
        RuntimeError
            The scenario never came to where the victim halts, or strace could not take hold of it.
        """
        found = Outcome(victim, k, calls, fault)
        before = set(os.listdir("/dev/shm"))
        folder = Path(tempfile.mkdtemp(prefix="trial-"))
        try:
            self._run(found, folder)
            found.left += [f"/dev/shm/{n}" for n in set(os.listdir("/dev/shm")) - before]
            found.printed = _text(folder / "printed")
            found.events = [tuple(json.loads(x)) for x in _text(folder / "events").splitlines()]
        finally:
            shutil.rmtree(folder)
        return found

    def _run(self, found: Outcome, folder: Path) -> None:
        os.mkfifo(folder / "at")
        os.mkfifo(folder / "go")
        at = os.open(folder / "at", os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps([str(folder), found.victim]) + "\n")
            self._process.stdin.flush()
            session = self._answer()
            if found.victim:
                try:
                    self._kill(found, folder, at)
                except RuntimeError:
                    _end_session(session)
                    self._answer()
                    raise
            self._await(found, session)
        finally:
            os.close(at)

    def _kill(self, found: Outcome, folder: Path, at: int) -> None:
        if not select.select([at], [], [], LIMIT)[0]:
            raise RuntimeError(f"the scenario never came to where {found.victim!r} halts")
        pid = int(os.read(at, 20))
        victim = os.pidfd_open(pid)
        try:
            log = folder / "strace"
            tracer = _attach(pid, found, log) if found.k else None
            with (folder / "go").open("w") as go:
                go.write("1")
            self._watch(found, victim)
            if tracer is not None:
                tracer.wait(LIMIT)
                text = _text(log)
                found.reached = "+++ killed by SIGKILL" in text or "(INJECTED)" in text
                found.made = text.count("\n")
        finally:
            os.close(victim)

    def _watch(self, found: Outcome, victim: int) -> None:
        """Wait until the victim ends, or the whole scenario."""
        poll = select.poll()
        poll.register(victim, select.POLLIN)
        if poll.poll(1000 * LIMIT):
            found.died = time.monotonic()

    def _await(self, found: Outcome, session: int) -> None:
        """The end of the scenario's process, and of all in its session."""
        assert self._process.stdout is not None
        if select.select([self._process.stdout], [], [], LIMIT)[0]:
            found.ended, found.status = self._answer()
            until = time.monotonic() + _GONE
            while (left := _session(session)) and time.monotonic() < until:
                time.sleep(0.002)
            found.left = [f"process {pid}: {_text(Path(f'/proc/{pid}/cmdline'))}" for pid in left]
            _end_session(session)
        else:
            _end_session(session)
            self._answer()


def _attach(pid: int, wanted: Outcome, log: Path) -> subprocess.Popen[bytes]:
    """Strace on a process that halts, which kills it at its k-th system call."""
    inject = f"inject={wanted.calls}:{wanted.fault}:when={wanted.k}"
    what = ["-e", f"trace={wanted.calls}", "-e", inject]
    with log.with_suffix(".err").open("w+") as errors:
        tracer = subprocess.Popen(
            ["strace", "-q", "-o", str(log), *what, "-p", str(pid)],
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        until = time.monotonic() + _ATTACH
        while "TracerPid:\t0\n" in _text(Path(f"/proc/{pid}/status")):
            if tracer.poll() is not None or time.monotonic() > until:
                errors.seek(0)
                raise RuntimeError(f"strace cannot trace: {errors.read()}")
            time.sleep(0.001)
    return tracer


def _session(number: int) -> list[int]:
    """The processes of a session that run (zombies do not)."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _text(Path(f"/proc/{name}/stat")).rpartition(")")[2].split()
            if fields and int(fields[3]) == number and fields[0] not in "ZX":
                found.append(int(name))
    return found


def _end_session(number: int) -> None:
    for pid in _session(number):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def sweep(
    stage: Stage, victim: str, first: int = 1, step: int = 1, last: int | None = None
) -> Iterator[Outcome]:
    """Trials for k = first, first + step, ... until the victim comes to its end by itself."""
    k = first
    while last is None or k <= last:
        found = stage.trial(victim, k)
        yield found
        if not found.reached and not found.hung:
            return
        k += step


def serve(path: str) -> None:
    """The life of a stage: import a scenario, then fork a process for each line of stdin."""
    spec = importlib.util.spec_from_file_location("scenario", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scenario"] = module
    spec.loader.exec_module(module)
    _answer(0)
    for line in sys.stdin:
        folder, victim = json.loads(line)
        pid = os.fork()
        if not pid:
            _perform(module.scenario, Trial(Path(folder), victim))
        _answer(pid)
        _, status = os.waitpid(pid, 0)
        _answer([time.monotonic(), status])


def _answer(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _perform(scenario: Callable[[Trial], None], trial: Trial) -> None:
    code = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        printed = os.open(trial.folder / "printed", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(null, 0)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        scenario(trial)
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
