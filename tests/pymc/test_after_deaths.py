"""What follows sampling: a worker that fails is told while the master still has work of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

import synkhronos as synk
from synkhronos._errors import WorkerError
from synkhronos.pymc._after.division import divided
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
        divided(Endless(dies), 1000.0, "endless", 3, False) as division,
    ):
        division.run(InMemory([division.empty((3,), np.float64)]))
