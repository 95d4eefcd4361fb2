"""Every communicator and channel passes the public conformance suites."""

from __future__ import annotations

import pytest

import synkhronos as synk
from synkhronos.testing import conformance

pytestmark = pytest.mark.usefixtures("lasting_groups")


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", conformance.DTYPES)
def test_communicator(group: synk.Group, dtype: str) -> None:
    conformance.check_communicator(group, [dtype])


def test_channel(group: synk.Group) -> None:
    conformance.check_channel(group)
