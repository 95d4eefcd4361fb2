"""Reports of the steps of a training function, as a `Trainer` goes through an epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from synkhronos._api.data import Data
from synkhronos.extensions._rows.batches import Batches


class StepReport(NamedTuple):
    """The work since the report before."""

    loss: float  # the mean over `counted` rows; NaN if it is not known yet
    rows: int
    steps: int
    # the rows of the loss. Members that train apart tell it at their end, for all their rows
    counted: int
    part: str = ""  # the name of the function that has made the step, where several take turns


class Rows(ABC):
    """The base of what an epoch is made of: batches as the inputs of steps."""

    batches: Batches
    fixed: tuple[Data, ...] | None  # all rows, where they are in shared memory

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[tuple[object, ...], object, int]]:
        """The inputs of each step, the batch of them, and its number of rows."""

    @abstractmethod
    def begin(self) -> tuple[Data, ...]:
        """All rows, for members that take the batches of the next epoch by themselves."""


def steps_of(
    step: Callable[..., Any], feed: Rows, part: Callable[[], str] = lambda: ""
) -> Generator[StepReport]:
    """Make a step of each batch; each report comes right after its step.

    `part` gives the name of the function that has made the latest one, where several take turns.
    """
    for inputs, batch, rows in feed:
        found = step(*inputs, batch=batch)
        loss = float(found[0] if isinstance(found, list) else found)
        yield StepReport(loss, rows, 1, rows, part())
