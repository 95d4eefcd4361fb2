"""Lines about a run for its user: its begin, its progress, each epoch, and where time went."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from synkhronos._api.report import Report
from synkhronos._compiling.progress import SOON, spent
from synkhronos._errors import InputError
from synkhronos.extensions._step.training_function import TrainingFunction
from synkhronos.training._directions import WORDS, Mode
from synkhronos.training._record.console import Console, Told
from synkhronos.training._run.feeds import Feed
from synkhronos.training._run.position import Position

_SLOW_READING = 0.1  # of the time, from which on it is named first
_SMALL_STEPS = 0.5  # of the time between steps, from which on batches are small


class Progress:
    """Shows a run by its console."""

    def __init__(
        self, train: TrainingFunction, feed: Feed, position: Position, epochs: int, enabled: bool
    ) -> None:
        # rates and the time that is left are those of training, and compiling comes once
        self.console = Console(enabled=enabled, clock=lambda: time.monotonic() - spent())
        self._train = train
        self._feed = feed
        self._position = position
        self._epochs = epochs
        self._validated: dict[str, float] = {}
        self._first = 0  # the step at which the run began
        self._aside = 0.0  # seconds between two steps, but not of training
        self._stepped = False
        self._compiling: float | None = None
        self._began = time.monotonic()

    def begin(self, folder: Path | None, apart: bool, watched: Mapping[str, Mode]) -> None:
        """Say what is trained, by whom, on what, and which values callbacks look for."""
        train, batches, step = self._train, self._feed.batches, self._position.step
        weights = sum(int(np.prod(np.shape(p.get_value(borrow=True)))) for p in train.params)
        state = sum(np.asarray(v.get_value(borrow=True)).nbytes for v in train.state)
        parts = [
            f"{weights:,} weights, {state / 1e6:.1f} MB of rule state",
            f"{train.size} member{'s' * (train.size > 1)}",
            f"batch {batches.size:,}{' of each member' * apart} of {batches.n:,} rows",
            f"seed {batches.seed}",
        ]
        if folder is not None:
            parts.append(str(folder))
        self._first = step
        if step:
            parts.append(f"resumed at step {step:,}")
        self.console.banner([" | ".join(parts)])
        if watched:
            each = (f"{name}: {WORDS[mode]} is better" for name, mode in watched.items())
            self.console.line(", ".join(each))
        if not train.compiled:
            self._compiling = time.monotonic()

    def step(self) -> None:
        """Show how far the run is."""
        position = self._position
        if not self._stepped:
            self._stepped = True
            with contextlib.suppress(InputError):
                self._train.report()  # of earlier runs, and the time since then
        if self._compiling is not None:
            seconds, self._compiling = time.monotonic() - self._compiling, None
            if seconds > SOON:
                self.console.line(f"compiling {self._train.name} took {seconds:.1f} s")
        epoch, done, n = position.epoch + 1, position.rows, self._feed.batches.n
        told = Told(epoch, self._epochs, done, n, position.all_rows, self._values)
        self.console.progress(told)

    def note(self) -> str:
        """How far the run is, for those who watch the group from outside."""
        position, values = self._position, self._values().items()
        done = 100 * position.rows / max(1, self._feed.batches.n)
        return ", ".join(
            [
                f"fit: epoch {position.epoch + 1} of {self._epochs}, {done:.0f} %",
                f"step {position.step:,}",
                *(f"{name} {value:.4g}" for name, value in values),
            ]
        )

    def aside(self, seconds: float) -> None:
        """Count time between two steps that was spent on validation, callbacks, or checkpoints."""
        self._aside += seconds

    def _values(self) -> Mapping[str, float]:
        losses = self._position.known_losses
        if len(losses) > 1:
            del losses["loss"]  # a mean of different functions
        return {**losses, **self._validated}

    def epoch(self, values: Mapping[str, object]) -> None:
        """Show the values of an epoch."""
        numbers = {k: v for k, v in values.items() if isinstance(v, float) and k != "seconds"}
        self._validated = {k: v for k, v in numbers.items() if k.startswith("val_")}
        text = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        number = f"{self._position.epoch + 1}/{self._epochs}"
        self.console.line(f"epoch {number}: {text}, {values['seconds']:.1f} s")

    def end(self, reason: str) -> None:
        """Say why the run has ended, where its time went, and what would make it faster."""
        text = f"ended after {self._position.step:,} steps: {reason}"
        if self._position.step == self._first:
            made = f"; {self._position.epoch} epochs were made before"
            self.console.line(text + made + ", and epochs= counts them" * (reason == "epochs"))
            return
        with contextlib.suppress(InputError):  # no step was measured
            report = self._report()
            shares = {
                "compute": report.share("scatter", "compute"),
                "exchange": report.share("copy", "reduce", "update"),
                "wait": report.share("wait"),
                "between steps": report.share("between"),
            }
            reading = self._feed.waited / max(time.monotonic() - self._began, 1e-9)
            if self._feed.fixed is None:
                shares["of it reading"] = reading
            split = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
            text += f"; {split}. {self._hint(report, reading, shares['between steps'])}"
        self.console.line(text.rstrip())

    def _report(self) -> Report:
        """The steps of the run, without the time aside."""
        report = self._train.report()
        aside = self._aside / report.calls
        between = tuple(max(0.0, seconds - aside) for seconds in report.seconds["between"])
        return replace(report, seconds={**report.seconds, "between": between})

    def _hint(self, report: Report, reading: float, between: float) -> str:
        if reading > _SLOW_READING:
            return (
                "Members waited for rows: read more batches ahead, from faster files, or once: "
                'read="memory".'
            )
        if between > _SMALL_STEPS:
            enough = report.enough_rows
            size = (
                ""
                if enough is None
                else f": with {enough:,} rows, members compute 80 % of the time"
            )
            return f"Steps are short beside what surrounds them; use larger batches{size}."
        return str(report.verdict)
