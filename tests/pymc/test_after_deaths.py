"""What follows sampling, in a group: a worker that fails is told at once; each has one thread."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import synkhronos as synk
from synkhronos._errors import WorkerError
from synkhronos._host.thread_pools import thread_pools
from synkhronos.pymc._after.division import By, ComputeShare, divided
from synkhronos.pymc._after.work import InMemory, Target, Work

_LIMIT_SECONDS = 60.0  # of a hang


@dataclass
class Endless(Work):
    """The first worker fails at its first part; the others' shares take until they are stopped."""

    dies: bool
    master: int = field(default_factory=os.getpid)

    @property
    def total(self) -> int:
        return len(self.parts)

    @property
    def parts(self) -> Sequence[range]:
        return [range(i, i + 1) for i in range(3)]

    @property
    def in_processes(self) -> bool:
        return True

    def computed(self, part: range) -> list[np.ndarray]:
        raise NotImplementedError

    def compute(self, mine: Sequence[range], target: Target) -> Iterator[int]:
        if os.getpid() != self.master and mine[0].start == 1:
            if self.dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ZeroDivisionError("here")
        until = time.monotonic() + _LIMIT_SECONDS
        while time.monotonic() < until:
            yield 0
            time.sleep(0.001)
        raise TimeoutError("nobody has stopped this")


@pytest.mark.parametrize("dies", [True, False])
def test_a_failure_is_told_before_the_masters_share_is_done(dies: bool) -> None:
    """Promise 2; and the error of one worker ends the others."""
    error = synk.WorkerDied if dies else WorkerError
    with (
        pytest.raises(error, match="SIGKILL" if dies else "here"),
        divided(Endless(dies), 1000.0, "endless", By(3, False)) as division,
    ):
        division.run(InMemory([division.empty((3,), np.float64)]))


class Threads(Work):
    """Each part is the largest number of threads that a library of its process may use."""

    total, parts, in_processes = 2, (range(0, 1), range(1, 2)), True  # type: ignore[assignment]

    def computed(self, part: range) -> list[np.ndarray]:
        raise NotImplementedError

    def compute(self, mine: Sequence[range], target: Target) -> Iterator[int]:
        assert isinstance(target, InMemory)
        for done, [place] in enumerate(mine, 1):
            target.arrays[0][place] = max(library.get_num_threads() for library in thread_pools())
            yield done


def test_a_member_with_several_cores_computes_with_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sums of several threads have other bits, and the number of cores of a member may differ."""
    found = np.zeros(2)
    member: Any = SimpleNamespace(
        rank=0, size=1, view=lambda ref: found, progress=lambda done: None, stopping=False
    )
    monkeypatch.setattr(ComputeShare, "forked_with", Threads())
    with threadpool_limits(2):
        ComputeShare(b"", (None,), None).run(member)  # type: ignore[arg-type]
        assert max(library.get_num_threads() for library in thread_pools()) == 2
    assert found.tolist() == [1, 1]
