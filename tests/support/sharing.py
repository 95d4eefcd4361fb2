"""Several pytest processes that share one collection: each takes the next test that none has taken.

pytest-xdist does this too, but its processes have threads, and beside foreign threads no group is
forked: each would be started as fresh interpreters, for seconds.

    pytest --taken FILE

All processes are given the same file, which is empty at first, and collect the same tests in the
same order. The cases of one test function stay together, and so do the tests of a module with the
marker `together`, whose fixture is dear. Tests that run JAX come last in the collection, so that no
process forks a group after it.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--taken", type=Path, help="the file in which processes note what they take")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """As pytest's own loop, over the tests that this process takes."""
    taken = session.config.getoption("taken")
    if taken is None or session.testsfailed or session.config.option.collectonly:
        return None
    mine = shared(session.items, taken)
    item = next(mine, None)
    while item is not None:
        following = next(mine, None)  # fixtures that it needs as well are kept
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def shared(items: list[pytest.Item], taken: Path) -> Iterator[pytest.Item]:
    """The tests that this process has taken."""
    units = [list(cases) for _, cases in itertools.groupby(items, key=_unit)]
    while (number := _take(taken)) < len(units):
        yield from units[number]


def _unit(item: pytest.Item) -> str:
    """What one process runs of the tests: the module, or the function with all of its cases."""
    return item.nodeid.partition("::" if item.get_closest_marker("together") else "[")[0]


def _take(taken: Path) -> int:
    """How many units have been taken before: the number of this one."""
    with taken.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        number = file.seek(0, os.SEEK_END)
        file.write(b".")
    return number
