"""The state of a run, which its trainer owns and the loop changes."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from synkhronos.extensions._step.training_function import TrainingFunction
from synkhronos.training._record.history import History
from synkhronos.training._run.evaluation import Evaluation
from synkhronos.training._run.feeds import Feed
from synkhronos.training._run.position import Position
from synkhronos.training._run.subscribers import Subscribers


@dataclass
class RunState:
    """How far a run is, what it has found, who is told, and why it ends.

    Both the trainer and the loop have it, so the loop needs no trainer.
    """

    train: TrainingFunction
    subscribers: Subscribers
    evaluation: Evaluation | None = None  # of the metrics; None without any
    position: Position = field(default_factory=Position)
    history: History = field(default_factory=History)
    reason: str = ""  # why the run ends; empty while it goes on, and after an exception
    completed: bool = False  # whether the run has ended by `stop` or after all epochs
    saved: bool = True  # whether a checkpoint has the latest end of an epoch
    token: str = field(default_factory=lambda: uuid.uuid4().hex)  # what no other run has
    # whose the folders are that callbacks have in the run's folder, by their names
    claims: dict[str, object] = field(default_factory=dict)

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics."""
        return [] if self.evaluation is None else self.evaluation.names

    def stop(self, reason: str) -> None:
        """End the run after the step at hand; the first reason stays."""
        self.reason = self.reason or reason

    def evaluate(self, feed: Feed) -> dict[str, object]:
        """The metrics, of which there are some, over all rows of a feed."""
        assert self.evaluation is not None
        if feed.fixed is not None:
            return self.evaluation(*feed.fixed)
        return self.evaluation.over(feed)
