"""Tests under an MPI launcher: the first process runs them, the others serve its groups."""

from __future__ import annotations

from synkhronos._backends import mpi as mpi_backend
from synkhronos._engine.nodes import expect
from synkhronos._engine.startup import serve


def serve_first() -> int:
    """In every process of an MPI launch but the first one: serve the first one's groups.

    To be called before the tests are collected, in the top `conftest.py` for instance: the other
    processes do not return from it, and end when the first one has run the tests. A plain script
    needs nothing of the kind, since it stops in `synk.fork`.

    Returns
    -------
    int
        In the first process, how many there are; 1 without a launch.

    Notes
    -----
    Cost: nothing in the first process.

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
