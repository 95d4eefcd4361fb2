"""Long commands on several nodes: started, counted, stopped and waited for by the master."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import Launcher, run
from selection import thorough

TASKS = """
import sys, time
from dataclasses import dataclass
import numpy as np
import pytensor, pytensor.tensor as pt
import synkhronos as synk
from synkhronos._engine import nodes as _nodes
from synkhronos._engine.commands.base import Command
from synkhronos._engine.group import current

pytensor.config.mode = "FAST_COMPILE"
_nodes._COUNT_SECONDS = 0.0  # in all processes: counts go up as often as they are made
LIMIT = 30.0  # seconds

@dataclass(frozen=True)
class Long(Command):
    fails: int = -1

    def run(self, member):
        count, until = 0, time.monotonic() + LIMIT
        while not member.stopping:
            assert time.monotonic() < until, "never stopped"
            count += 1
            member.progress(count)
        if member.rank == self.fails:
            raise LookupError(f"by member {member.rank}")
        wire = member.on_node.above and member.on_node.above._leaders._transport
        return count, len(wire._sending) + len(wire._offered) if wire else 0

@dataclass(frozen=True)
class Meet(Command):
    members: tuple | None

    def run(self, member):
        member.communicator.barrier(self.members)

def check_call():
    assert f(np.ones((9, 2))) == 18

synk.fork(int(sys.argv[1]))
group = current()
others = list(range(1, group.size))
x = pt.matrix("x", dtype="float64")
f = synk.function([x], x.sum())
check_call()

task, until = group.start(Long()), time.monotonic() + LIMIT
while min(first := task.progress()) < 1000:
    assert time.monotonic() < until, first
time.sleep(0.1)
while min(task.progress()) <= max(first):
    assert time.monotonic() < until, (first, task.progress())
last = task.progress()
task.stop()
found = task.wait()
assert sorted(found) == others, found
assert all(found[rank][0] >= count for rank, count in zip(others, last, strict=True))
check_call()

task = group.start(Long())
time.sleep(0.2)  # and nobody asks how far it has come
task.stop()
assert all(waiting <= 1 for _, waiting in task.wait().values())
check_call()

for members in (None, tuple(others)):
    try:
        group.start(Meet(members)).wait()
    except synk.WorkerError as exc:
        assert "Group.start" in str(exc) and set(exc.ranks) <= set(others), exc
    else:
        raise AssertionError(f"members {members} have met")
    check_call()

for rank in others:
    task = group.start(Long(rank))
    task.stop()
    try:
        task.wait()
    except LookupError as exc:
        assert f"by member {rank}" in str(exc), exc
        print("raised")
    check_call()
print("good end")
"""


@pytest.mark.thorough  # of rules: test_nodes_rule.py
@pytest.mark.parametrize(
    ("ranks", "members"),
    [(2, 2), *thorough((2, 1), (3, 1))],
)
def test_long_commands(mpi: Launcher, tmp_path: Path, ranks: int, members: int) -> None:
    """Counts arrive while it runs, and do not pile up where the master looks away."""
    said = run(mpi, ranks, tmp_path, TASKS, str(members))
    assert said.count("raised") == ranks * members - 1
    assert "good end" in said
