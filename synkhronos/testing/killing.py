"""Killing a process at each of its system calls: a crash test that leaves no gap.

A *scenario* is a Python file with a function ``scenario(trial)``: a program that starts a group
and uses it. A *stage* is a process that has imported the scenario once; for each trial it forks a
fresh process, in a session of its own, that runs it. Where the scenario says so, the *victim* (the
master, or a worker) halts, strace takes hold of it, and delivers SIGKILL as it enters a system call
that is named, say its third `write` from there; `points` names each that a run has made. Nothing in
the program is instrumented. It needs strace and the right to trace.

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
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synkhronos._engine.commands.base import Command
from synkhronos._engine.group import Group
from synkhronos._engine.member import Member
from synkhronos.testing import leaks

LIMIT = 20.0  # seconds for a trial; what takes longer hangs
_ATTACH = 5.0  # for strace to take hold
_GONE = 1.0  # for the last process to go after the first has
# Spinning is a system call, too, and thousands of them in a row are all the same place.
CALLS = "!sched_yield"
KILL = "signal=SIGKILL"
NEVER = 65535  # the largest k that strace takes
_CALL = re.compile(r"(\w+)\(")  # a line of strace's; others tell of signals and ends


@dataclass
class Outcome:
    """What became of one trial.

    Attributes
    ----------
    victim, calls, fault : str
    k : int
        Which of the calls it happened at, counted from the victim's halt; 0: nothing was done.
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
    made : list of str
        The system calls that the victim made, as strace writes them.
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
    made: list[str] = field(default_factory=list)
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
    """What a scenario knows of the trial it is in.

    Attributes
    ----------
    folder : Path
        The trial's own; it goes with the trial.
    victim : str
    argument : str
        What the scenario is told.
    """

    def __init__(self, folder: Path, victim: str, argument: str = "") -> None:
        self.folder = folder
        self.victim = victim
        self.argument = argument

    def pause(self, name: str) -> None:
        """Halt here if the victim has this name, until it is watched."""
        if name != self.victim:
            return
        with (self.folder / "at").open("w") as at:
            at.write(f"{os.getpid()}\n")
        os.kill(os.getpid(), signal.SIGSTOP)  # no system call is under way then, unlike in a wait

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

    def trial(
        self,
        victim: str = "",
        k: int = 0,
        calls: str = CALLS,
        fault: str = KILL,
        argument: str = "",
    ) -> Outcome:
        """Run the scenario once, and kill the victim at its k-th call of a kind.

        Parameters
        ----------
        victim : str
            A name that the scenario pauses for, "master", or "rank N". Without one, and with k=0,
            nothing is killed.
        k : int
            `NEVER` does nothing but record.
        calls : str
            The system calls that count, as strace takes them. Each counts for itself: with
            "write,fsync" it happens at the k-th write, and at the k-th fsync.
        fault : str
            What happens to it instead, as strace's `inject` takes it: "error=ENOSPC".
        argument : str
            What the scenario finds as `trial.argument`.

        Raises
        ------
        RuntimeError
            The scenario never came to where the victim halts, or strace could not take hold of it.
        """
        found = Outcome(victim, k, calls, fault)
        before = leaks.named()
        folder = Path(tempfile.mkdtemp(prefix="trial-"))
        try:
            self._run(found, folder, argument)
            found.left += leaks.forsaken(leaks.named() - before)
            found.printed = _text(folder / "printed")
            found.events = [tuple(json.loads(x)) for x in _text(folder / "events").splitlines()]
        finally:
            shutil.rmtree(folder)
        return found

    def _run(self, found: Outcome, folder: Path, argument: str) -> None:
        os.mkfifo(folder / "at")
        at = os.open(folder / "at", os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert self._process.stdin is not None
            told = [str(folder), found.victim, argument]
            self._process.stdin.write(json.dumps(told) + "\n")
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
            _await_stop(pid)
            tracer = _attach(pid, found, log) if found.k else None
            signal.pidfd_send_signal(victim, signal.SIGCONT)
            self._watch(found, victim)
            if tracer is not None:
                tracer.wait(LIMIT)
                text = _text(log)
                found.reached = "+++ killed by SIGKILL" in text or "(INJECTED)" in text
                found.made = [x for x in text.splitlines() if _CALL.match(x)]
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


def _await_stop(pid: int) -> None:
    until = time.monotonic() + _ATTACH
    while _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2][1:2] != "T":
        if time.monotonic() > until:
            raise RuntimeError(f"process {pid} does not stop")
        time.sleep(0.0005)


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


def points(made: Sequence[str]) -> list[tuple[str, int]]:
    """For each call that a victim has made: its name, and which of that name it was.

    >>> points(["openat(...) = 3", "write(3, ...) = 5", "write(3, ...) = 5"])
    [('openat', 1), ('write', 1), ('write', 2)]
    """
    counts: Counter[str] = Counter()
    found = []
    for line in made:
        match = _CALL.match(line)
        assert match is not None, line
        counts[match[1]] += 1
        found.append((match[1], counts[match[1]]))
    return found


def sweep(
    stage: Stage, victim: str, calls: str = CALLS, argument: str = "", step: int = 1
) -> Iterator[Outcome]:
    """A trial for each, or each `step`-th, system call of a run in which nothing happens."""
    for name, k in points(stage.trial(victim, NEVER, calls, argument=argument).made)[::step]:
        yield stage.trial(victim, k, name, argument=argument)


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
        folder, victim, argument = json.loads(line)
        pid = os.fork()
        if not pid:
            _perform(module.scenario, Trial(Path(folder), victim, argument))
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
