"""How programs start that run cases on pools."""

from __future__ import annotations

import sys

import pytest
from launching import launcher

_PACKAGES = {
    "dask": "distributed",
    "dask-threads": "distributed",
    "ray": "ray",
    "mpi": "mpi4py",
}


def command(kind: str, workers: int, *program: str) -> list[str]:
    """What runs a program with a pool of this kind; the test is skipped without its library."""
    pytest.importorskip(_PACKAGES.get(kind, "synkhronos"), reason="synkhronos[cluster]")
    if kind != "mpi":
        return [sys.executable, *program]
    launched = [*launcher("mpich").command, "-n", str(workers + 1), sys.executable]
    return [*launched, "-m", "mpi4py.futures", *program]
