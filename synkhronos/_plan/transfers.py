"""Plans of transfers between nodes: an algorithm yields what it sends, and gets what others sent.

Such code knows no process. The leaders of nodes run it on MPI; a test runs the plans of many nodes
side by side in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Gather:
    """Asks for the arrays of all nodes, in the order of nodes; lengths may differ."""

    array: np.ndarray


@dataclass(frozen=True, eq=False)
class Swap:
    """Sends part k to node k; asks for the parts that all nodes have sent here. 1-D, of bytes."""

    parts: list[np.ndarray]


Transfer = Gather | Swap
type Plan[R] = Generator[Transfer, list[np.ndarray], R]


def run[R](plan: Plan[R], answer: Callable[[Transfer], list[np.ndarray]]) -> R:
    """Run a plan to its end; `answer` makes each transfer."""
    found = None
    while True:
        try:
            wanted = plan.send(found)  # type: ignore[arg-type]  # None starts a generator
        except StopIteration as end:
            result: R = end.value
            return result
        found = answer(wanted)


def alone(transfer: Transfer) -> list[np.ndarray]:
    """The answer to a transfer of the only node."""
    return transfer.parts if isinstance(transfer, Swap) else [transfer.array]
