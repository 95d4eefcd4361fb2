"""Callbacks with a state: they stop a run, keep its best values, or lower its rate.

These rules hold here:

* Only the master decides, from values over the rows of all members. So no member can go on when
  others stop.
* A decision follows from validations or epochs, and from the state. It never follows from a clock,
  so a resumed run decides as an unbroken one.
* All that a decision needs is in `state()`, as JSON, which has no infinite numbers. A run that has
  ended by a decision has still ended after a restart: `why_ended` says it from the state.
* A value that is not a number is not better than any other. Nor is it the best one so far: values
  after it are compared with the best one before it.
* `_run.watch` has the rules of all that look at a value: a callback belongs to one run, and its
  name and its direction are checked before the first step.
* `Best` changes variables only at the end of a completed run. After an exception or Ctrl-C they
  are those that the next `fit` goes on with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._checks import check_integer, check_number, shown
from synkhronos._errors import InputTypeError
from synkhronos._warnings import log
from synkhronos.training._directions import Mode
from synkhronos.training._run.best_checkpoints import BestCheckpoints
from synkhronos.training._run.events import Event
from synkhronos.training._run.watch import Watch

_SMOOTH = 0.2  # the weight of the newest value in a smoothed one


class EarlyStopping(Watch):
    """Stop the run when a value has not improved for some time.

    Parameters
    ----------
    metric : str
        Such as "val_loss".
    patience : int, at least 1
        Validations (or epochs, of a value without ``val_``) without a better value.
    mode : {"min", "max"}, optional
        Whether lower or higher values are better. Default: as the metric says. ``loss`` and the
        metrics of `training.metrics` do; of others it is needed, here or as ``Metric(mode=)``.
    by : float, not negative
        How much better a value must be to count.
    smooth : bool
        Look at a moving average, in which each value has the weight 0.2.

    Raises
    ------
    InputError, InputTypeError
        An argument is wrong.

    Examples
    --------
    >>> from synkhronos.training import EarlyStopping
    >>> EarlyStopping("val_loss", patience=5)
    <synkhronos EarlyStopping of val_loss, min>
    """

    def __init__(
        self,
        metric: str = "val_loss",
        patience: int = 5,
        mode: Mode | None = None,
        by: float = 0.0,
        smooth: bool = False,
    ) -> None:
        super().__init__(metric, mode)
        self.patience = check_integer("EarlyStopping: patience", patience, 1)
        self.by = float(check_number("EarlyStopping: by", by, 0))
        self.smooth = smooth

    def _begin(self) -> None:
        super()._begin()
        self.waited = 0
        self._smoothed: float | None = None

    def look(self, value: float, event: Event) -> None:
        """Count values that are not better."""
        if self.smooth and math.isfinite(value):
            before = value if self._smoothed is None else self._smoothed
            value = self._smoothed = before + _SMOOTH * (value - before)
        if self.better(value, self.best, self.by):
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if reason := self.why_ended():
            event.trainer.stop(reason)

    def why_ended(self) -> str:
        """Why it has stopped the run; empty while the run goes on."""
        if self.waited < self.patience:
            return ""
        return f"{self.metric} has not been better than {self.best:.6g} for {self.waited} times"

    def state(self) -> dict[str, object]:
        """The best value and how long it has been, for JSON."""
        return {"best": _text(self.best), "waited": self.waited, "smoothed": self._smoothed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.best, self.waited = float(state["best"]), int(state["waited"])
        self._smoothed = state["smoothed"]


class Target(Watch):
    """Stop the run when a value has reached a target.

    Parameters
    ----------
    metric : str
    value : float
    mode : {"min", "max"}, optional
        "min": stop below the target; "max": above it. Default as for `EarlyStopping`.

    Raises
    ------
    InputError, InputTypeError
        An argument is wrong.

    Examples
    --------
    >>> from synkhronos.training import Target
    >>> Target("val_accuracy", 0.97)
    <synkhronos Target of val_accuracy, max>
    """

    def __init__(self, metric: str, value: float, mode: Mode | None = None) -> None:
        super().__init__(metric, mode)
        self.value = float(check_number("Target: value", value))

    def _begin(self) -> None:
        super()._begin()
        self._reached: float | None = None

    def look(self, value: float, event: Event) -> None:
        """Stop at the target."""
        if self._is_reached(value):
            self._reached = value
            event.trainer.stop(self.why_ended())

    def _is_reached(self, value: float) -> bool:
        return self.better(value, self.value) or value == self.value

    def why_ended(self) -> str:
        """Why it has stopped the run; empty while the run goes on, as with another target."""
        if self._reached is None or not self._is_reached(self._reached):
            return ""
        return f"{self.metric} is {self._reached:.6g}, the target was {self.value:.6g}"

    def state(self) -> dict[str, object]:
        """The value that has reached the target, if any, for JSON."""
        return {"reached": None if self._reached is None else _text(self._reached)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._reached = None if state["reached"] is None else float(state["reached"])


class Best(Watch):
    """Keep the values with the best metric: as checkpoints, or in memory if the run has no folder.

    Parameters
    ----------
    metric : str
    keep : int, at least 1
        How many checkpoints, in the folder "best" of the run's folder; of a further `Best` in
        "best-lowest-METRIC" or "best-highest-METRIC". In memory there is one.
    mode : {"min", "max"}, optional
        As for `EarlyStopping`.
    restore : bool
        At the end of the run, give the variables the best values. After an exception or Ctrl-C
        they stay as they are.

    Attributes
    ----------
    kept : list of (float, int)
        Values and steps of what is kept, the best one first.

    Raises
    ------
    InputError, InputTypeError
        An argument is wrong.

    Notes
    -----
    Cost: that of `Checkpoints.save` for each better value; in memory, a copy of all variables.

    Examples
    --------
    >>> from synkhronos.training import Best
    >>> Best("val_acc", keep=3)
    <synkhronos Best of val_acc, max>
    """

    def __init__(
        self,
        metric: str = "val_loss",
        keep: int = 1,
        mode: Mode | None = None,
        restore: bool = False,
    ) -> None:
        super().__init__(metric, mode)
        self.keep = check_integer(f"{type(self).__name__}: keep", keep, 1)
        self.restore_at_end = restore

    def _begin(self) -> None:
        super()._begin()
        self.kept: list[tuple[float, int]] = []
        self._files: BestCheckpoints | None = None
        self._values: dict[SharedVariable, object] = {}

    @property
    def path(self) -> Path | None:
        """The folder of the best checkpoint; None without one."""
        if self._files is None or not self.kept:
            return None
        return self._files.place(self.kept[0][1])

    def on_start(self, event: Event) -> None:
        """Open the folder, and count what this run has kept there."""
        super().on_start(event)
        assert self.mode is not None
        if self._files is None:
            self._files = BestCheckpoints.of(event.trainer, self.metric, self.mode, self)
        if self._files is None:
            return
        self.kept = self._files.kept
        if later := sorted(step for _, step in self.kept if step > event.step):
            log.warning(
                "Best of %s: %s has checkpoints of steps after %d, which count: %s",
                *(self.metric, self._files.folder, event.step, ", ".join(map(str, later))),
            )

    def look(self, value: float, event: Event) -> None:
        """Keep the values if the metric is one of the best."""
        most = self.keep if self._files is not None else 1
        if not math.isfinite(value):
            return
        if len(self.kept) >= most and not self.better(value, self.kept[most - 1][0]):
            return
        if self._files is None:
            self._values = event.trainer.values()
            self.kept = [(value, event.step)]
        else:
            self._files.add(value, event.step, event.epoch, most)
            self.kept = self._files.kept

    def on_end(self, event: Event) -> None:
        """Give the variables the best values, if the run has ended normally."""
        if not (self.restore_at_end and self.kept and event.trainer.completed):
            return
        if self._files is not None:
            self._files.restore()
        for variable, value in self._values.items():
            variable.set_value(value)

    def state(self) -> dict[str, object]:
        """Values and steps of the checkpoints, for JSON and its readers."""
        return {"kept": [[value, step] for value, step in self.kept if self._files is not None]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing is to do: the folder says what is kept."""


