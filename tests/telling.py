"""Commands of tests which workers started by exec must be able to import."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from synkhronos import _devices
from synkhronos._commands import Command


@dataclass(frozen=True)
class Told(Command):
    """By rank, what each member's environment says of devices."""

    def run(self, member: Any) -> dict[str, str]:
        """This member's."""
        names = ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "JAX_CUDA_VISIBLE_DEVICES")
        return {n: v for n in (*names, _devices._FRACTIONS[1]) if (v := os.environ.get(n))}

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
