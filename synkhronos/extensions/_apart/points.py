"""Points of a run: copies of the centre while members train."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._checks import check_number, shown
from synkhronos._errors import InputError
from synkhronos.extensions._step.step_report import Rows, StepReport

_LOOK_SECONDS = 0.25  # between two reports of a run


@dataclass(frozen=True)
class Point:
    """A copy of the centre while members train.

    Attributes
    ----------
    values : dict of array
        By variable: parameters, statistics such as running means, and the count of rows and
        exchanges.
    version : int
        Exchanges that this centre contains, also those of earlier runs; of `Hogwild` steps, of
        `GoSGD` messages that were sent by then.
    torn : bool
        Others may have changed the centre while it was copied (`Hogwild`).
    rows, epoch : int
        Rows that all members have used by now, also in earlier runs, and the epoch that has begun.
    batches : dict
        The state of the Batches after what members have taken of them.
    seconds : float
        Since the start.
    loss : float
        Mean over the rows since the previous point, at each member's own values; of steps whose
        loss is finite.
    """

    values: dict[SharedVariable, np.ndarray]
    version: int
    torn: bool
    rows: int
    epoch: int
    seconds: float
    loss: float
    batches: dict[str, object]

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """A context in which the variables have the point's values, in this process.

        Functions of plain PyTensor use them. At its end the variables have their own values again.

        Examples
        --------
        >>> import numpy as np, pytensor
        >>> from synkhronos.extensions import Point
        >>> w = pytensor.shared(np.zeros(2), name="w")
        >>> total = pytensor.function([], w.sum())
        >>> with Point({w: np.ones(2)}, 1, False, 10, 0, 0.1, 0.5, {}).applied():
        ...     float(total())
        2.0
        >>> float(total())
        0.0
        """
        storages = [v.container.storage for v in self.values]
        before = [storage[0] for storage in storages]
        try:
            for storage, value in zip(storages, self.values.values(), strict=True):
                storage[0] = value
            yield
        finally:
            for storage, value in zip(storages, before, strict=True):
                storage[0] = value

    def summary(self) -> dict[str, object]:
        """The row for a run's history."""
        return {k: getattr(self, k) for k in ("rows", "epoch", "seconds", "version", "loss")}


class PointSource(ABC):
    """The base of runs: they train in pieces, with a point after each."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """Rows that all members have used so far."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps that all members have made so far."""

    @property
    @abstractmethod
    def loss(self) -> float:
        """The mean over all rows so far, at each member's own values."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, kind: object, exc: BaseException | None, tb: object) -> None: ...

    @abstractmethod
    def stop(self) -> None:
        """Ask all members to stop."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> bool:
        """Train until the rows end; returns whether they have."""

    @abstractmethod
    def centre(self) -> Point:
        """A copy of the centre now."""

    @abstractmethod
    def _train(self, enough: Callable[[], bool]) -> bool:
        """Train until it is enough, or until the end; returns whether that has come."""

    @abstractmethod
    def _measures(self) -> dict[str, Callable[[], float]]:
        """What `every` counts: rows, exchanges and seconds so far."""

    @abstractmethod
    def _ended(self) -> bool:
        """Whether the run has ended, or shall."""

    @abstractmethod
    def _stopped(self) -> bool:
        """Whether the user has asked for the end."""

    @abstractmethod
    def _raise_failures(self) -> None:
        """Raise what has failed in a member."""

    def every(
        self, *, rows: int | None = None, exchanges: int | None = None, seconds: float | None = None
    ) -> Iterator[Point]:
        """Train, and give a point each time that so much has been done; exactly one is given.

        Parameters
        ----------
        rows, exchanges : int, optional
            Of all members.
        seconds : float, optional

        Raises
        ------
        InputError
            None or several of the three are given, or one is not positive.
        WorkerError
            A member raised. All have stopped, and the variables have the centre's values.
        WorkerDied
            Too few members are left; as above.
        """
        given = {"rows": rows, "exchanges": exchanges, "seconds": seconds}
        chosen = {k: v for k, v in given.items() if v is not None}
        [(what, interval)] = chosen.items() if len(chosen) == 1 else [("", None)]
        if not what:
            raise InputError(
                f"every: give one of rows, exchanges and seconds, found {shown(chosen)}"
            )
        interval = check_number(f"every: {what}", interval, above=0)
        return self._every(self._measures()[what], interval)

    def _every(self, measure: Callable[[], float], interval: float) -> Iterator[Point]:
        due = interval
        while not self._ended():
            limit = due
            ended = self._train(lambda limit=limit: measure() >= limit)  # type: ignore[misc]
            self._raise_failures()
            if self._stopped() or (ended and measure() < due):
                return
            if measure() < due:  # a quorum has refused rows since
                continue
            point = self.centre()
            due = interval * (measure() // interval + 1)
            yield point


class RunEpochs:
    """Epochs of members that take batches by themselves: a run for each, and its counters."""

    def __init__(self) -> None:
        self._run: PointSource | None = None

    def reports(self, start: Callable[..., PointSource], feed: Rows) -> Generator[StepReport]:
        """Start a run of the rest of the epoch, and tell what it has done, until it ends."""
        rows = steps = 0
        try:
            with start(*feed.begin(), feed.batches) as run:
                self._run = run
                ended = False
                while not ended:
                    ended = run.wait(_LOOK_SECONDS)
                    before = rows, steps
                    rows, steps = run.rows, run.steps
                    counted = rows if ended else 0
                    loss = run.loss if ended else math.nan
                    yield StepReport(loss, rows - before[0], steps - before[1], counted)
        finally:
            self._run = None  # it refers to the training function

    def stop(self) -> None:
        """Ask the members of the present run to stop."""
        if self._run is not None:
            self._run.stop()
