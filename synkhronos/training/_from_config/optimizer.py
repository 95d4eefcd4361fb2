"""The optimizer of a config: an update rule by its name, with a rate that may follow a schedule."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytensor

from synkhronos._errors import InputError, needing
from synkhronos.extensions import updates
from synkhronos.training._from_config.functions import check_arguments, function_of, meant
from synkhronos.training.config import Optimizer
from synkhronos.training.optimizers import scheduled

OURS = tuple(name for name in updates.__all__ if hasattr(getattr(updates, name), "rule"))
THEIRS = ("adamw", "rprop")  # of pytensor-ml
SCHEDULES = {
    "constant": "constant_schedule",
    "cosine": "cosine_schedule",
    "exponential": "exponential_schedule",
    "linear": "linear_schedule",
    "onecycle": "linear_onecycle_schedule",
    "polynomial": "polynomial_schedule",
    "step": "step_decay",
}
# what a config calls an argument of a schedule
_SHORT = {"steps": "total_steps", "final": "final_learning_rate"}


class ConfiguredOptimizer:
    """The optimizer of a config.

    Parameters
    ----------
    settings : Optimizer
    path : str
        Of the settings in the config.
    base : str
        The folder of the user's modules.
    """

    def __init__(self, settings: Optimizer, path: str, base: str) -> None:
        self._settings = settings
        self._path = path
        self._makes = settings.name not in OURS  # a function of the rate that returns the rule
        self._maker = self._found(settings.name, base)
        self._schedule: Callable[..., Any] | None = None
        if settings.schedule is not None:
            self._schedule = self._schedule_of(settings.schedule)
        elif given := [
            k for k in ("steps", "warmup", "final") if getattr(settings, k) not in (None, 0)
        ]:
            [key, *_] = given
            raise InputError(f"{path}.{key}: for a schedule only: give schedule, too")
        self._own, self._timed = self._divided(settings.arguments)

    @property
    def lacks_steps(self) -> bool:
        """Whether its schedule needs the number of steps of the run."""
        takes = "total_steps" in _names(self._schedule) if self._schedule else False
        return takes and self._settings.steps is None

    def made(self, steps: int | None, factor: object = None) -> Callable[..., object]:
        """The update rule.

        Parameters
        ----------
        steps : int, optional
            Of the run: the default of the schedule's.
        factor : SharedVariable, optional
            The rate, which a callback changes.
        """
        rate: Any = self._settings.rate if factor is None else factor
        if self._schedule is not None:
            rate = self._timetable(steps)
        if self._makes:
            given = self._own if rate is None else {"learning_rate": rate, **self._own}
            check_arguments(self._maker, given, self._path)
            return self._maker(**given)
        self._check_rate(rate)
        if self._schedule is not None:
            return scheduled(self._maker, rate, **self._own)
        given = self._own if rate is None else {"learning_rate": rate, **self._own}
        return functools.partial(self._maker, **given)

    def _found(self, name: str, base: str) -> Callable[..., Any]:
        path = f"{self._path}.name"
        if name in OURS:
            return getattr(updates, name)
        if name in THEIRS:
            return getattr(_pytensor_ml(), name)
        if ":" in name:
            return function_of(name, base, path)
        known = [*OURS, *THEIRS]
        raise InputError(
            f"{path}: there is no {name!r}{meant(name, known)}; there are {', '.join(known)}, or "
            '"module:function"'
        )

    def _schedule_of(self, name: str) -> Callable[..., object]:
        path = f"{self._path}.schedule"
        if name not in SCHEDULES:
            raise InputError(
                f"{path}: there is no {name!r}{meant(name, SCHEDULES)}; there are "
                f"{', '.join(SCHEDULES)}"
            )
        if self._settings.rate is None:
            raise InputError(f"{self._path}.rate: missing, the schedule {name} begins with it")
        return getattr(_pytensor_ml(), SCHEDULES[name])

    def _divided(
        self, arguments: Mapping[str, object]
    ) -> tuple[dict[str, object], dict[str, object]]:
        """The arguments of the rule, and those of the schedule."""
        rule = [n for n in _names(self._maker) if n not in _NOT_IN_FILES]
        timed = [n for n in _names(self._schedule) if n not in _NOT_IN_FILES]
        anything = not _names(self._maker) or (self._makes and ":" in self._settings.name)
        own, other = {}, {}
        for key, value in arguments.items():
            if key in timed:
                other[key] = value
            elif key in rule or anything:
                own[key] = value
            else:
                known = ["rate", "schedule", "steps", "warmup", "final", *rule, *timed]
                raise InputError(
                    f"{self._path}.{key}: {self._settings.name} has no such argument"
                    f"{meant(key, known)}; there are {', '.join(known)}"
                )
        return own, other

    def _timetable(self, steps: int | None) -> Callable[..., object]:
        """The schedule: of the step, with the rise of the warm-up before it."""
        settings = self._settings
        assert self._schedule is not None
        names = _names(self._schedule)
        given: dict[str, object] = {names[0]: settings.rate, **self._timed}
        for key, value in (("steps", settings.steps or steps), ("final", settings.final)):
            if _SHORT[key] in names and value is not None:
                rest = value - settings.warmup if key == "steps" else value
                if key == "steps" and rest < 1:
                    raise InputError(
                        f"{self._path}.warmup: {settings.warmup} of {value} steps leave none"
                    )
                given[_SHORT[key]] = rest
            elif getattr(settings, key) is not None:
                raise InputError(
                    f"{self._path}.{key}: the schedule {settings.schedule} has no such argument; "
                    f"there are {', '.join(names[1:])}"
                )
        if "total_steps" in names and "total_steps" not in given:
            raise InputError(f"{self._path}.steps: missing, give an integer of at least 1")
        check_arguments(self._schedule, given, self._path)
        schedule = self._schedule(**given)
        if not settings.warmup:
            return schedule
        library = _pytensor_ml()
        rise = library.linear_schedule(0.0, settings.warmup, settings.rate)
        return library.join_schedules([rise, schedule], [settings.warmup])

    def _check_rate(self, rate: object) -> None:
        parameter = inspect.signature(self._maker).parameters["learning_rate"]
        if rate is None and parameter.default is parameter.empty:
            raise InputError(
                f"{self._path}.rate: missing, {self._settings.name} has no default: give a number"
            )


# arguments that a file cannot give, or gives in another way
_NOT_IN_FILES = (
    *("loss", "loss_or_grads", "params", "clip", "learning_rate", "peak_value", "namespace"),
    *("mask", "total_steps", "final_learning_rate"),
)


def _names(function: Callable[..., object] | None) -> list[str]:
    return [] if function is None else list(inspect.signature(function).parameters)


def _pytensor_ml() -> ModuleType:
    with needing("pytensor-ml", "train"):
        from pytensor_ml import optim
    return optim


def shared_rate(rate: float | None, path: str) -> Any:
    """The rate as a shared scalar, which a callback can lower."""
    if rate is None:
        raise InputError(f"{path}.rate: missing, and the plateau lowers it: give a number")
    return pytensor.shared(np.asarray(rate, pytensor.config.floatX), name="rate")
