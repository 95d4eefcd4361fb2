"""The interface of communicators."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import numpy as np

from synkhronos._host.arena import Arena
from synkhronos._plan.transfers import Plan, alone, run
from synkhronos._proofs.reductions import Reduction
from synkhronos._transport.communicators.half_precision import Rounding
from synkhronos._transport.communicators.sums import BackgroundSums, Sums

Join = Literal["concatenate", "stack"]
Arrays = Sequence[np.ndarray]
Members = tuple[int, ...] | None
Weights = Sequence[float] | None  # of the members that take part
Fill = Callable[[int, int, int], None]

DIFFER = (
    "all_reduce: the members' arrays differ in shape or dtype; synk.get_shapes shows them, "
    "synk.broadcast gives all members the master's"
)
_POLL_SECONDS = 50e-6


class Communicator(ABC):
    """Moves arrays between members.

    `testing.conformance.check_communicator` checks a group that uses an implementation.

    Every member calls the same methods in the same order. `members`, a tuple of ranks in ascending
    order, names those who take part; the others call too, and get None, so that all count the same
    exchanges. Results are bit-equal in all members that get them: partial values are combined in
    the order of ranks.
    """

    rank: int
    size: int
    nodes: int = 1  # machines that the members are on
    # the member that allocates arrays for all members of a node, as a rank of `home`
    leader: int = 0
    on_gpus = False  # whether arrays of JAX move between the members as they are

    @property
    @abstractmethod
    def home(self) -> Communicator:
        """The communicator of this member's node; its ranks count from 0 on each node.

        It is of shared memory: training writes into the arrays of its `expose`.
        """

    @property
    def interrupts(self) -> AbstractContextManager[None]:
        """A context in which Ctrl-C waits."""
        return contextlib.nullcontext()

    def without_master(self) -> AbstractContextManager[None]:
        """Run a command that the master takes no part in: an exchange with it raises GroupError.

        On several nodes every exchange does, since all nodes agree on one with the master's.
        """
        return contextlib.nullcontext()

    @abstractmethod
    def barrier(self, members: Members = None) -> None:
        """Wait for all."""

    @abstractmethod
    def enter(self) -> None:
        """A barrier that all members pass or none; what follows may write what others read."""

    @abstractmethod
    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """An array in memory that this communicator works on without a copy."""

    @abstractmethod
    def expose(self, arrays: Arrays) -> list[list[np.ndarray]]:
        """Each member's arrays of `empty`, which all members of the node can read and write."""

    @abstractmethod
    def broadcast(
        self, arrays: Arrays | None, root: int, members: Members = None
    ) -> list[np.ndarray] | None:
        """The root's arrays, as fresh copies in the others (the root gets its own back)."""

    @abstractmethod
    def gather(
        self, arrays: Arrays, root: int, join: Join = "concatenate", members: Members = None
    ) -> list[np.ndarray] | None:
        """At the root: each array joined over the ranks along axis 0, or on a new first axis."""

    @abstractmethod
    def all_gather(self, arrays: Arrays, join: Join = "concatenate") -> list[np.ndarray]:
        """In all members: each array joined over the ranks; see `gather`."""

    @abstractmethod
    def scatter(self, arrays: Arrays | None, root: int, edges: Sequence[int]) -> list[np.ndarray]:
        """Rows edges[rank] to edges[rank + 1] of the root's arrays, as fresh copies."""

    @abstractmethod
    def reduce(
        self,
        arrays: Arrays,
        op: Reduction,
        root: int,
        weights: Weights = None,
        members: Members = None,
    ) -> list[np.ndarray] | None:
        """At the root: fresh arrays of the reduced values (float64 for averages of integers)."""

    @abstractmethod
    def all_reduce(
        self,
        arrays: Arrays,
        op: Reduction,
        weights: Weights = None,
        members: Members = None,
        starting: Callable[[], None] | None = None,
    ) -> None:
        """Overwrite each member's arrays with the reduced values; dtypes stay.

        Averages of integers are rounded to the nearest integer. `starting` is called just before
        the first write: after that a failure may leave arrays half written.
        """

    @abstractmethod
    def reduce_scatter(
        self, arrays: Arrays, op: Reduction, edges: Sequence[int], weights: Weights = None
    ) -> list[np.ndarray]:
        """Rows edges[rank] to edges[rank + 1] of the reduced values, as fresh arrays."""

    def sum_over_nodes(self, arrays: Arrays, fill: Fill, rounding: Rounding | None = None) -> None:
        """Sum arrays that a node's members share over the nodes, in place; nothing for one node.

        ``fill(i, lo, hi)`` writes this node's values of elements lo to hi of array i. It is called
        after all members have come; the sums are complete when this returns. With `rounding`,
        floats travel in 16 bits.
        """
        del arrays, fill, rounding

    def mappable(self) -> Arena:
        """Memory of the node that a process beside its members can map."""
        raise TypeError("only nodes beside others have a process that maps their memory")

    def start_sums(self, sums: Sums, cores: Sequence[int]) -> BackgroundSums | None:
        """Start to add up between nodes while members compute; all members call it.

        Returns what makes the sums, in the leader of a node. The vectors lie in `mappable`. The
        process runs on `cores`.
        """
        raise TypeError("the members of one node add up by themselves")

    @property
    def node(self) -> int:
        """The number of this member's node."""
        return 0

    def run_between_nodes[R](self, plan: Plan[R]) -> R:
        """Run a plan of transfers between nodes; only leaders call this, and all of them."""
        return run(plan, alone)

    # Exchanges of GPUs run without the host. So a member that waits for one watches the others.

    def wait_for_gpu(self, done: Callable[[], bool]) -> None:
        """Return once `done()` is true: an exchange of GPUs that all members have begun.

        Raises
        ------
        PeerFailed
            Another member's part of it failed.
        """
        while not done():
            time.sleep(_POLL_SECONDS)

    def fail_exchange(self) -> None:
        """Tell the members that wait in `wait_for_gpu` that this member's part failed."""

    def native(self, value: object) -> Any:
        """A value in the form in which it moves: an array of numpy, or of JAX on a GPU."""
        return np.asarray(value)

    def adding_up(self, arrays: list[Any]) -> AbstractContextManager[None]:
        """A context in which arrays of JAX, which only the caller holds, are summed over members.

        At its end `arrays` holds the sums.
        """
        del arrays
        if self.size > 1:
            raise TypeError("only members on GPUs add up arrays of JAX")
        return contextlib.nullcontext()

    def close(self) -> None:
        """Release what belongs to other members, in bounded time."""
