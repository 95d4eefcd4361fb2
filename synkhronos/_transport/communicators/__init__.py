"""Communicators move arrays between members.

Every member calls the same verbs in the same order. `members`, a tuple of ranks in ascending
order, names those who take part; the others call too and get None (so that all count the same
meetings). Results are bit-equal in all members that get them: partial values are combined in the
order of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np

from synkhronos._plan.reductions import Reduction

Join = Literal["concatenate", "stack"]
Arrays = Sequence[np.ndarray]
Members = tuple[int, ...] | None
Fill = Callable[[int, int, int], None]

DIFFER = (
    "all_reduce: the members' arrays differ in shape or dtype; synk.get_shapes says which, "
    "synk.broadcast gives all members the master's"
)


class Communicator(Protocol):
    """What every communicator does; `testing.check_communicator` holds it to that.

    Attributes
    ----------
    rank, size : int
    nodes : int
        On how many machines the members are.
    home : Communicator
        Of this member's node, with places for ranks; itself where there is one.
    leader : int
        Who allocates what a node's members share, as a rank of `home`.
    """

    rank: int
    size: int
    nodes: int
    leader: int

    @property
    def home(self) -> Communicator:
        """The communicator of this member's node."""

    def barrier(self, members: Members = None) -> None:
        """Wait for all."""

    def enter(self) -> None:
        """A barrier that all pass or nobody; what follows may write what others read."""

    def expose(self, arrays: Arrays) -> list[list[np.ndarray]]:
        """Each member's arrays of `empty`, as all members of the node read and write them."""

    def broadcast(
        self, arrays: Arrays | None, root: int, members: Members = None
    ) -> list[np.ndarray] | None:
        """The root's arrays, fresh copies in the others (the root gets its own back)."""

    def gather(
        self, arrays: Arrays, root: int, join: Join = "concatenate", members: Members = None
    ) -> list[np.ndarray] | None:
        """At the root: each array joined over ranks along axis 0, or on a new first axis."""

    def all_gather(self, arrays: Arrays, join: Join = "concatenate") -> list[np.ndarray]:
        """The same, for all members."""

    def scatter(self, arrays: Arrays | None, root: int, edges: Sequence[int]) -> list[np.ndarray]:
        """Rows edges[rank] to edges[rank + 1] of the root's arrays, as fresh copies."""

    def reduce(
        self,
        arrays: Arrays,
        op: Reduction,
        root: int,
        weights: Sequence[float] | None = None,
        members: Members = None,
    ) -> list[np.ndarray] | None:
        """At the root: fresh arrays of the reduced values (float64 for averages of integers)."""

    def all_reduce(
        self,
        arrays: Arrays,
        op: Reduction,
        weights: Sequence[float] | None = None,
        members: Members = None,
        starting: Callable[[], None] | None = None,
    ) -> None:
        """Overwrite each member's arrays with the reduced values, dtypes kept.

        Averages of integers are rounded to the nearest integer. `starting` is called just before
        the first write: from then on a failure may leave arrays half written.
        """

    def reduce_scatter(
        self,
        arrays: Arrays,
        op: Reduction,
        edges: Sequence[int],
        weights: Sequence[float] | None = None,
    ) -> list[np.ndarray]:
        """Rows edges[rank] to edges[rank + 1] of the reduced values, as fresh arrays."""

    def sum_over_nodes(self, arrays: Arrays, fill: Fill, compress: str | None = None) -> None:
        """Add up arrays that a node's members share, over the nodes and in place.

        ``fill(i, lo, hi)`` writes this node's values of elements lo to hi of array i. All have come
        when it begins, and the sums are there when it ends. `compress` ("fp16", "bf16"): floats
        travel in 16 bits.
        """

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """An array where this communicator works without a copy."""
