"""Tests under an MPI launcher: the first process runs them, the others serve its groups."""

from __future__ import annotations

from synkhronos._backends import mpi as mpi_backend
from synkhronos._engine.nodes import expect
from synkhronos._engine.startup import serve


def serve_first() -> int:
    """Make every process of an MPI launch, except the first one, serve the first one's groups.

    Call it before the tests are collected, for example in the top `conftest.py`. In the first
    process it returns at once. In the others it does not return: they end when the first process
    has run the tests. A plain script does not need it, since its other processes stop in
    `synk.fork`.

    Returns
    -------
    int
        The number of processes in the launch; 1 without a launch.

    Notes
    -----
    Cost: none in the first process.

    >>> serve_first()
    1
    """
    launch = mpi_backend.launch()
    if launch is None:
        return 1
    if launch.rank:
        serve(launch)
    expect()
    return launch.size
