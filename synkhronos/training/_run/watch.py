"""The base of callbacks that look at one value of each validation or epoch.

These rules hold here:

* A callback belongs to one run. In another one it begins anew, and it does not come back: two runs
  that take turns would mix their values.
* All that it finds in a run is set by `_begin`, so a new run inherits nothing.
* Its direction is what the user says, else that of the metric. Without either it is refused.
* `check` changes nothing. It is called before the folder of the run is opened.
* The key of its state has the metric and the direction: values of others are never restored.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from synkhronos._checks import check_word, shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos.training._directions import Mode, usual_mode
from synkhronos.training._run.events import Event


class Watch(ABC):
    """Looks at one value: with the prefix ``val_`` it comes with validations, else with epochs."""

    _example = '{name}("{metric}", mode="min")'

    def __init__(self, metric: str, mode: Mode | None) -> None:
        if not isinstance(metric, str) or not metric:
            raise InputTypeError(
                f"{type(self).__name__}: {shown(metric)} is not the name of a value, such as "
                '"val_loss"'
            )
        check_word(f"{type(self).__name__}: mode", mode, ("min", "max", None))
        self.metric = metric
        # which values are better; None while it is not known
        self.mode = mode or usual_mode(metric)
        self._given = mode
        self._runs: list[str] = []  # by their tokens; the last one is the current one
        self._begin()

    def __repr__(self) -> str:
        mode = "" if self.mode is None else f", {self.mode}"
        return f"<synkhronos {type(self).__name__} of {self.metric}{mode}>"

    @property
    def state_key(self) -> str:
        """A part of the key of its state, which others of its class do not have."""
        return f"{self.metric} {self.mode}"

    def check(self, run: str, modes: Mapping[str, Mode | None]) -> Mode:
        """The direction in a run with these values, each with the direction of its metric.

        Raises
        ------
        InputError
            There is no such value, no direction, or the callback has gone on to another run.
        """
        name = type(self).__name__
        if self.metric not in modes:
            missing = self.metric.startswith("val_") and not any(
                value.startswith("val_") for value in modes
            )
            raise InputError(
                f"{name}: there is no value {self.metric!r}; there are "
                f"{', '.join(modes)}{'; validation= gives others' * missing}"
            )
        mode = self._given or modes[self.metric]
        if mode is None:
            example = self._example.format(name=name, metric=self.metric)
            raise InputError(
                f"{name}: it is not known whether lower or higher values of {self.metric} are "
                f'better: say it by mode="min" or "max", as in {example}'
            )
        if run in self._runs[:-1]:
            raise InputError(
                f"{name} of {self.metric}: another run has used it since: make one for each run"
            )
        return mode

    def on_start(self, event: Event) -> None:
        """Begin anew if this is another run."""
        run = event.trainer.token
        mode = self.check(run, event.values["modes"])
        if self._runs[-1:] != [run]:
            self._runs.append(run)
            self.mode = mode
            self._begin()

    def on_validated(self, event: Event) -> None:
        if self.metric.startswith("val_"):
            self._see(event)

    def on_epoch(self, event: Event) -> None:
        if not self.metric.startswith("val_"):
            self._see(event)

    def _see(self, event: Event) -> None:
        value = event.values[self.metric]
        if np.ndim(value):
            raise InputError(f"{type(self).__name__}: {self.metric} is an array, not a number")
        self.look(float(value), event)

    def _begin(self) -> None:
        """Forget what an earlier run has found."""
        # the best value so far; infinite before the first one
        self.best = math.inf if self.mode == "min" else -math.inf

    @abstractmethod
    def look(self, value: float, event: Event) -> None:
        """Act on a value."""

    def better(self, value: float, than: float, by: float = 0.0) -> bool:
        """Whether a value is better than another; one that is not a number never is."""
        return value < than - by if self.mode == "min" else value > than + by
