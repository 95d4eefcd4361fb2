"""Sums between nodes that are made while members compute: what they are, and who makes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from synkhronos._plan.chunks import Chunk


@dataclass(frozen=True)
class Sums:
    """Vectors that are added up in each step, and how."""

    chunks: list[Chunk]  # in the order in which they are sent
    # of the vectors
    dtypes: list[str]
    lengths: list[int]
    published: list[list[int]]  # by member of the node, the places of its vectors in the arena
    totals: list[int]  # the places of the vectors of sums
    progress: list[int]  # by member, the place of its word
    # the place of the board, and the number of the node's members
    board: int
    members: int
    format: str | None  # in which floats travel in 16 bits
    seed: int | None  # of the chance by which they are rounded


class BackgroundSums(ABC):
    """The maker of the sums, as the leader of a node sees it."""

    @abstractmethod
    def begin(self, step: int, weights: Sequence[float], count: int) -> None:
        """Begin a step: with weights of the node's members, and the count that chance follows."""

    @abstractmethod
    def finish(self, step: int) -> None:
        """Wait for the sums of a step, whose values all members of all nodes have published.

        Raises
        ------
        GroupError
            There will be none, because of this node or a connection.
        PeerFailed
            There will be none, because of another node.
        """

    @abstractmethod
    def close(self) -> None:
        """End it, in bounded time."""
