"""An all_reduce inside a compiled function, compared with the communicator's own, over 2 members.

A function makes N collectives one after the other, as a command makes N calls of the communicator.
The time of one is the difference of the times for many and for one, divided by the difference in
number. So what a call costs by itself does not count.

    python benchmarks/ops.py [MODE ...]

MODE is numba, c, fast_compile or jax; all unless some are named.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
from common import answer_help, describe_machine, microseconds, show

import synkhronos as synk
from synkhronos._engine.commands.base import Command
from synkhronos._proofs.reductions import Reduction

MODES = {"numba": "NUMBA", "c": "CVM", "fast_compile": "FAST_COMPILE", "jax": "JAX"}
SIZES = {"8 B": 1, "80 KB": 10_000}  # of float64
MANY, CALLS, ROUNDS = 21, 200, 3


@dataclass(frozen=True)
class Plain(Command):
    """So many calls of the communicator, with an array that it knows."""

    n: int
    count: int

    def run(self, member: Any) -> None:
        values = KEPT.setdefault(self.n, np.ones(self.n))
        for _ in range(self.count):
            member.communicator.all_reduce([values], Reduction.SUM)
            values *= 0.5


KEPT: dict[int, np.ndarray] = {}


def in_graph(n: int, count: int, mode: str) -> Any:
    """A function of so many collectives."""
    value: Any = pytensor.shared(np.ones(n), name="value")
    for _ in range(count):
        value = synk.ops.all_reduce(value) * 0.5
    return synk.function([], value[0], mode=mode)


def difference(few: Any, many: Any) -> float:
    """The time of one collective, in microseconds: the median of some rounds."""
    found = []
    for _ in range(ROUNDS):
        found.append((microseconds(many, CALLS) - microseconds(few, CALLS)) / (MANY - 1))
    return float(np.median(found))


def measured(modes: list[str]) -> list[list[Any]]:
    rows = []
    with synk.Group(2, "cpu", start="exec" if "jax" in modes else None) as group:
        plain = {
            n: difference(*[lambda c=c, n=n: group.run(Plain(n, c)) for c in (1, MANY)])
            for n in SIZES.values()
        }
        rows.append(["the communicator", *plain.values()])
        for mode in modes:
            found = [
                difference(*[in_graph(n, c, MODES[mode]) for c in (1, MANY)])
                for n in SIZES.values()
            ]
            rows.append([f"in a function, {mode}", *found])
            over = [a - b for a, b in zip(found, plain.values(), strict=True)]
            rows.append([f"  more, {mode}", *over])
    return rows


def main() -> None:
    answer_help(__doc__)
    describe_machine()
    modes = sys.argv[1:] or list(MODES)
    show("all_reduce over 2 members, us for one, median", ["", *SIZES], measured(modes))


if __name__ == "__main__":
    main()
