"""Promise 21: a fault on any node is an exception with its node, or the end of the job."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import forking_ops
import pytest
from launching import Job, Launcher, job, run
from selection import thorough

OVER = 10.0  # seconds from the fault to the end of the job

# a group of two nodes with two members each: ranks 0 and 1, ranks 2 and 3
GROUP = """
import os, signal, sys, time
from dataclasses import dataclass
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk
from synkhronos._engine.commands.base import Command
from synkhronos._engine.group import current
from synkhronos._proofs.reductions import Reduction
from synkhronos.testing.faults import Fault

pytensor.config.mode = "FAST_COMPILE"

@dataclass(frozen=True)
class Meet(Command):
    '''Meetings of all members, in one of which one of them raises.'''

    meetings: int
    raises: int = -1
    at: int = 0
    pure = True

    def run(self, member):
        arrays = [np.ones(50_000)]
        for meeting in range(self.meetings):
            if meeting == self.at and member.rank == self.raises:
                raise LookupError(f"by member {member.rank}")
            if meeting % 2:
                member.communicator.all_reduce(arrays, Reduction.MAX)
            else:
                member.communicator.broadcast(arrays, meeting % member.size)

@dataclass(frozen=True)
class Transfer(Command):
    '''All have agreed to come to a transfer, in which node 1 stands still.'''

    pure = True

    def run(self, member):
        between = member.communicator._between
        if between is None:
            return
        if between.node == 1:
            between._transfers.all_reduce = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
        try:
            between.all_reduce([np.ones(1 << 20)], Reduction.MAX)
        finally:
            if between._leaders.transfer_failed:
                print("left in a transfer", flush=True)

x = pt.matrix("x", dtype="float64")
synk.fork(2, timeout=float(sys.argv[1]) if len(sys.argv) > 1 else None)
group = current()
f = synk.function([x], x.sum())
"""

SERVE = (
    GROUP
    + """
assert f(np.ones((8, 2)), timeout=60) == 16  # this one compiles
print("pids", *[group.channel.pid(rank) for rank in range(group.size)])
print("ready")
if sys.argv[2] == "idle":
    time.sleep(2.0)
    while True:
        f(np.ones((8, 2)))
        time.sleep(0.1)
group.run(Transfer() if sys.argv[2] == "transfer" else Meet(1 << 22), "the meetings")
"""
)


def pids_of(made: Job) -> list[int]:
    """Of the members, by rank."""
    made.await_line("ready")
    line = next(line for line in made.text.splitlines() if line.startswith("pids"))
    return [int(word) for word in line.split()[1:]]


def check_over(made: Job, since: float) -> None:
    """The job has ended badly and in time, and nothing is left."""
    code = made.wait(since + OVER - time.monotonic())
    assert code != 0, made.text
    made.check_gone(max(1.0, since + OVER - time.monotonic()))


def test_exceptions_arrive_with_their_node(mpi: Launcher, tmp_path: Path) -> None:
    """Whoever raises, before, between or after meetings: the next call is right."""
    text = (
        GROUP
        + """
assert f(np.ones((8, 2))) == 16
w = pytensor.shared(np.zeros(3), name="w")
for at in (0, 1, 2, 3):
    for rank in range(group.size):
        try:
            group.run(Meet(4, rank, at), "the meetings")
        except LookupError as exc:
            said = "".join([str(exc), str(exc.__cause__), *getattr(exc, "__notes__", ())])
            assert f"by member {rank}" in said, said
            assert f"rank {rank}" in said, said
            if rank:
                assert f"node {rank // 2} (" in said, said
                assert "in run" in said and "raise LookupError" in said, said
            print("raised", flush=True)
        assert f(np.full((9, 3), 2.0)) == 54
        synk.all_reduce(w, "sum")
