"""A worker compiles the divided likelihood while the master compiles the model's gradient."""

from __future__ import annotations

import logging
import mmap
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytest
from comparing import check_equal, evaluated, plainly, points
from modes import FAST

import synkhronos as synk
from synkhronos.pymc._group import likelihood
from synkhronos.pymc._group import parallel as _parallel

LIMIT = 60  # seconds; a test that waits so long fails


def model_of(shift: float = 0.0) -> pm.Model:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("b") + shift, 1, observed=np.linspace(-1, 1, 21))
    return model


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> mmap.mmap:
    """Bytes that all members share, in a mode whose functions compile at once."""
    monkeypatch.setattr(likelihood, "fills_cache_of_numba", lambda mode: True)
    return mmap.mmap(-1, 2)


def in_worker(monkeypatch: pytest.MonkeyPatch, what: Callable[[], None]) -> None:
    """Let a worker do something before it compiles."""
    compile_alone, master = likelihood.compile_alone, os.getpid()

    def patched(call: Any, member: Any, wholly: bool) -> None:
        if os.getpid() != master:
            what()
        compile_alone(call, member, wholly)

    monkeypatch.setattr(likelihood, "compile_alone", patched)


def until_set(flags: mmap.mmap) -> None:
    limit = time.monotonic() + LIMIT
    while not flags[0]:
        assert time.monotonic() < limit
        time.sleep(0.005)
    flags[1] = 1


def test_both_compile_at_the_same_time(monkeypatch: pytest.MonkeyPatch, flags: mmap.mmap) -> None:
    """The worker waits for the master's compiling, so this ends only if neither waits first."""

    def work(parallel: Any) -> None:
        flags[0] = 1

    in_worker(monkeypatch, lambda: until_set(flags))
    monkeypatch.setattr(_parallel.Parallel, "_compile_gradient", work)
    model = model_of()
    at = points(model, 2)
    plain = plainly(model, at)
    with synk.Group(2, start="fork"), synk.pymc.parallel(model, mode=FAST):
        assert flags[1] == 1
        check_equal(plain, evaluated(model, at))


def test_an_error_there_is_that_of_the_first_evaluation(
    monkeypatch: pytest.MonkeyPatch, flags: mmap.mmap
) -> None:
    """Here that has none, so the model is divided."""

    def fail() -> None:
        flags[1] = 1
        raise OSError("no space left in the cache")

    in_worker(monkeypatch, fail)
    model = model_of()
    with synk.Group(2, start="fork"), synk.pymc.parallel(model, mode=FAST) as divided:
        assert flags[1] == 1
        assert divided.names == ["y"]


def test_an_interrupt_of_the_masters_compiling(
    monkeypatch: pytest.MonkeyPatch, flags: mmap.mmap
) -> None:
    """The worker's is waited for, and the group goes on."""

    def work(parallel: Any) -> None:
        flags[0] = 1
        raise KeyboardInterrupt

    in_worker(monkeypatch, lambda: until_set(flags))
    monkeypatch.setattr(_parallel.Parallel, "_compile_gradient", work)
    model = model_of()
    with synk.Group(2, start="fork") as group:
        with pytest.raises(KeyboardInterrupt):
            synk.pymc.parallel(model, mode=FAST)
        assert "logp" not in vars(model)
        monkeypatch.undo()
        with synk.pymc.parallel(model, mode=FAST):
            assert group.alive


def test_the_master_loads_what_the_worker_has_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the gradient that samplers ask for is in the cache, too, unless the worker was quick."""
    caplog.set_level(logging.DEBUG, "synkhronos")
    monkeypatch.setattr(likelihood.GroupLikelihood, "_is_soon_done", lambda *given: False)
    model = model_of(time.time())  # a graph that no cache has
    with (
        pytensor.config.change_flags(mode="NUMBA"),
        synk.Group(2, start="fork") as group,
        synk.pymc.parallel(model),
    ):
        [replica] = group.member.replicas.values()
        [variant] = replica._compiled.values()
        # the group is busy meanwhile, so the gradient must not ask it for a value
        assert "is not compiled ahead" not in caplog.text
        assert hits(variant.function) == (1, 0)
        gradient = model.logp_dlogp_function(ravel_inputs=True)
        gradient._pytensor_function(np.zeros(1))
        assert hits(gradient._pytensor_function) == (1, 0)


def hits(function: Any) -> tuple[int, int]:
    """How often machine code of a function was found in the cache, and how often not."""
    stats = function.vm.jit_fn.stats
    return sum(stats.cache_hits.values()), sum(stats.cache_misses.values())
