"""A crash test without gaps: kills a process at each of its system calls.

A *scenario* is a Python file with a function ``scenario(trial)`` that starts a group and uses it.
A *stage* is a process that has imported the scenario once. For each trial the stage forks a new
process, in a session of its own, that runs the scenario. The *victim* is the master or a worker.
It stops at a place that the scenario marks, and strace attaches to it. strace sends SIGKILL when
the victim enters the chosen system call, for example its third `write` after the mark. `points`
lists the system calls that a run made. The program under test is not instrumented. The test needs
strace and the right to trace.

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
from synkhronos._host.polling import readable
from synkhronos.testing import leaks

LIMIT = 20.0  # seconds for a trial; a longer trial counts as hung
_ATTACH = 5.0  # seconds for strace to attach
_HALTED = 60.0  # the group's limit for a command in which a member stops
GONE = 1.0  # seconds for the scenario's other processes to end after its first one
_MARK = "SYNK_TRIAL"  # in the environment of a trial's processes: the folder of the trial
_TEMPORARY = "temporary"  # in that folder: temporary files of the trial's processes
# A waiting member makes thousands of sched_yield calls in a row, which are all the same place.
CALLS = "!sched_yield"
KILL, STOP = "signal=SIGKILL", "signal=SIGSTOP"
NEVER = 65535  # the largest k that strace accepts
# how strace's log reports that a signal has come; other faults have "(INJECTED)"
_REPORTED = {KILL: "+++ killed by SIGKILL", STOP: "--- SIGSTOP {"}
_CALL = re.compile(r"(\w+)\(")  # a system call in strace's log; other lines report signals, exits


@dataclass
class Outcome:
    """The result of one trial. Times are seconds of time.monotonic.

    Attributes
    ----------
    victim, calls, fault : str
        As passed to `Stage.trial`.
    k : int
        The fault came at the k-th of the calls after the victim stopped; 0: there was no fault.
    events : list of (float, str)
        The times and texts of `Trial.say`.
    died : float or None
        When the victim ended.
    ended : float
        When the scenario's process ended.
    gone : float
        When all of its processes had ended.
    status : int or None
        Wait status of the scenario's process; None: it was still running at the limit.
    reached : bool
        Whether the fault happened; False: the victim made fewer than k such system calls.
    made : list of str
        The system calls that the victim made, as strace writes them.
    left : list of str
        Processes and files that were left afterwards.
    printed : str
        What the scenario's processes printed.
    argument : str
        As passed to `Stage.trial`.
    """

    victim: str
    k: int
    calls: str
    fault: str
    events: list[tuple[float, str]] = field(default_factory=list)
    died: float | None = None
    ended: float = 0.0
    gone: float = 0.0
    status: int | None = None
    reached: bool = False
    made: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    printed: str = ""
    argument: str = ""

    @property
    def hung(self) -> bool:
        """Whether the scenario was still running at the limit."""
        return self.status is None

    def said(self, start: str) -> float | None:
        """When the scenario first said a text with this start; None if never."""
        return next((at for at, text in self.events if text.startswith(start)), None)


class Trial:
    """The trial, as the scenario sees it.

    Attributes
    ----------
    folder : Path
        A folder for this trial; it is removed after the trial.
    victim : str
        The process to kill: "master", "rank N", or a name given to `pause`.
    argument : str
        As passed to `Stage.trial`.
    """

    def __init__(self, folder: Path, victim: str, argument: str = "") -> None:
        self.folder = folder
        self.victim = victim
        self.argument = argument

    def pause(self, name: str) -> None:
        """Stop here if the victim has this name, until strace is attached."""
        if name != self.victim:
            return
        with (self.folder / "at").open("w") as at:
            at.write(f"{os.getpid()}\n")
        # stopped by a signal, the process is not inside a system call, as it would be in a wait
        os.kill(os.getpid(), signal.SIGSTOP)

    def mark(self, group: Group) -> None:
        """Stop the master, or the worker "rank N", if it is the victim."""
        self.pause("master")
        if self.victim.startswith("rank "):
            halt = _Halt(int(self.victim.split()[1]), str(self.folder), self.victim)
            group.run(halt, "mark", timeout=_HALTED)

    def say(self, text: str) -> None:
        """Record an event and its time."""
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
    """A process that has imported a scenario and runs its trials; a context manager.

    Parameters
    ----------
    scenario : path
        A file with a function `scenario(trial)`.
    limit : float
        Seconds after which a process that has not ended hangs.
    gone : float
        Seconds after the end of the scenario's process, in which its other processes may end.
    """

    def __init__(self, scenario: str | Path, limit: float = LIMIT, gone: float = GONE) -> None:
        self._limit = limit
        self._gone = gone
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
        self._process.wait(self._limit)
        self._process.stdout.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the stage has ended: check that the scenario can be imported")
        return json.loads(line)

    def trial(
        self,
        victim: str = "",
        k: int = 0,
        calls: str = CALLS,
        fault: str = KILL,
        argument: str = "",
    ) -> Outcome:
        """Run the scenario once, and kill the victim at its k-th system call of the given kinds.

        Parameters
        ----------
        victim : str
            "master", "rank N", or a name that the scenario gives to `Trial.pause`. The empty name,
            or k=0, runs the scenario without a fault.
        k : int
            Which call to kill the victim at, from 1. `NEVER` only records the calls.
        calls : str
            The system calls that count, as strace's `trace` takes them. Each has its own count:
            with "write,fsync" the fault comes at the k-th write and at the k-th fsync.
        fault : str
            The fault, as strace's `inject` takes it; "error=ENOSPC" fails the call instead.
        argument : str
            The scenario's `trial.argument`.

        Raises
        ------
        RuntimeError
            The scenario did not reach the place where the victim stops, or strace could not attach.
        """
        found = Outcome(victim, k, calls, fault, argument=argument)
        before = leaks.named()
        folder = Path(tempfile.mkdtemp(prefix="trial-"))
        try:
            self._run(found, folder, argument)
            found.left += leaks.left_since(before)
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
            session, tracer = self._answer(), None
            try:
                if found.victim:
                    tracer = self._kill(found, folder, at)
                if not found.victim or found.died is not None:
                    self._await(found, session, folder)
            finally:
                if not found.ended:
                    _end(session, folder)
                    self._answer()
            if tracer is not None:
                tracer.wait(self._limit)
                text = _text(folder / "strace")
                found.reached = _REPORTED.get(found.fault, "(INJECTED)") in text
                found.made = [x for x in text.splitlines() if _CALL.match(x)]
        finally:
            os.close(at)

    def _kill(self, found: Outcome, folder: Path, at: int) -> subprocess.Popen[bytes] | None:
        if not readable(at, seconds=self._limit):
            raise RuntimeError(
                f"the scenario did not reach the place where {found.victim!r} stops; it said "
                f"{_text(folder / 'events')!r} and printed\n{_text(folder / 'printed')[-2000:]}"
            )
        pid = int(os.read(at, 20))
        victim = os.pidfd_open(pid)
        try:
            _await_stop(pid)
            tracer = _attach(pid, found, folder / "strace") if found.k else None
            signal.pidfd_send_signal(victim, signal.SIGCONT)
            self._watch(found, victim)
            return tracer
        finally:
            os.close(victim)

    def _watch(self, found: Outcome, victim: int) -> None:
        """Wait until the victim ends, and note when; until the limit if it does not end."""
        if readable(victim, seconds=self._limit):
            found.died = time.monotonic()

    def _await(self, found: Outcome, session: int, folder: Path) -> None:
        """Wait for the end of the scenario's process; list, then kill, what it left."""
        assert self._process.stdout is not None
        if readable(self._process.stdout.fileno(), seconds=self._limit):
            found.ended, found.status = self._answer()
            until = time.monotonic() + self._gone
            while (left := _processes(session, folder)) and time.monotonic() < until:
                time.sleep(0.002)
            found.gone = time.monotonic()
            found.left = [f"process {pid}: {_text(Path(f'/proc/{pid}/cmdline'))}" for pid in left]
            found.left += map(str, (folder / _TEMPORARY).rglob("*"))
            _end(session, folder)


