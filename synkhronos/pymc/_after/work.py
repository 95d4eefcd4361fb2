"""Work that can be divided over processes: parts that are computed apart, and places of results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from synkhronos.pymc._after.store import Store


@dataclass(frozen=True)
class InMemory:
    """Results in arrays, which all processes share."""

    arrays: Sequence[np.ndarray]

    def note(self, done: int) -> None:
        """Nothing: who has the arrays sees what is done."""


type Target = Store | InMemory


class Work(ABC):
    """Something to compute in parts; it can be pickled."""

    counted: ClassVar[str]  # what its parts are ranges of: the first axis of each result
    if_lost: ClassVar[str] = "The results so far are gone: call again"  # if workers of a pool go

    @property
    @abstractmethod
    def total(self) -> int:
        """How much is to be done, in what its parts are counted in."""

    @property
    def before(self) -> int:
        """How much an earlier call has done."""
        return 0

    @property
    @abstractmethod
    def parts(self) -> Sequence[range]:
        """Its parts, in an order such that every n-th has an equal share."""

    @property
    @abstractmethod
    def in_processes(self) -> bool:
        """Whether other processes can compute it as well."""

    def shorten(self, length: int) -> None:
        """Make parts no longer than this, if their length does not matter for the work."""
        del length

    @abstractmethod
    def computed(self, part: range) -> list[np.ndarray]:
        """The results of a part, in new arrays."""

    @abstractmethod
    def compute(self, mine: Sequence[range], target: Target) -> Iterator[int]:
        """Compute parts one by one; yields how much is done after each."""
