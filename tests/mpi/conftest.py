"""Jobs of several nodes on this machine, under each MPI that is installed."""

from __future__ import annotations

import pytest
from launching import KINDS, Launcher, launcher
from selection import thorough


# what Open MPI repeats of MPICH's tests is in scripts/test --all
@pytest.fixture(params=[KINDS[0], *thorough(*KINDS[1:])])
def mpi(request: pytest.FixtureRequest) -> Launcher:
    """A launcher; the test is skipped, with the reason, where it is not installed."""
    return launcher(request.param)