def _await_stop(pid: int) -> None:
    until = time.monotonic() + _ATTACH
    while _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2][1:2] != "T":
        if time.monotonic() > until:
            raise RuntimeError(f"process {pid} does not stop")
        time.sleep(0.0005)


def _attach(pid: int, wanted: Outcome, log: Path) -> subprocess.Popen[bytes]:
    """Attach strace to a stopped process; it injects the fault at the k-th system call."""
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


def _processes(session: int, folder: Path | None = None) -> list[int]:
    """The running processes of a session and of the trial in a folder, zombies left out.

    Launchers of MPI give the processes that they start sessions of their own.
    """
    found: list[int] = []
    mark = f"{_MARK}={folder}\0"
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = Path("/proc", name)
            fields = _text(process / "stat").rpartition(")")[2].split()
            if not fields or fields[0] in "ZX":
                continue
            if int(fields[3]) == session or mark in _text(process / "environ"):
                found.append(int(name))
    return found


def _end(session: int, folder: Path) -> None:
    for pid in _processes(session, folder):
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
    """For each call that a victim made: its name, and its number among calls of that name.

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
    """Run one trial for each system call, or each `step`-th one, of a run without a fault."""
    for name, k in points(stage.trial(victim, NEVER, calls, argument=argument).made)[::step]:
        yield stage.trial(victim, k, name, argument=argument)


def serve(path: str) -> None:
    """Run a stage: import a scenario, then fork a process for each line of stdin."""
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


def _answer(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _perform(scenario: Callable[[Trial], None], trial: Trial) -> None:
    code = 1
    try:
        os.setsid()
        (trial.folder / _TEMPORARY).mkdir()
        os.environ |= {_MARK: str(trial.folder), "TMPDIR": str(trial.folder / _TEMPORARY)}
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
