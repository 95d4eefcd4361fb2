"""Jobs of several nodes on this machine, under each MPI that is installed."""

from __future__ import annotations

import pytest
from launching import KINDS, Launcher, launcher


@pytest.fixture(params=KINDS)
def mpi(request: pytest.FixtureRequest) -> Launcher:
    """A launcher; the test is skipped, with the reason, where it is not installed."""
    return launcher(request.param)
