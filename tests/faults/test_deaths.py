"""A worker that dies, of each cause and in each state, is an exception at once (promise 2)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import synkhronos as synk
from synkhronos._engine.commands.base import Command
from synkhronos._proofs.reductions import Reduction
from synkhronos._transport.processes.worker import Worker
from synkhronos._transport.shared_state import waiting
from synkhronos.testing.faults import KINDS, Fault

pytestmark = pytest.mark.alone

SIGNALS = ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGABRT", "SIGTERM")
STATES = ("idle", "python", "C call", "system call", "barrier", "collective", "allocation")
PROMPT = 1.0  # seconds from the death to the exception, in a campaign on an idle machine
HANG = 60.0
Trials = Callable[[Any, Any], Any]
VICTIM, OTHER = 2, 1


@dataclass(frozen=True)
class Stay(Command):
    """Bring the victim into a state, and keep it there."""

    state: str

    def run(self, member: Any) -> None:
        comm = member.communicator
        if self.state == "barrier" or member.rank != VICTIM:
            if member.rank == OTHER and self.state == "barrier":
                time.sleep(3600)
            comm.barrier()
        elif self.state == "python":
            KINDS["spin"](member)
        elif self.state == "C call":
            KINDS["C call"](member)
        elif self.state == "system call":
            time.sleep(3600)
        elif self.state == "collective":
            arrays = [comm.empty((100_000,), np.dtype(float))]
            while True:  # alone in it: the others are at another meeting, and never come
                comm.all_reduce(arrays, Reduction.SUM, members=(VICTIM,))
        elif self.state == "allocation":
            while True:
                comm.empty((100_000,), np.dtype(float))


@contextmanager
def killed(pid: int, number: int, after: float = 0.1) -> Iterator[list[float]]:
    """Send a signal to a process in a moment, from another thread; yields when that was."""
    at: list[float] = []

    def kill() -> None:
        at.append(time.monotonic())
        os.kill(pid, number)

    timer = threading.Timer(after, kill)
    timer.start()
    try:
        yield at
    finally:
        timer.join()


def check(group: synk.Group, state: str, number: int) -> float:
    """Seconds from the death to the exception; only the death ends the master's sleep."""
    pid = group.channel.pid(VICTIM)
    with pytest.MonkeyPatch.context() as patch, killed(pid, number) as at:
        patch.setattr(waiting, "NAP_MS", 2000 * int(HANG))
        if state == "idle":
            time.sleep(0.15)
        with pytest.raises(synk.WorkerDied) as caught:
            group.run(Stay(state if state != "idle" else "system call"), "a test")
        took = time.monotonic() - at[0]
    assert took < HANG
    assert caught.value.ranks == (VICTIM,)
    assert f"rank {VICTIM} (pid {pid}): killed by {signal.Signals(number).name}" in str(
        caught.value
    )
    assert not group.alive
    return took


@pytest.fixture(scope="module")
def delays() -> list[float]:
    """Of all deaths, in seconds."""
    return []


@pytest.mark.each_choice
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", SIGNALS)
def test_killed_by(name: str, state: str, delays: list[float], trials: Trials) -> None:
    for _ in range(trials(1, 30)):
        with synk.Group(3) as group:
            delays.append(check(group, state, getattr(signal, name)))


def test_how_soon(delays: list[float], trials: Trials) -> None:
    """What the tests before this one have found."""
    if not delays:
        pytest.skip("none has run")
    delays.sort()
    p99 = delays[int(0.99 * len(delays))]
    print(
        f"{len(delays)} deaths, seen after {1e3 * delays[len(delays) // 2]:.1f} ms (median), "
        f"{1e3 * p99:.1f} ms (p99), {1e3 * delays[-1]:.1f} ms (max)"
    )
    assert delays[-1] < trials(HANG, PROMPT)


def test_a_death_wakes_no_other_worker() -> None:
    """Where members outnumber cores, they would keep the cores from the master."""
    with synk.Group(4) as group:
        group.run(Fault("KeyError", ()))
        workers = group.channel.workers
        assert not any(pidfds_of(w.pid) for w in workers)  # they watch nobody
        with killed(workers[0].pid, signal.SIGKILL), pytest.raises(synk.WorkerDied):
            group.run(Fault("sleep", (1,)))
        assert all("SIGKILL" in w.ended for w in workers)  # none was given time to leave


def test_killed_workers_may_end_after_the_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes some milliseconds for each; what they had is freed by close()."""
    kill = Worker.kill
    with synk.Group(3) as group:
        one, other = group.channel.workers
        task = group.start(Fault("C call", (VICTIM,), meet=False))
        with monkeypatch.context() as patched:
            patched.setattr(Worker, "kill", lambda worker: None)  # as if the kernel were slow
            os.kill(one.pid, signal.SIGKILL)
            with pytest.raises(synk.WorkerDied, match="rank 1 "):
                task.wait()
        assert not other.ended
        kill(other)
        group.close()
        assert "SIGKILL" in other.ended
        assert not os.path.exists(f"/proc/{other.pid}")


def test_a_new_group_waits_for_the_end_of_killed_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    with synk.Group(3) as group:
        one, other = group.channel.workers
        task = group.start(Fault("C call", (VICTIM,), meet=False))
        with monkeypatch.context() as patched:
            patched.setattr(Worker, "kill", lambda worker: None)
            os.kill(one.pid, signal.SIGKILL)
            with pytest.raises(synk.WorkerDied):
                task.wait()
        signal.pidfd_send_signal(other.pidfd, signal.SIGKILL)
        with synk.Group(2):
            assert "SIGKILL" in other.ended


def pidfds_of(pid: int) -> list[str]:
    """The descriptors of processes that a process has."""
    folder = f"/proc/{pid}/fd"
    found = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
    return [link for link in found if "pidfd" in link]


@pytest.mark.thorough
@pytest.mark.parametrize("members", [16, 32, 64])
def test_one_of_many_dies(members: int) -> None:
    with synk.Group(members) as group:
        check(group, "barrier", signal.SIGKILL)


@pytest.mark.thorough  # forked ones: test_killed_by
@pytest.mark.parametrize("start", ["exec"])
def test_a_fresh_interpreter_dies(start: str) -> None:
    group = synk.Group(3, start=start)
    kill = killed(group.channel.pid(VICTIM), signal.SIGKILL)
    with group, kill, pytest.raises(synk.WorkerDied, match="SIGKILL"):
        group.run(Fault("sleep", (VICTIM,)), "a test")


def test_all_workers_die_at_once() -> None:
    with synk.Group(3) as group:
        for rank in (OTHER, VICTIM):
            os.kill(group.channel.pid(rank), signal.SIGKILL)
        with pytest.raises(synk.WorkerDied) as caught:
            group.run(Stay("barrier"))
        assert VICTIM in caught.value.ranks or OTHER in caught.value.ranks


def busy() -> None:
    while True:
        pass


def test_a_death_while_all_cores_are_busy() -> None:
    spinners = [
        multiprocessing.Process(target=busy, daemon=True) for _ in range(2 * os.cpu_count())
    ]
    with synk.Group(3) as group:
        for spinner in spinners:
            spinner.start()
        try:
            check(group, "system call", signal.SIGKILL)
        finally:
            for spinner in spinners:
                spinner.kill()
                spinner.join()
