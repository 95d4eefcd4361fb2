"""Traces some steps of a run: what each member did, and when."""

from __future__ import annotations

import contextlib
from pathlib import Path

from synkhronos._engine.trace import Trace
from synkhronos.training._run.events import Event

FILE = "trace.bin"  # in the run's folder; `synk trace` reads it
_FIRST = 2  # steps that are not traced: they compile, and fill buffers


class TracedSteps:
    """A callback that traces a number of steps, and writes the trace to the run's folder."""

    def __init__(self, steps: int, folder: Path | None) -> None:
        self._steps = steps
        self._path = None if folder is None else folder / FILE
        self._made = 0
        self._open = contextlib.ExitStack()
        self.trace = Trace()  # empty until the steps are made

    def on_step(self, event: Event) -> None:
        """Begin after the first steps; end after the steps to trace."""
        self._made += 1
        if self._made == _FIRST and self._steps:
            group = event.trainer.train.group
            self.trace = self._open.enter_context(group.trace(self._path))
        elif self._made == _FIRST + self._steps:
            self._open.close()

    def on_end(self, event: Event) -> None:
        """End with the run."""
        self._open.close()
