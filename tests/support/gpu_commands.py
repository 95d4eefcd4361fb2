"""Commands of tests of exchanges between GPUs, which workers started by exec must import.

`nccl.bindings` is the stand-in of `tests/support/standin`.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._backends import jax as jax_backend
from synkhronos._engine.commands.base import Command
from synkhronos._proofs.reductions import Reduction
from synkhronos.extensions._apart.meeting import Meeting
from synkhronos.extensions._step.resident import Resident


@dataclass(frozen=True)
class Calls(Command):
    """By rank, what has been asked of nccl4py since the last time."""

    def run(self, member: Any) -> list[tuple[Any, ...]]:
        """Names, and arguments that are plain."""
        from nccl.bindings import nccl

        found = [(n, *[a for a in rest if isinstance(a, int)]) for n, *rest in nccl.calls]
        nccl.calls.clear()
        return found

    def answer(self, member: Any, own: Any, reports: dict[int, Any]) -> list[Any]:
        """All members'."""
        return [own if r == member.master else reports[r] for r in range(member.size)]


@dataclass(frozen=True)
class Exchange(Command):
    """One all_reduce of two arrays that lie on the GPU."""

    op: Reduction = Reduction.SUM
    weights: tuple[float, ...] | None = None

    def run(self, member: Any) -> Any:
        """Where they lay, where the results lie, and what these are."""
        from nccl.bindings import nccl

        arrays = [jax_backend.held(np.full(n, n * (member.rank + 1), np.float32)) for n in (3, 4)]
        places = [jax_backend.pointer(a) for a in arrays]
        ready = jax_backend.ready

        def noted(values: Any) -> None:
            ready(values)
            nccl.calls.append(("ready", *map(jax_backend.pointer, values)))

        jax_backend.ready = noted
        try:
            member.communicator.all_reduce(arrays, self.op, self.weights)
        finally:
            jax_backend.ready = ready
        return (
            places,
            [jax_backend.pointer(a) for a in arrays],
            [np.asarray(a).tolist() for a in arrays],
        )

    answer = Calls.answer


@dataclass(frozen=True)
class Dies(Exchange):
    """One member is killed when it has posted its part; the others' never ends."""

    rank: int = 1

    def run(self, member: Any) -> Any:
        """Killed in the first call after the posting."""
        from nccl.bindings import nccl

        if member.rank == self.rank:
            nccl.group_end = lambda: os.kill(os.getpid(), signal.SIGKILL)
        return super().run(member)


@dataclass(frozen=True)
class Breaks(Exchange):
    """NCCL reports an asynchronous error in one member, once its part is posted."""

    rank: int = 1

    def run(self, member: Any) -> Any:
        """What ncclCommGetAsyncError returns is ncclInternalError, once."""
        from nccl.bindings import nccl

        asked = nccl.comm_get_async_error
        broken = 3

        def answer(comm: Any) -> int:
            if nccl.calls[-1][0] != "group_end":
                return asked(comm)
            nccl.comm_get_async_error = asked
            return broken

        if member.rank == self.rank:
            nccl.comm_get_async_error = answer
        return super().run(member)


@dataclass(frozen=True)
class Stops(Exchange):
    """One member never posts its part."""

    def run(self, member: Any) -> Any:
        """It sleeps in the middle."""
        from nccl.bindings import nccl

        if member.rank == 1:
            begin = nccl.group_start
            nccl.group_start = lambda: (time.sleep(3600), begin())
        return super().run(member)


@dataclass(frozen=True)
class Unequal(Command):
    """Each member brings another shape; or one an array of numpy's."""

    mixed: bool

    def run(self, member: Any) -> list[float]:
        """The sums."""
        value = np.ones(2 if self.mixed else 2 + member.rank)
        arrays = [value if self.mixed and member.rank else jax_backend.held(value)]
        member.communicator.all_reduce(arrays, Reduction.SUM)
        return np.asarray(arrays[0]).tolist()

    answer = Calls.answer


@dataclass(frozen=True)
class Traffic(Command):
    """By rank: NCCL's all_reduces since the last time, and the bytes staged in the arena."""

    def run(self, member: Any) -> tuple[list[int], int]:
        """The numbers of elements."""
        from nccl.bindings import nccl

        counts = [c[3] for c in nccl.calls if c[0] == "all_reduce"]
        nccl.calls.clear()
        host = member.communicator.home
        staged = 0 if host._staging is None else host._staging.nbytes
        host._staging = None
        host._staged.clear()
        return counts, staged

    def answer(self, member: Any, own: Any, reports: dict[int, Any]) -> list[Any]:
        """All members'."""
        return [own if r == member.master else reports[r] for r in range(member.size)]


@dataclass(frozen=True)
class DiesInUpdate(Command):
    """From now on one member is killed when it is about to overwrite its values."""

    def run(self, member: Any) -> None:
        """In rank 1."""
        if member.rank == 1:
            Resident.apply = lambda *args: os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class CannotPost(Exchange):
    """One member fails after all have agreed to come, as without memory for the result."""

    rank: int = 1

    def run(self, member: Any) -> Any:
        """Where it waits for JAX."""

        def fails(values: Any) -> None:
            jax_backend.ready = ready
            raise MemoryError("no memory for the result")

        ready = jax_backend.ready
        if member.rank != self.rank:
            return super().run(member)
        arrays = [jax_backend.held(np.full(n, 1.0, np.float32)) for n in (3, 4)]
        jax_backend.ready = fails
        member.communicator.all_reduce(arrays, self.op)
        return None


@dataclass(frozen=True)
class FailsOnce(Command):
    """In one member, something happens instead of a method's call: the next one, or a later one."""

    rank: int
    method: str  # of what trains apart
    how: str = "raises"
    calls: int = 1

    def run(self, member: Any) -> None:
        """Replace the method until then."""
        if member.rank != self.rank:
            return
        owner = {"flat": Resident, "apply": Resident, "treat": Meeting}[self.method]
        real, left = getattr(owner, self.method), [self.calls]

        def fails(*given: Any) -> Any:
            left[0] -= 1
            if left[0]:
                return real(*given)
            setattr(owner, self.method, real)
            if self.how == "raises":
                raise ArithmeticError("no luck")
            os.kill(os.getpid(), getattr(signal, self.how))

        setattr(owner, self.method, fails)
