"""Rows that no decision follows from: metrics before the first step and after the last one."""

from __future__ import annotations

from typing import Any

from synkhronos.training._run.events import Event, RunControl


class TestedRows:
    """A callback that evaluates the metrics over rows before and after the training.

    It stands behind callbacks that restore values at the end.

    Parameters
    ----------
    rows : as data
    """

    def __init__(self, rows: object) -> None:
        self._rows = rows
        # "before" and "after": the metrics by their names
        self.found: dict[str, dict[str, Any]] = {}

    def on_start(self, event: Event) -> None:
        """Evaluate them, unless the run goes on from a later step."""
        if not event.step:
            self._evaluate("before", event.trainer)

    def on_end(self, event: Event) -> None:
        """Evaluate them, unless the run has been broken off."""
        if event.trainer.completed:
            self._evaluate("after", event.trainer)

    def _evaluate(self, when: str, trainer: RunControl) -> None:
        self.found[when] = found = trainer.evaluate(self._rows)
        trainer.record("tested", when=when, **{f"test_{name}": v for name, v in found.items()})
        numbers = [f"{name} {v:.4g}" for name, v in found.items() if isinstance(v, float)]
        trainer.say(f"test {when} training: {', '.join(numbers)}")
