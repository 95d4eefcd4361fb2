"""Gradients and losses that are not finite: what a run does, and the rows they come from.

These rules hold here:

* With a rule made by `guarded`, the compiled update leaves out a step whose gradient is not finite,
  and counts it. So all values are those of before the step when the master notices, and the rows
  can be looked for with them.
* Without such a rule only the loss is looked at. The step has changed the parameters then, and no
  row can be found.
* Statistics are not part of the rule, and such a step has changed them. They get back the arrays of
  before the step, which a step replaces and never writes to.
* A step that was left out, and for which the run raises, does not count: its rows are used again,
  by the same function. A step counts if it was skipped, or has changed the parameters.
* Looking for rows costs steps, so it is done only where the run raises.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from synkhronos._errors import NonFinite
from synkhronos._host import files
from synkhronos._plan.rows import edges
from synkhronos.extensions._step.step_report import StepReport
from synkhronos.training._run.position import Position
from synkhronos.training.optimizers import skips_in

_MOST_ROWS = 5  # that are looked for
_MOST_SKIPPED = 5  # steps in a row

Latest = tuple[tuple[Any, ...], object]


class Guard:
    """Looks at each step: whether `guarded` has left it out, and whether the loss is finite."""

    def __init__(self, train: Any, skips: bool, folder: Path | None) -> None:
        self._train = train  # with the method `gradients`, if it is `repeatable`
        self._skips = skips  # up to five steps in a row may be left out
        self._folder = folder  # for the rows that are found
        self._counts = skips_in(train.state)
        self._in_a_row = 0
        self._statistics: list[tuple[Any, object]] = []
        self.skipped = self._counted()  # steps that were left out so far, also in earlier runs

    @property
    def counts(self) -> bool:
        """Whether steps can be left out and counted."""
        return bool(self._counts) and self._skips

    def before_step(self) -> None:
        """Hold on to values that steps change beside those of the rule, such as running means.

        Call it right before each step: callbacks, too, set such variables.
        """
        if self._counts:
            self.skipped = self._counted()
            # a step replaces these arrays, and does not write to them
            self._statistics = [(v, v.container.storage[0]) for v in self._train.settings]

    def left_out(
        self, report: StepReport, position: Position, latest: Latest, say: Callable[[str], None]
    ) -> bool:
        """Whether the rule has left the step out; raises NonFinite if that is not allowed.

        Parameters
        ----------
        report : StepReport
            Of the step, which `position` does not contain yet.
        position : Position
        latest : tuple
            Its inputs, and the rows of them.
        say : callable
        """
        if (found := self._counted()) != self.skipped:
            self.skipped = found
            self._in_a_row += 1
            self._restore_statistics()
            if not self._skips or self._in_a_row > _MOST_SKIPPED:
                self._train.take_back()
                self._raise_held(position, latest)
            step = position.step + report.steps
            say(f"step {step}: the gradient is not finite; the step was left out")
            return True
        self._in_a_row = 0
        return False

    def check_loss(self, report: StepReport, position: Position) -> None:
        """Raise NonFinite if the loss of a step that was made, and is counted, is not finite."""
        if not math.isfinite(report.loss):
            raise NonFinite(
                f"step {position.step} of epoch {position.epoch + 1}: the loss is {report.loss}, "
                "and the step has changed the parameters. Restore a checkpoint; to find the rows, "
                "make the update rule guarded",
                position.step,
                position.epoch,
            )

    def _counted(self) -> int:
        return sum([int(count.container.storage[0]) for count in self._counts])

    def _restore_statistics(self) -> None:
        for variable, value in self._statistics:
            if variable.container.storage[0] is not value:
                variable.set_value(value)

    def _raise_held(self, position: Position, latest: Latest) -> None:
        args, batch = latest
        order = np.arange(len(args[0])) if batch is None else np.asarray(batch)
        rows = bad_rows(self._train, args, order)
        found = ""
        if rows:
            numbers = ", ".join(map(str, rows))
            where = "batch" if batch is None else "data"
            found = f" It comes from row{'s' * (len(rows) > 1)} {numbers} of the {where}"
            found += self._ranks_of(rows, order)
            if self._folder is not None:
                found += f", which {save_rows(self._folder, position.step, args, rows)} holds"
            found += "."
        raise NonFinite(
            f"step {position.step} of epoch {position.epoch + 1}: the gradient is not finite."
            f"{found} All variables have the values of before the step: lower the rate, clip "
            'gradients, or leave these rows out; guard="skip" leaves out such steps',
            position.step,
            position.epoch,
            rows,
        )

    def _ranks_of(self, rows: Sequence[int], order: np.ndarray) -> str:
        members = self._train.size
        if members == 1:
            return ""
        borders = edges(len(order), members)[1:]
        places = [int(np.flatnonzero(order == row)[0]) for row in rows]
        ranks = sorted({int(np.searchsorted(borders, place, side="right")) for place in places})
        return f" (rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))})"


def bad_rows(train: Any, args: tuple[object, ...], order: np.ndarray) -> list[int]:
    """Find the rows whose loss has a gradient that is not finite, by halving the batch.

    At most five are found; and none if only several rows together overflow.
    """
    found: list[int] = []
    stack = [order]
    while stack and len(found) < _MOST_ROWS:
        rows = stack.pop()
        gradients = train.gradients(*args, batch=rows)
        if all(bool(np.isfinite(g).all()) for g in gradients):
            continue
        if len(rows) == 1:
            found.append(int(rows[0]))
        else:
            half = len(rows) // 2
            stack += [rows[half:], rows[:half]]
    return found


def save_rows(folder: Path, step: int, args: tuple[object, ...], rows: list[int]) -> Path:
    """Write rows of the inputs to nonfinite-STEP.npz: `rows`, and `input0`, `input1`, ..."""
    place = folder / f"nonfinite-{step}.npz"
    arrays: dict[str, Any] = {f"input{i}": np.asarray(a)[rows] for i, a in enumerate(args)}
    held = io.BytesIO()
    np.savez(held, rows=np.asarray(rows, np.int64), **arrays)
    files.replace(place, held.getvalue())
    return place
