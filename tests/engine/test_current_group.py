"""The group of module functions: each thread has its own, and shares that of `fork`."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST

import synkhronos as synk
from synkhronos._engine.group import current_or_temporary

HANG = 300.0  # seconds, on a busy machine


def in_a_thread(act: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result(HANG)


def test_threads_with_groups_of_their_own() -> None:
    """They compile, call and meet at the same time: the results are those of one thread."""
    together = threading.Barrier(2)

    def work(start: float, wait: bool = True) -> list[float]:
        x, s = pt.dvector("x"), pytensor.shared(start, name="s")
        with synk.Group(2) as group:
            if wait:
                together.wait(HANG)
            assert synk.current_group() is group
            rows, found = synk.data(np.arange(5.0)), []
            for k in range(3):
                f = synk.function([x], (x * s + k).sum(), updates=[(s, s + 1)], mode=FAST)
                found.append(float(f(rows)))
            synk.all_reduce(s, "sum")
            assert rows.group is group
        assert synk.current_group() is not group
        return [*found, float(s.get_value())]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, [1.0, 5.0], timeout=HANG))
    assert found == [work(1.0, wait=False), work(5.0, wait=False)]


def test_a_forked_group_is_that_of_all_threads() -> None:
    synk.fork(1)
    forked = synk.current_group()
    assert in_a_thread(synk.current_group) is forked

    def inside() -> Any:
        with synk.Group(1) as own:
            assert synk.current_group() is own
            entered.set()
            assert left.wait(HANG)
        return synk.current_group()

    entered, left = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(inside)
        assert entered.wait(HANG)
        assert synk.current_group() is forked
        assert in_a_thread(synk.current_group) is forked
        left.set()
        assert there.result(HANG) is forked
    synk.close()
    assert synk.current_group() is None


def test_an_entered_group_is_that_of_threads_without_another() -> None:
    """As before a thread that the user starts inside of `with` finds the group."""
    with synk.Group(1) as outer:
        assert in_a_thread(synk.current_group) is outer
        with synk.Group(1) as inner:
            assert in_a_thread(synk.current_group) is inner
        assert synk.current_group() is in_a_thread(synk.current_group) is outer
    assert in_a_thread(synk.current_group) is None


def test_an_active_group_is_that_of_one_thread() -> None:
    a, b = synk.Group(1), synk.Group(1)
    with a.active():
        assert synk.current_group() is a
        assert in_a_thread(synk.current_group) is None
        with b.active():
            assert synk.current_group() is b
        copied = contextvars.copy_context()
    assert synk.current_group() is None
    assert in_a_thread(lambda: copied.run(synk.current_group)) is a  # as asyncio.to_thread does
    a.close()
    b.close()


def test_fork_after_the_end_of_an_entered_group() -> None:
    with synk.Group(1) as group:
        group.close()
        with pytest.raises(synk.NotForked):
            synk.data([1.0])
        synk.fork(1)
        assert synk.current_group() is not group
        assert synk.data([1.0]).group is synk.current_group()
        synk.close()
    assert synk.current_group() is None


def test_temporary_groups_take_turns() -> None:
    """The second thread waits, and no other thread sees a temporary group."""
    inside, most = [0], [0]
    tell = threading.Lock()

    def work(number: int) -> bool:
        with current_or_temporary("a test", 1) as group:
            with tell:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            assert synk.current_group() is group
            seen = in_a_thread(synk.current_group)
            with current_or_temporary("a test", 1) as again:  # within itself
                assert again is group
            with tell:
                inside[0] -= 1
        return seen is None and not group.alive and synk.current_group() is None

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(work, range(4), timeout=HANG))
    assert most == [1]
    with synk.Group(1) as mine, current_or_temporary("a test", None) as group:
        assert group is mine
        with (
            pytest.raises(synk.InputError, match="a test: members=2, and the current group has 1"),
            current_or_temporary("a test", 2),
        ):
            pass
