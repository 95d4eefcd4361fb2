"""The communicator of a group of one: every reduction is the value itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from synkhronos._host.arena import aligned_empty
from synkhronos._plan.reductions import Reduction, combine
from synkhronos._transport.communicators import Arrays, Fill, Join, Members


class Solo:
    """A group of one member."""

    rank = leader = 0
    size = nodes = 1

    @property
    def home(self) -> Solo:
        """The only node."""
        return self

    def barrier(self, members: Members = None) -> None:
        """Nobody to wait for."""

    def enter(self) -> None:
        """Nobody to wait for."""

    def sum_over_nodes(self, arrays: Arrays, fill: Fill, compress: str | None = None) -> None:
        """There is one node."""

    def expose(self, arrays: Arrays) -> list[list[np.ndarray]]:
        """The arrays themselves."""
        return [list(arrays)]

    def broadcast(
        self, arrays: Arrays | None, root: int, members: Members = None
    ) -> list[np.ndarray] | None:
        """The arrays themselves."""
        return None if arrays is None else list(arrays)

    def gather(
        self, arrays: Arrays, root: int, join: Join = "concatenate", members: Members = None
    ) -> list[np.ndarray] | None:
        """Copies."""
        return self.all_gather(arrays, join)

    def all_gather(self, arrays: Arrays, join: Join = "concatenate") -> list[np.ndarray]:
        """Copies."""
        stacked = [np.array(a)[None] if join == "stack" else np.array(a) for a in arrays]
        return [a.reshape(1) if a.ndim == 0 else a for a in stacked]

    def scatter(self, arrays: Arrays | None, root: int, edges: Sequence[int]) -> list[np.ndarray]:
        """Copies of the rows asked for."""
        return [np.array(a[edges[0] : edges[1]]) for a in arrays or ()]

    def reduce(
        self,
        arrays: Arrays,
        op: Reduction,
        root: int,
        weights: Sequence[float] | None = None,
        members: Members = None,
    ) -> list[np.ndarray] | None:
        """Copies."""
        return [combine([a], op) for a in arrays]

    def all_reduce(
        self,
        arrays: Arrays,
        op: Reduction,
        weights: Sequence[float] | None = None,
        members: Members = None,
        starting: Callable[[], None] | None = None,
    ) -> None:
        """Nothing changes."""

    def reduce_scatter(
        self,
        arrays: Arrays,
        op: Reduction,
        edges: Sequence[int],
        weights: Sequence[float] | None = None,
    ) -> list[np.ndarray]:
        """Copies of the rows asked for."""
        return [combine([a[edges[0] : edges[1]]], op) for a in arrays]

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Ordinary memory, which JAX can read in place."""
        return aligned_empty(shape, np.dtype(dtype))
