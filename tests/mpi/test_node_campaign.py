"""Promise 21: whatever dies, stops or is cut off in a job of several nodes, every process ends or
goes on in time, and nothing is left. A sample of what scripts/chaos tries."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign import Point
from launching import Launcher
from node_campaign import (
    LIMIT,
    PATIENCE,
    PROGRAM,
    STALLED,
    cut,
    judge,
    raised,
    stopped,
    unharmed,
)
from node_program import STATES, Job
from selection import thorough

from synkhronos.testing.killing import Outcome, Stage

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage(PROGRAM, LIMIT, PATIENCE) as made:
        yield made


def tried(stage: Stage, point: Point) -> Outcome:
    return stage.trial(point.victim, point.k, point.calls, point.fault, point.argument)


@pytest.mark.parametrize(
    ("nodes", "members", "state", "victim"),
    [
        (2, 2, "free", "rank 3"),
        *thorough(
            *((2, 2, state, "rank 1") for state in ("call", "step", "round", "checkpoint", "end")),
            *((3, 1, state, "rank 2") for state in ("call", "round", "free")),
            *((2, 1, state, "master") for state in ("step", "checkpoint", "end")),
            (2, 2, "start", "start of a worker of node 1"),
        ),
    ],
)
def test_a_process_is_killed(
    mpi: Launcher, stage: Stage, nodes: int, members: int, state: str, victim: str
) -> None:
    """At one of the first system calls of the state."""
    job = Job(nodes, members, state, list(mpi.command), mpi.environment)
    found = stage.trial(victim, random.Random(state).randrange(1, 8), argument=str(job))
    assert found.reached
    assert not judge(found)
    spoilt = dataclasses.replace(found, events=[], ended=found.gone + 60, gone=found.gone + 60)
    assert judge(spoilt), "the judge is no rubber stamp"
    assert judge(dataclasses.replace(found, status=None))
    assert judge(dataclasses.replace(found, left=["process 1: x"]))


@pytest.mark.parametrize("state", ["step", *thorough("call", "round", "checkpoint", "end")])
def test_a_link_is_cut_and_healed(mpi: Launcher, stage: Stage, tmp_path: Path, state: str) -> None:
    """All packets are lost for 1.5 s: the job goes on, with the right values."""
    for point in cut(mpi, tmp_path):
        job = Job.of(point.argument)
        if (job.members, job.state, job.timeout) == (1, state, None):
            found = tried(stage, point)
            assert found.said("healed") is not None
            assert not judge(found)


@pytest.mark.thorough
def test_a_link_is_cut_for_long(mpi: Launcher, stage: Stage, tmp_path: Path) -> None:
    """The master names the node at the limit; the other host's processes end once it is healed."""
    for point in cut(mpi, tmp_path):
        job = Job.of(point.argument)
        if (job.members, job.state, job.timeout) == (2, "round", STALLED):
            assert not judge(tried(stage, point))


@pytest.mark.thorough
@pytest.mark.parametrize("state", sorted(STATES))
def test_a_member_stops_or_raises(mpi: Launcher, stage: Stage, state: str) -> None:
    """A worker of the other node, in a job of two nodes with two members each."""
    for point in (*stopped(mpi, random.Random(state)), *raised(mpi)):
        job = Job.of(point.argument)
        chosen = point.victim == "rank 3" or job.raises == 3
        if chosen and (job.nodes, job.members, job.state) == (2, 2, state):
            assert not judge(tried(stage, point))


def test_all_states_are_tried(mpi: Launcher) -> None:
    """Each process of a launch and each worker, in each state."""
    points = unharmed(mpi)
    assert {Job.of(point.argument).state for point in points} == set(STATES)
    assert len(points) > 60
