"""The communicator of a group of one: every reduction is the value itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from synkhronos._compiling.data.aligned import aligned_empty
from synkhronos._proofs.reductions import Reduction, combine
from synkhronos._transport.communicators.communicator import (
    Arrays,
    Communicator,
    Join,
    Members,
    Weights,
)


class Solo(Communicator):
    """Returns copies, where other communicators return fresh arrays."""

    rank = 0
    size = 1

    @property
    def home(self) -> Solo:
        return self

    def barrier(self, members: Members = None) -> None:
        """Return at once."""

    def enter(self) -> None:
        """Return at once."""

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Ordinary memory, which JAX can read in place."""
        return aligned_empty(shape, np.dtype(dtype))

    def expose(self, arrays: Arrays) -> list[list[np.ndarray]]:
        return [list(arrays)]

    def broadcast(
        self, arrays: Arrays | None, root: int, members: Members = None
    ) -> list[np.ndarray] | None:
        return None if arrays is None else list(arrays)

    def gather(
        self, arrays: Arrays, root: int, join: Join = "concatenate", members: Members = None
    ) -> list[np.ndarray] | None:
        return self.all_gather(arrays, join)

    def all_gather(self, arrays: Arrays, join: Join = "concatenate") -> list[np.ndarray]:
        stacked = [np.array(a)[None] if join == "stack" else np.array(a) for a in arrays]
        return [a.reshape(1) if a.ndim == 0 else a for a in stacked]

    def scatter(self, arrays: Arrays | None, root: int, edges: Sequence[int]) -> list[np.ndarray]:
        return [np.array(a[edges[0] : edges[1]]) for a in arrays or ()]

    def reduce(
        self,
        arrays: Arrays,
        op: Reduction,
        root: int,
        weights: Weights = None,
        members: Members = None,
    ) -> list[np.ndarray] | None:
        return [combine([a], op) for a in arrays]

    def all_reduce(
        self,
        arrays: Arrays,
        op: Reduction,
        weights: Weights = None,
        members: Members = None,
        starting: Callable[[], None] | None = None,
    ) -> None:
        """Change nothing."""

    def reduce_scatter(
        self, arrays: Arrays, op: Reduction, edges: Sequence[int], weights: Weights = None
    ) -> list[np.ndarray]:
        return [combine([a[edges[0] : edges[1]]], op) for a in arrays]
