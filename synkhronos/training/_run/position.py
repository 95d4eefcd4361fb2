"""Where a run is: its step, its epoch, and the sums of the epoch that has begun."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Position:
    """Counts of a run, and the sum of the losses of the current epoch."""

    step: int = 0  # steps so far
    epoch: int = 0  # the current epoch, from 0; between epochs, the next one
    rows: int = 0  # rows of the epoch so far
    all_rows: int = 0  # rows of all epochs so far
    # the sum of the losses of rows, and the rows in it: those of steps with a finite loss
    loss: float = 0.0
    counted: int = 0
    seconds: float = 0.0  # of training, in the epoch so far, with the compiling of its first step
    # of functions that take turns, by name: as `loss` and `counted`, of each one's steps
    parts: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """The mean loss of the epoch so far."""
        return self.loss / self.counted if self.counted else math.nan

    @property
    def losses(self) -> dict[str, float]:
        """The mean losses of the epoch so far: of functions that take turns, also that of each."""
        each = {
            f"loss_{part}": loss / n if n else math.nan for part, (loss, n) in self.parts.items()
        }
        return {"loss": self.mean, **each}

    @property
    def known_losses(self) -> dict[str, float]:
        """`losses` without those of which no step has told: free rules do so at an epoch's end."""
        return {name: loss for name, loss in self.losses.items() if not math.isnan(loss)}

    def add(self, rows: int, steps: int, seconds: float) -> None:
        """Count steps."""
        self.step += steps
        self.rows += rows
        self.all_rows += rows
        self.seconds += seconds

    def add_loss(self, loss: float, rows: int, part: str = "") -> None:
        """Count the mean loss of these rows, if it is known and finite."""
        if math.isfinite(loss):
            self.loss += loss * rows
            self.counted += rows
            if part:
                sums = self.parts.setdefault(part, [0.0, 0])
                sums[0] += loss * rows
                sums[1] += rows

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch += 1
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Begin the current epoch, anew if it has begun: its rows do not count in it any more."""
        self.rows = self.counted = 0
        self.loss = self.seconds = 0.0
        self.parts = {part: [0.0, 0] for part in self.parts}

    def state(self) -> dict[str, object]:
        """The counts, for JSON, which keeps floats to the last bit."""
        return {**vars(self), "parts": {part: list(sums) for part, sums in self.parts.items()}}

    def restore(self, state: Mapping[str, object]) -> None:
        """Go on from a state."""
        for name in vars(self):
            if name in state:  # checkpoints of earlier versions have no `parts`
                setattr(self, name, state[name])
