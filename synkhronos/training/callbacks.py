"""Callbacks with a state: they stop a run, keep its best values, or lower its rate.

These rules hold here:

* Only the master decides, from values over the rows of all members. So no member can go on when
  others stop.
* A decision follows from validations or epochs, and from the state. It never follows from a clock,
  so a resumed run decides as an unbroken one.
* All that a decision needs is in `state()`, as JSON, which has no infinite numbers.
* A value that is not a number is not better than any other. Nor is it the best one so far: values
  after it are compared with the best one before it.
* The name of a value is checked before the first step. Under a wrong name nothing would ever stop.
* `Best` changes variables only at the end of a completed run. After an exception or Ctrl-C they
  are those that the next `fit` goes on with.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._checks import check_integer, check_number, check_word, shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos.extensions._saving.checkpoints import Checkpoints
from synkhronos.training._run.events import Event

_SMOOTH = 0.2  # the weight of the newest value in a smoothed one


def is_lower_better(metric: str) -> bool:
    """Whether lower values of a metric are better, by its name.

    >>> is_lower_better("val_loss"), is_lower_better("val_accuracy")
    (True, False)
    """
    return bool(re.search("loss|error|mse|mae", metric))


class _Watch:
    """The base of callbacks that look at one value of each validation or epoch.

    Values with the prefix ``val_`` come with validations, all others with epochs.
    """

    def __init__(self, metric: str, mode: str | None) -> None:
        if not isinstance(metric, str) or not metric:
            raise InputTypeError(
                f"{type(self).__name__}: {shown(metric)} is not the name of a value, such as "
                '"val_loss"'
            )
        check_word(f"{type(self).__name__}: mode", mode, ("min", "max", None))
        self.metric = metric
        self.mode = mode or ("min" if is_lower_better(metric) else "max")
        self.best = math.inf if self.mode == "min" else -math.inf

    def __repr__(self) -> str:
        return f"<synkhronos {type(self).__name__} of {self.metric}, {self.mode}>"

    def on_start(self, event: Event) -> None:
        """Refuse a name that no value of this run has."""
        known = event.values["columns"]
        if self.metric not in known:
            missing = self.metric.startswith("val_") and not any(
                name.startswith("val_") for name in known
            )
            raise InputError(
                f"{type(self).__name__}: there is no value {self.metric!r}; there are "
                f"{', '.join(known)}{'; validation= gives others' * missing}"
            )

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

    def look(self, value: float, event: Event) -> None:
        raise NotImplementedError

    def better(self, value: float, than: float, by: float = 0.0) -> bool:
        """Whether a value is better than another; one that is not a number never is."""
        return value < than - by if self.mode == "min" else value > than + by


class EarlyStopping(_Watch):
    """Stop the run when a value has not improved for some time.

    Parameters
    ----------
    metric : str
        Such as "val_loss".
    patience : int, at least 1
        Validations (or epochs, of a value without ``val_``) without a better value.
    mode : {"min", "max"}, optional
        Which values are better. Default: lower ones of losses and errors, higher ones of others.
    by : float
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
        mode: Literal["min", "max"] | None = None,
        by: float = 0.0,
        smooth: bool = False,
    ) -> None:
        super().__init__(metric, mode)
        self.patience = check_integer(f"{type(self).__name__}: patience", patience, 1)
        self.by = float(by)
        self.smooth = smooth
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
        if self.waited >= self.patience:
            event.trainer.stop(
                f"{self.metric} has not been better than {self.best:.6g} for {self.waited} times"
            )

    def state(self) -> dict[str, object]:
        """The best value and how long it has been, for JSON."""
        return {"best": _text(self.best), "waited": self.waited, "smoothed": self._smoothed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.best, self.waited = float(state["best"]), int(state["waited"])
        self._smoothed = state["smoothed"]


class Target(_Watch):
    """Stop the run when a value has reached a target.

    Parameters
    ----------
    metric : str
    value : float
    mode : {"min", "max"}, optional
        "min": stop below the target; "max": above it. Default as for `EarlyStopping`.

    Examples
    --------
    >>> from synkhronos.training import Target
    >>> Target("val_accuracy", 0.97)
    <synkhronos Target of val_accuracy, max>
    """

    def __init__(
        self, metric: str, value: float, mode: Literal["min", "max"] | None = None
    ) -> None:
        super().__init__(metric, mode)
        self.value = float(value)

    def look(self, value: float, event: Event) -> None:
        """Stop at the target."""
        if self.better(value, self.value) or value == self.value:
            event.trainer.stop(f"{self.metric} is {value:.6g}, the target was {self.value:.6g}")


class Best(_Watch):
    """Keep the values with the best metric: as checkpoints, or in memory if the run has no folder.

    Parameters
    ----------
    metric : str
    keep : int, at least 1
        How many checkpoints, in the folder "best" of the run's folder. In memory there is one.
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
        mode: Literal["min", "max"] | None = None,
        restore: bool = False,
    ) -> None:
        super().__init__(metric, mode)
        self.keep = check_integer(f"{type(self).__name__}: keep", keep, 1)
        self.restore_at_end = restore
        self.kept: list[tuple[float, int]] = []
        self._files: Checkpoints | None = None
        self._values: dict[SharedVariable, object] = {}

    @property
    def path(self) -> Path | None:
        """The folder of the best checkpoint; None without one."""
        if self._files is None or not self.kept:
            return None
        return self._files.folder / f"step-{self.kept[0][1]:08d}"

    def on_start(self, event: Event) -> None:
        """Open the folder."""
        super().on_start(event)
        self._files = event.trainer.checkpoints_in("best")

    def look(self, value: float, event: Event) -> None:
        """Keep the values if the metric is one of the best."""
        most = self.keep if self._files is not None else 1
        if not math.isfinite(value):
            return
        if len(self.kept) >= most and not self.better(value, self.kept[most - 1][0]):
            return
        if self._files is None:
            self._values = event.trainer.values()
        else:
            self._files.save(event.step, **{self.metric: value, "epoch": event.epoch})
        found = [*((v, s) for v, s in self.kept if s != event.step), (value, event.step)]
        found.sort(key=operator.itemgetter(0), reverse=self.mode == "max")
        self.kept = found[:most]
        self._remove_others()

    def _remove_others(self) -> None:
        if self._files is not None:
            known = {step for _, step in self.kept}
            self._files.remove(*(s for s in self._files.steps() if s not in known))

    def on_end(self, event: Event) -> None:
        """Give the variables the best values, if the run has ended normally."""
        if not (self.restore_at_end and self.kept and event.trainer.completed):
            return
        if self._files is not None:
            self._files.restore(self.kept[0][1])
        for variable, value in self._values.items():
            variable.set_value(value)

    def state(self) -> dict[str, object]:
        """Values and steps of the checkpoints, for JSON; what is in memory is not in it."""
        return {"kept": [[value, step] for value, step in self.kept if self._files is not None]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; checkpoints that are not in it are removed."""
        self.kept = [(float(value), int(step)) for value, step in state["kept"]]
        self._remove_others()


class Plateau(_Watch):
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

    def __init__(
        self,
        rate: SharedVariable,
        metric: str = "val_loss",
        factor: float = 0.1,
        patience: int = 5,
        least: float = 0.0,
        mode: Literal["min", "max"] | None = None,
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
        self.patience = check_integer(f"{type(self).__name__}: patience", patience, 1)
        self.least = float(least)
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
