"""As much of a training function as checkpoints ask for: its variables."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from pytensor.compile.sharedvalue import SharedVariable

from synkhronos.extensions._step.step_report import Rows, StepReport
from synkhronos.extensions._step.training_function import TrainingFunction


class Holding(TrainingFunction):
    """Holds variables, and makes no step; `by_node` are those of `state` if so wished."""

    def __init__(
        self,
        params: Sequence[Any] = (),
        state: Sequence[Any] = (),
        streams: Sequence[Any] = (),
        *,
        by_node: bool = False,
    ) -> None:
        self.params, self.state, self.streams = list(params), list(state), list(streams)
        self.settings = []
        self._by_node = self.state if by_node else []

    @property
    def by_node(self) -> list[SharedVariable]:
        return self._by_node

    def reports(self, feed: Rows, slices: int | str) -> Generator[StepReport]:
        raise NotImplementedError
