"""Commands of tests which workers started by exec must be able to import."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

import synkhronos as synk
from synkhronos._backends import jax as jax_backend
from synkhronos._engine.commands.base import Command
from synkhronos._host import devices

NCCL = ("NCCL_SOCKET_IFNAME", "NCCL_RAS_ENABLE", "NCCL_MULTI_RANK_GPU_ENABLE")


@dataclass(frozen=True)
class Told(Command):
    """By rank, what each member's environment says of devices."""

    def run(self, member: Any) -> dict[str, str]:
        """This member's."""
        names = ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "JAX_CUDA_VISIBLE_DEVICES")
        every = (*names, devices._FRACTIONS[1], *NCCL)
        return {n: v for n in every if (v := os.environ.get(n))}

    def answer(self, member: Any, own: Any, reports: dict[int, Any]) -> list[dict[str, str]]:
        """All members'."""
        return [own if r == member.master else reports[r] for r in range(member.size)]


@dataclass(frozen=True)
class Fails(Command):
    """Raise in one member."""

    rank: int

    def run(self, member: Any) -> None:
        """Only there."""
        if member.rank == self.rank:
            raise ValueError("no luck")


@dataclass(frozen=True)
class FailsToMeet(Command):
    """The next time that a rank would meet others in a compiled function, something happens."""

    rank: int
    how: str

    def run(self, member: Any) -> None:
        """Once."""
        if member.rank != self.rank:
            return
        from synkhronos.nn import _moments

        real = _moments.mean_over_members

        def fails(*given: Any) -> Any:
            _moments.mean_over_members = real
            if self.how == "raises":
                raise ArithmeticError("no luck")
            os.kill(os.getpid(), getattr(signal, self.how))
            return real(*given)

        _moments.mean_over_members = fails


@dataclass(frozen=True)
class Listen(Command):
    """Begin to count what JAX compiles, or loads from its cache, in each member."""

    def run(self, member: Any) -> None:
        """JAX's own events; a member that listens already begins at 0 again."""
        from jax import monitoring

        listens = hasattr(member, "counted")
        member.counted = {"backend_compile_duration": 0, "cache_hits": 0, "cache_misses": 0}

        def count(name: str, *args: Any, **kwargs: Any) -> None:
            kind = name.rpartition("/")[2]
            if kind in member.counted:
                member.counted[kind] += 1

        if listens:
            return
        monitoring.register_event_listener(count)
        monitoring.register_event_duration_secs_listener(count)


@dataclass(frozen=True)
class Counts(Command):
    """By rank: (programs that were asked for, those loaded from the cache, those compiled)."""

    def run(self, member: Any) -> tuple[int, ...]:
        """Since the last time."""
        found = tuple(member.counted.values())
        member.counted.update(dict.fromkeys(member.counted, 0))
        return found

    def answer(self, member: Any, own: Any, reports: dict[int, Any]) -> list[tuple[int, ...]]:
        """All members'."""
        return [own if r == member.master else reports[r] for r in range(member.size)]


@dataclass(frozen=True)
class Copied(Command):
    """By rank, whether JAX would copy the value of a variable."""

    number: int

    def run(self, member: Any) -> bool:
        """This member's."""
        return jax_backend.is_copied(member.variables[self.number].storage[0])

    def answer(self, member: Any, own: Any, reports: dict[int, Any]) -> list[bool]:
        """All members'."""
        return [own if r == member.master else reports[r] for r in range(member.size)]


@dataclass(frozen=True)
class AskPlace(Command):
    """Each member's own rank, size and part."""

    def run(self, member: Any) -> tuple[int, int, list[int]]:
        return synk.rank(), synk.size(), synk.part_lengths(5)

    def answer(self, member: Any, own: Any, reports: dict[int, Any]) -> Any:
        return [own, *reports.values()]
