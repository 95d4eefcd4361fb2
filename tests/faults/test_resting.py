"""A group that has nothing to do takes nothing; one of many members goes on (promise 19)."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from resting import CROWD, Barriers, barriers, idle_seconds, processor_seconds, used

import synkhronos as synk

pytestmark = pytest.mark.alone


def test_an_idle_group_takes_no_processor_time() -> None:
    assert sum(idle_seconds(3, 3.0)) < 0.02


@pytest.mark.thorough  # how they are kept: test_lasting_thread.py
def test_nor_does_one_that_a_thread_has_started() -> None:
    """Its workers are kept by a thread of their own, which rests."""
    taken: list[float] = []
    thread = threading.Thread(target=lambda: taken.extend(idle_seconds(2, 1.0)))
    thread.start()
    thread.join()
    assert len(taken) == 2
    assert sum(taken) < 0.02


def test_nor_do_those_that_have_survived_another() -> None:
    """The master is elsewhere, and the others know of the death."""
    with synk.Group(3) as group:
        used(group)
        os.kill(group.channel.pid(1), signal.SIGKILL)
        time.sleep(0.2)
        before = processor_seconds(group)
        time.sleep(1)
        assert processor_seconds(group)[2] - before[2] < 0.01


def test_barriers_where_members_outnumber_cores() -> None:
    """Nobody spins away the time that others need."""
    members, times = 1 + CROWD * len(os.sched_getaffinity(0)), 300
    assert len(barriers(members, times)) == times
    with synk.Group(members) as group:
        group.run(Barriers(10))
        before = sum(processor_seconds(group))
        group.run(Barriers(times))
        assert sum(processor_seconds(group)) - before < 2e-3 * times
