"""A pytest plug-in for programs that start groups.

In the top `conftest.py`::

    pytest_plugins = ["synkhronos.testing.plugin"]

and for the tests that shall be checked, all of a module for instance::

    pytestmark = pytest.mark.usefixtures("nothing_is_left")
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from synkhronos.testing import leaks


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """After the test: no process, thread, descriptor or file in /dev/shm more than before it.

    It waits up to two seconds for what is about to go. A group that the test has left open counts;
    one that has been open before, made by a fixture of a wider scope, does not.

    Cost: some milliseconds for each test.
    """
    before = leaks.snapshot()
    yield
    leaks.check(before)
