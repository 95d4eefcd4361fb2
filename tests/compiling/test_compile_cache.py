"""One member compiles, the others load from the cache."""

from __future__ import annotations

import mmap
import os
import time
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest

import synkhronos as synk
from synkhronos._compiling.compile_cache import compiles_at_call
from synkhronos._engine import replicas
from synkhronos._engine.commands import call

LIMIT = 60  # seconds; a test that waits so long fails


@pytest.mark.parametrize(
    ("mode", "expected"), [("NUMBA", True), ("JAX", True), ("CVM", False), ("FAST_COMPILE", False)]
)
def test_modes_that_compile_at_the_first_call(mode: str, expected: bool) -> None:
    assert compiles_at_call(mode) is expected


def test_workers_rewrite_their_graphs_while_the_master_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They need not wait for what no cache has."""
    master, rewritten = os.getpid(), mmap.mmap(-1, 1)
    make, compile_ = replicas.compiled, call._compile_and_compute

    def noted(*args: Any, **options: Any) -> Any:
        found = make(*args, **options)
        if os.getpid() != master:
            rewritten[0] = 1
        return found

    def patient(*args: Any) -> Any:
        limit = time.monotonic() + LIMIT
        while os.getpid() == master and not rewritten[0]:
            assert time.monotonic() < limit
            time.sleep(0.005)
        return compile_(*args)

    monkeypatch.setattr(replicas, "compiled", noted)
    monkeypatch.setattr(call, "_compile_and_compute", patient)
    x = pt.vector("x", dtype="float64")
    with synk.Group(2, start="fork"):
        f = synk.function([x], x.sum(), mode="NUMBA")
        assert f(np.arange(5.0)) == 10
