"""How an epoch is gone through: step by step, in turns, or by members that train apart."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any, NamedTuple, override

from synkhronos._errors import InputError
from synkhronos.extensions._apart.free.function import FreeFunction
from synkhronos.extensions._apart.rounds.function import RoundFunction
from synkhronos.extensions._step.function import TrainFunction
from synkhronos.training._pairs.alternate import Alternate
from synkhronos.training._run.feeds import Feed

_LOOK_SECONDS = 0.25  # between two reports of members that train apart


class Report(NamedTuple):
    """What has been done since the report before.

    Attributes
    ----------
    loss : float
        The mean over `counted` rows; NaN if it is not known yet.
    rows, steps : int
    counted : int
        The rows of the loss. Members that train apart tell it at their end, for all their rows.
    part : str
        The name of the function that has made the step, where several take turns.
    """

    loss: float
    rows: int
    steps: int
    counted: int
    part: str = ""


class StepEngine:
    """Each report is one step of all members."""

    repeatable = True

    def __init__(self, train: TrainFunction | Alternate, slices: int | str) -> None:
        self._train = train
        self._slices = slices
        self.latest: tuple[tuple[Any, ...], Any] = ((), None)  # the inputs and rows of the step

    def epoch(self, feed: Feed) -> Generator[Report]:
        """Go through the rest of the epoch; each report comes right after its step."""
        train, slices = self._train, self._slices
        for args, batch, rows in feed:
            self.latest = args, batch
            found = train(*args, batch=batch, num_slices=slices)
            loss = float(found[0] if isinstance(found, list) else found)
            yield Report(loss, rows, 1, rows, self._part())

    def _part(self) -> str:
        """The name of the function that has made the latest step, where several take turns."""
        return ""

    def settle(self) -> None:
        """Give the variables the values to validate and to save: of a round rule, by a meeting."""
        if isinstance(self._train, RoundFunction):
            self._train.meet()

    def stop(self) -> None:
        """Nothing goes on between two reports."""


class AlternateEngine(StepEngine):
    """Each report is one step of the function whose turn it is."""

    def __init__(self, train: Alternate, slices: int | str) -> None:
        super().__init__(train, slices)
        self._cycle = train

    @override
    def _part(self) -> str:
        return self._cycle.latest

    @override
    def settle(self) -> None:
        self._cycle.settle()


class FreeEngine:
    """Members train apart for the rest of the epoch; reports come from their counters."""

    repeatable = False

    def __init__(self, train: FreeFunction) -> None:
        self._train = train
        self._run: Any = None
        self.latest: tuple[tuple[Any, ...], Any] = ((), None)

    def epoch(self, feed: Feed) -> Generator[Report]:
        """Let members train to the end of the epoch, or until `stop`."""
        data = feed.begin()
        assert data is not None  # `engine_of` has looked
        rows = steps = 0
        with self._train.start(*data, feed.batches) as run:
            self._run = run
            ended = False
            while not ended:
                ended = run.wait(_LOOK_SECONDS)
                before = rows, steps
                rows, steps = run.rows, run.steps
                counted = rows if ended else 0
                loss = run.loss if ended else math.nan
                yield Report(loss, rows - before[0], steps - before[1], counted)

    def settle(self) -> None:
        """Between two spans, the variables have the centre's values."""

    def stop(self) -> None:
        """Ask the members to stop."""
        if self._run is not None:
            self._run.stop()


def engine_of(train: Any, slices: int | str, feed: Feed) -> StepEngine | FreeEngine:
    """The engine for a training function and what it is trained on.

    Raises
    ------
    InputError
        Members that train apart take batches by themselves, and the rows are not in memory.
    """
    if isinstance(train, Alternate):
        return AlternateEngine(train, slices)
    if not isinstance(train, FreeFunction):
        return StepEngine(train, slices)
    if feed.fixed is None:
        raise InputError(
            f"fit: with {train.rule} each member takes batches by itself, and these rows are read "
            "from a source: give arrays or Data; in a config data.memory = true"
        )
    return FreeEngine(train)