"""
    )
    assert run(mpi, 2, tmp_path, text).count("raised") == 16


@pytest.mark.parametrize("state", [*thorough("idle"), "meeting"])
@pytest.mark.parametrize("victim", ["member of node 1", *thorough("member of node 0")])
def test_a_killed_member_is_named(mpi: Launcher, tmp_path: Path, victim: str, state: str) -> None:
    """The master raises WorkerDied, and the job ends as its script does."""
    with job(mpi, 2, tmp_path, SERVE, "60", state) as made:
        rank = {"member of node 1": 3, "member of node 0": 1}[victim]
        os.kill(pids_of(made)[rank], signal.SIGKILL)
        check_over(made, time.monotonic())
        assert "WorkerDied" in made.text
        assert f"rank {rank} (pid" in made.text
        assert "SIGKILL" in made.text
        if rank == 3:
            assert "node 1 (" in made.text


@pytest.mark.each_choice
@pytest.mark.parametrize("state", ["idle", "meeting"])
@pytest.mark.parametrize("victim", ["master", "leader of node 1", *thorough("launcher")])
def test_a_killed_process_of_the_launch_ends_the_job(
    mpi: Launcher, tmp_path: Path, victim: str, state: str
) -> None:
    """The launcher ends the others, their workers end with them; nothing is left."""
    with job(mpi, 2, tmp_path, SERVE, "60", state) as made:
        pids = pids_of(made)
        killed = {"master": pids[0], "leader of node 1": pids[2], "launcher": made.popen.pid}
        os.kill(killed[victim], signal.SIGKILL)
        check_over(made, time.monotonic())


@pytest.mark.parametrize("state", [*thorough("meeting"), "transfer"])
def test_a_stopped_node_is_named_and_the_job_ends(
    mpi: Launcher, tmp_path: Path, state: str
) -> None:
    """With a limit of 2 s the master says who is awaited; leaving MPI does not wait for them."""
    with job(mpi, 2, tmp_path, SERVE, "2", state) as made:
        pids = pids_of(made)
        if state == "meeting":
            os.kill(pids[2], signal.SIGSTOP)
        check_over(made, time.monotonic())
        assert "GroupTimeout" in made.text
        assert "rank 2 (pid" in made.text
        assert "node 1 (" in made.text
        assert state != "transfer" or "left in a transfer" in made.text


def test_the_limit_is_for_the_time_of_commands(mpi: Launcher, tmp_path: Path) -> None:
    """A pause of the master is longer than it: nobody minds.

    Nor does the time count that another node compiles, be it its leader or its other member; but a
    member that only sleeps is late.
    """
    text = (
        GROUP
        + """
assert f(np.ones((8, 2)), timeout=60) == 16
time.sleep(1.5)
assert f(np.ones((8, 2))) == 16
print("after a pause")
for kind, rank in ("compile", 2), ("compile", 3), ("nap", 3):  # each for a second
    try:
        group.run(Fault(kind, (rank,)), "a test")
    except synk.GroupTimeout as exc:
        print(kind, rank, "GroupTimeout", exc.ranks)
    else:
        print(kind, rank, "done")
"""
    )
    said = run(mpi, 2, tmp_path, text, "0.8")
    assert "after a pause" in said
    assert "compile 2 done" in said
    assert "compile 3 done" in said
    assert "nap 3 GroupTimeout (2, 3)" in said


@pytest.mark.parametrize("state", ["meeting", *thorough("idle")])
def test_control_c_at_the_launcher(mpi: Launcher, tmp_path: Path, state: str) -> None:
    """As the terminal sends it, to the launcher and all that share its process group."""
    with job(mpi, 2, tmp_path, SERVE, "60", state) as made:
        pids_of(made)
        os.killpg(made.popen.pid, signal.SIGINT)
        check_over(made, time.monotonic())


@pytest.mark.thorough  # on one node: tests/faults/test_forks.py
def test_forks_of_leaders_and_workers_are_no_members(mpi: Launcher, tmp_path: Path) -> None:
    """An operation forks in all members but the master; its children return, and exchange."""
    folder = tmp_path / "children"
    folder.mkdir()
    text = (
        GROUP
        + """
from forking_ops import Forks, ended
from synkhronos import ops
from pathlib import Path
doubled = Forks("return", "workers", sys.argv[2])(x)
g = synk.function([x], [(doubled.sum(), "sum"), (ops.all_reduce(doubled.sum()), "max")])
for _ in range(3):
    assert g(np.ones((8, 2))) == [32, 32]
print(ended(Path(sys.argv[2])))
"""
    )
    support = str(Path(forking_ops.__file__).parent)
    said = run(mpi, 2, tmp_path, text, "60", str(folder), PYTHONPATH=support)
    assert f"{[1 << 8] * 9}" in said
    assert said.count("its child (pid") == 9
