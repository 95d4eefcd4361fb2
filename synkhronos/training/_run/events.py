"""Events of a training run, and what callbacks may ask of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable

from synkhronos.extensions._saving.checkpoints import Checkpoints
from synkhronos.extensions._step.training_function import TrainingFunction

KINDS = ("start", "step", "epoch", "validated", "saved", "end")


class RunControl(ABC):
    """The trainer as callbacks see it between two steps; `Trainer` documents it."""

    train: TrainingFunction

    @property
    @abstractmethod
    def token(self) -> str:
        """A text that no other run has."""

    @property
    @abstractmethod
    def completed(self) -> bool:
        """Whether the run has ended by `stop` or after all epochs."""

    @property
    @abstractmethod
    def latest(self) -> tuple[tuple[object, ...], object]:
        """The inputs of the latest step, and the rows of them."""

    @abstractmethod
    def stop(self, reason: str = ...) -> None:
        """End the run after the step at hand."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Show a line."""

    @abstractmethod
    def record(self, kind: str, **values: object) -> None:
        """Add a line to the run's ``metrics.jsonl``, if it has a folder."""

    @abstractmethod
    def evaluate(self, data: object) -> dict[str, Any]:
        """The metrics over all rows of data."""

    @abstractmethod
    def values(self) -> dict[SharedVariable, Any]:
        """Copies of the values that training changes."""

    @abstractmethod
    def checkpoints_in(self, name: str) -> Checkpoints | None:
        """Checkpoints in a folder of their own, if the run has one."""

    @abstractmethod
    def claim(self, name: str, owner: object) -> bool:
        """Whether a folder of this name is the owner's; it is whose who asks first."""


@dataclass(frozen=True)
class Event:
    """An event of a run.

    Attributes
    ----------
    kind : str
        "start": before the first step. "step": after each step. "validated": after each
        validation. "epoch": after each epoch, and its validation. "saved": after each checkpoint.
        "end": after the last step, also if an exception ends the run.
    trainer : Trainer
        ``trainer.stop(reason)`` ends the run.
    step : int
        Steps so far.
    epoch : int
        The number of the epoch, from 0; that of the one that has ended, for "epoch". Printed lines
        and `History` count from 1.
    values : dict
        "start": columns, the names of the values of an epoch, and modes, for each of them "min" or
        "max" if lower or higher values are better, or None. "step": loss, rows. "validated":
        val_loss and the other metrics, with the prefix ``val_``. "epoch": loss (the mean over the
        rows of the epoch, each before its update), rows, seconds (of steps, with the
        compiling of the first one), and the values of the validation.
        "saved": path. "end": reason.
    seconds : float
        Since the start of the run.
    """

    kind: str
    trainer: RunControl
    step: int
    epoch: int
    values: Mapping[str, Any]
    seconds: float
