"""Ops that fail on request, and commands, for tests of functions; workers import them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.ops import wrap_py
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from synkhronos._engine.commands.base import Command
from synkhronos._engine.member import Member

Array = np.ndarray


class Fussy(Op):
    """The value itself, if no element of it is negative."""

    __props__ = ()

    def make_node(self, x: Any) -> Apply:
        x = pt.as_tensor_variable(x)
        return Apply(self, [x], [x.type()])

    def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
        if (inputs[0] < 0).any():
            raise ValueError("a negative number")
        output_storage[0][0] = inputs[0].copy()


@wrap_py(itypes=[pt.dmatrix], otypes=[pt.dmatrix])
def fussy(x: Array) -> Array:
    if (x < 0).any():
        raise ZeroDivisionError("a negative number")
    return x.copy()


@wrap_py(itypes=[pt.dmatrix], otypes=[pt.dvector])
def rank_shaped(x: Array) -> Array:
    """As many zeros as there are rows, and one more where the first row is negative."""
    return np.zeros(len(x) + int(x[0, 0] < 0))


class Replicas(Command):
    """Which functions a member has."""

    def run(self, member: Member) -> list[int]:
        return sorted(member.replicas)

    def answer(self, member: Member, own: Any, reports: dict[int, Any]) -> list[list[int]]:
        return [own if r == member.master else reports[r] for r in range(member.size)]


class Known(Command):
    """How many shared variables a member knows."""

    def run(self, member: Member) -> int:
        return len(list(member.variables))

    def answer(self, member: Member, own: Any, reports: dict[int, Any]) -> list[int]:
        return [own if r == member.master else reports[r] for r in range(member.size)]
