"""A pytest plug-in for programs that start groups.

In the top `conftest.py`::

    pytest_plugins = ["synkhronos.testing.plugin"]

and in each test module to be checked::

    pytestmark = pytest.mark.usefixtures("nothing_is_left")
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from synkhronos.testing import leaks


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    """Fail the test if it leaves a process, thread, descriptor or file in /dev/shm behind.

    The fixture waits up to ten seconds for those that are about to end. A group that the test has
    left open counts. A group that was open before the test, made by a fixture of a wider scope,
    does not.

    Cost: a few milliseconds for each test.
    """
    before = leaks.snapshot()
    yield
    leaks.check(before)