class Plateau(Watch):
    """Lower a rate when a value has not improved for some time.

    Parameters
    ----------
    rate : SharedVariable
        A shared scalar of floats that the update rule reads, such as its learning rate, or a factor
        of it. It is saved in checkpoints.
    metric : str
    factor : float, more than 0 and less than 1
    patience : int, at least 1
        Validations without a better value, after which the rate is multiplied by `factor`.
    least : float
        The rate is not lowered below it.
    mode : {"min", "max"}, optional
        As for `EarlyStopping`.

    Raises
    ------
    InputError, InputTypeError
        An argument is wrong.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> from synkhronos.training import Plateau
    >>> rate = pytensor.shared(np.float32(1e-3), name="rate")
    >>> Plateau(rate, "val_loss", factor=0.5, patience=3)
    <synkhronos Plateau of val_loss, min>
    """

    _example = '{name}(rate, "{metric}", mode="min")'

    def __init__(
        self,
        rate: SharedVariable,
        metric: str = "val_loss",
        factor: float = 0.1,
        patience: int = 5,
        least: float = 0.0,
        mode: Mode | None = None,
    ) -> None:
        super().__init__(metric, mode)
        kind = getattr(rate, "type", None)
        if not isinstance(rate, SharedVariable) or getattr(kind, "ndim", None) != 0:
            raise InputTypeError(
                f"Plateau: rate={shown(rate)} is not a shared scalar: make one, as in "
                "pytensor.shared(np.float32(1e-3)), and give it to the update rule"
            )
        self.rate = rate
        self.factor = float(check_number("Plateau: factor", factor, above=0, below=1))
        self.patience = check_integer("Plateau: patience", patience, 1)
        self.least = float(check_number("Plateau: least", least, 0))

    def _begin(self) -> None:
        super()._begin()
        self.waited = 0

    def look(self, value: float, event: Event) -> None:
        """Count values that are not better, and lower the rate."""
        if self.better(value, self.best):
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited < self.patience:
            return
        self.waited = 0
        before = float(self.rate.get_value())
        new = max(before * self.factor, self.least)
        if new < before:
            self.rate.set_value(np.asarray(new, self.rate.type.dtype))
            event.trainer.say(
                f"{self.metric} has not improved for {self.patience} times: "
                f"{self.rate.name or 'the rate'} is {new:.3g} now"
            )

    def state(self) -> dict[str, object]:
        """The best value and how long it has been, for JSON."""
        return {"best": _text(self.best), "waited": self.waited}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.best, self.waited = float(state["best"]), int(state["waited"])


def _text(value: float) -> float | str:
    """A number for JSON, which has no infinite ones."""
    return value if math.isfinite(value) else repr(value)
