"""Promises about deaths and stalls in a program with more than 1,024 open files."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest
from modes import FAST

import synkhronos as synk
from synkhronos._host.polling import readable
from synkhronos.testing.faults import Fault

FILES = 1_100


@pytest.fixture(autouse=True)
def _files() -> Iterator[None]:
    """New descriptors have numbers from 1,100 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * FILES), hard))
    opened = []
    try:
        opened += [os.open("/dev/null", os.O_RDONLY) for _ in range(FILES)]
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_death() -> None:
    """Promise 2."""
    x = pt.dvector("x")
    with synk.Group(3) as group:
        f = synk.function([x], x.sum(), mode=FAST)
        assert f(np.ones(4)) == 4
        worker = group.channel.workers[0]
        assert worker.pidfd > 1_024
        os.kill(worker.pid, signal.SIGKILL)
        assert readable(worker.pidfd, seconds=60)
        with pytest.raises(synk.WorkerDied, match="SIGKILL"):
            f(np.ones(4))
        assert not group.alive


def test_a_stall() -> None:
    """Promise 5."""
    x = pt.dvector("x")
    with synk.Group(2) as group:
        f = synk.function([x], x.sum(), mode=FAST)
        f(np.ones(4))
        worker = group.channel.workers[0]
        os.kill(worker.pid, signal.SIGSTOP)
        try:
            with pytest.raises(synk.GroupTimeout, match="rank 1"):
                f(np.ones(4), timeout=0.2)
        finally:
            os.kill(worker.pid, signal.SIGCONT)
        assert f(np.ones(4)) == 4


def test_a_long_command(caplog: pytest.LogCaptureFixture) -> None:
    """A healthy one, during which the warning about stalls is due."""
    with synk.Group(2, stall_warning=0.1) as group:
        began = time.monotonic()
        group.run(Fault("nap", ranks=(1,)))
        assert time.monotonic() - began > 0.1
    assert "rank 1" in caplog.text


def test_a_search() -> None:
    """Its trials are processes."""
    search = pytest.importorskip("synkhronos.search")
    study = search.open_study("many files", seed=0)

    def objective(trial: Any) -> float:
        return float(trial.suggest_float("x", 0, 1))

    search.search(objective, study, trials=2, slots=1)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2


def test_no_descriptor_is_left(group2: synk.Group) -> None:
    """Promise 10: calls go on, and what needs a look at the free memory says what is missing."""
    x = pt.dvector("x")
    f = synk.function([x], x.sum(), mode=FAST)
    f(np.ones(5))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        assert f(np.ones(5)) == 5
        with pytest.raises(MemoryError, match=r"no descriptor is left .*ulimit -n"):
            synk.data(shape=(40_000_000,), dtype="float64")
        assert f(np.ones(7)) == 7
    finally:
        for descriptor in taken:
            os.close(descriptor)
    assert synk.data(np.ones(3)).data.sum() == 3
