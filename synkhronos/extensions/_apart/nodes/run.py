"""A run of nodes that train apart, and meet."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Self

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._errors import WorkerDied
from synkhronos.extensions._apart.free.claims import BatchOrder
from synkhronos.extensions._apart.points import Point, PointSource

Round = Callable[[int, int], tuple[int, float]]


class NodesRun(PointSource):
    """Nodes that train by `synkhronos.rules.Nodes`; made by `NodesFunction.start`.

    All members train inside of `wait` and `every`, round by round. After each round the variables
    have the centre's values.

    Attributes
    ----------
    history : list of dict
        For each point: rows, epoch, seconds, version, loss.

    Notes
    -----
    Ctrl-C, and a failure of a member, undo the round: the variables have the values of the one
    before. The next round begins with the batches of the one that failed.
    """

    def __init__(
        self,
        order: BatchOrder,
        per_round: int,
        round_of: Round,
        restore: Callable[[dict[str, object]], None],
        variables: list[SharedVariable],
        counts: SharedVariable,
    ) -> None:
        self.history: list[dict[str, object]] = []
        self._rows = 0
        self._order = order
        self._per_round = per_round
        self._round_of = round_of
        self._restore = restore
        self._variables = variables
        self._counts = counts
        self._began = time.monotonic()
        self._done = 0  # batches
        self._stopping = False
        self._loss = self._rows_of_loss = 0.0
        self._whole = (0.0, 0.0)  # rows and loss before the previous point

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def centre(self) -> Point:
        """The centre after the latest round."""
        position = self._order.after(self._done)
        counts = self._counts.get_value()
        mean = self._loss / self._rows_of_loss if self._rows_of_loss else math.nan
        self._whole = self._whole[0] + self._rows_of_loss, self._whole[1] + self._loss
        self._loss = self._rows_of_loss = 0.0
        point = Point(
            {v: np.array(v.get_value(borrow=True)) for v in (*self._variables, self._counts)},
            int(counts[1]),
            False,
            int(counts[0]),
            position["epoch"],
            time.monotonic() - self._began,
            mean,
            position,
        )
        self.history.append(point.summary())
        return point

    @property
    def rows(self) -> int:
        """Rows that all members have used so far."""
        return self._rows

    @property
    def steps(self) -> int:
        """Steps that all members have made so far."""
        return self._done

    @property
    def loss(self) -> float:
        """The mean over all rows so far, at each member's own values."""
        counted, loss = self._whole[0] + self._rows_of_loss, self._whole[1] + self._loss
        return loss / counted if counted else math.nan

    def stop(self) -> None:
        """Make no further round."""
        self._stopping = True

    def wait(self, timeout: float | None = None) -> bool:
        """Train until the rows end; returns whether they have.

        Parameters
        ----------
        timeout : float, optional
            Seconds after which no further round begins.

        Raises
        ------
        WorkerError, WorkerDied
            A member raised, or died. The variables have the values of the latest round.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        return self._train(lambda: time.monotonic() >= until)

    def _train(self, enough: Callable[[], bool]) -> bool:
        while not enough() and not self._ended():
            stop = min(self._done + self._per_round, self._order.total)
            try:
                rows, loss = self._round_of(self._done, stop)
            except WorkerDied as died:
                if not died.again:
                    raise
                continue  # with new workers, and the same batches
            self._done = stop
            self._rows += rows
            self._loss += loss
            self._rows_of_loss += rows
            self._counts.set_value(self._counts.get_value() + np.array([rows, 1]))
            self._restore(self._order.after(stop))
        return self._ended()

    def _measures(self) -> dict[str, Callable[[], float]]:
        return {
            "rows": lambda: self._rows,
            "exchanges": lambda: self._done / self._per_round,
            "seconds": lambda: time.monotonic() - self._began,
        }

    def _ended(self) -> bool:
        return self._stopping or self._done >= self._order.total

    def _stopped(self) -> bool:
        return self._stopping

    def _raise_failures(self) -> None:
        """Each round has raised its own."""
