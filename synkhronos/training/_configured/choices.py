"""What a config names: functions of the user's modules, optimizers, schedules, rules, metrics."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytensor

from synkhronos import rules
from synkhronos._checks import closest, shown
from synkhronos._errors import BackendMissing, InputError, InputTypeError
from synkhronos.extensions import HalfPrecision, TopK, updates
from synkhronos.extensions._step.exchanges import Exchange
from synkhronos.training import metrics
from synkhronos.training.config import Config, Optimizer, named, optimizer_of
from synkhronos.training.net import Net
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
RULES = tuple(n for n in rules.__all__ if n not in ("Rule", "RoundRule", "FreeRule"))
EXCHANGES: dict[str, Any] = {"TopK": TopK, "HalfPrecision": HalfPrecision}
METRICS = tuple(name for name in metrics.__all__ if name != "Metric")
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
# what a config calls an argument of a schedule
_SHORT = {"steps": "total_steps", "final": "final_learning_rate"}


def function_of(text: str, base: str, path: str) -> Callable[..., Any]:
    """The function that "module:function" names; modules in the folder `base` come first.

    Raises
    ------
    InputError
        There is no such module or function.
    """
    module, _, name = text.partition(":")
    if not _FUNCTION.fullmatch(text):
        raise InputError(f'{path}: found {shown(text)}, give "module:function"')
    look_in(base)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name != module.partition(".")[0] and exc.name != module:
            raise  # of an import in the module
        raise InputError(
            f"{path}: there is no module {module!r} in {base}, nor is one installed"
        ) from None
    own = Path(base, *module.split("."))
    for file in (own.with_suffix(".py"), own / "__init__.py"):
        if file.exists() and not _is_of(found, file):
            raise InputError(
                f"{path}: {module!r} is {found.__file__} in this process, not {file}: give the "
                "module another name"
            )
    if not callable(getattr(found, name, None)):
        there = [n for n, v in vars(found).items() if callable(v) and not n.startswith("_")]
        there += getattr(found, "__all__", [])  # a package may import its names when they are used
        raise InputError(f"{path}: {module} has no function {name!r}{_meant(name, there)}")
    return getattr(found, name)


def look_in(base: str) -> None:
    """Let imports find modules of a folder first, from now on.

    Members need the same folder for what functions of these modules put into graphs, so this comes
    before the start of a group.
    """
    if base not in sys.path:
        sys.path.insert(0, base)


def _is_of(module: Any, file: Path) -> bool:
    place = getattr(module, "__file__", None)
    return place is not None and Path(place).resolve() == file.resolve()


def called(function: Callable[..., Any], arguments: Mapping[str, Any], path: str) -> Any:
    """What a function returns for arguments of a table.

    Raises
    ------
    InputError
        It does not take them.
    """
    check_arguments(function, arguments, path)
    return function(**arguments)


def check_arguments(
    function: Callable[..., Any], arguments: Mapping[str, Any], path: str, given: int = 0
) -> None:
    """Raise unless a function takes these arguments after `given` positional ones."""
    name = getattr(function, "__name__", repr(function))
    try:
        known = inspect.signature(function).parameters
    except ValueError:  # of some classes and functions that C code has made
        return
    names = list(known)[given:]
    if not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        for key in arguments:
            if key not in names:
                there = f"; there are {', '.join(names)}" if names else "; it takes none"
                raise InputError(
                    f"{path}.{key}: {name} has no such argument{_meant(key, names)}{there}"
                )
    for key in names:
        p = known[key]
        required = p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        if required and key not in arguments:
            raise InputError(f"{path}.{key}: missing, {name} needs it")


def _meant(name: str, names: Iterable[str]) -> str:
    meant = closest(name, list(names))
    return f"; did you mean {meant}?" if meant else ""


def rule_of(value: Any, path: str, base: str) -> rules.Rule | None:
    """The training rule that a name, or a table with a name, describes.

    Raises
    ------
    InputError
    """
    if value is None:
        return None
    name, arguments = named(value, path)
    if name not in RULES:
        raise InputError(
            f"{path}: there is no rule {name!r}{_meant(name, RULES)}; there are {', '.join(RULES)}"
        )
    kind = getattr(rules, name)
    known = [f.name for f in fields(kind)]
    made: dict[str, Any] = {}
    for key, given in arguments.items():
        if key not in known:
            raise InputError(
                f"{path}.{key}: {name} has no such argument{_meant(key, known)}; there are "
                f"{', '.join(known)}"
            )
        inner = f"{path}.{key}"
        if key == "centre":
            made[key] = Choice(optimizer_of(given, inner), inner, base).made(None)
        elif key in ("inside", "between"):
            made[key] = rule_of(given, inner, base)
        else:
            made[key] = given
    if kind is rules.Nodes:
        made.setdefault("inside", None)  # TOML has no word for it
    try:
        return kind(**made)
    except TypeError as exc:  # InputTypeError is one
        raise InputError(f"{path}: {exc}") from None
    except InputError as exc:
        raise InputError(f"{path}: {exc}") from None


def exchange_of(value: Any, path: str) -> Exchange | None:
    """The exchange of gradients that a name, or a table with a name, describes.

    Raises
    ------
    InputError
    """
    if value is None:
        return None
    name, arguments = named(value, path)
    if name not in EXCHANGES:
        raise InputError(
            f"{path}: there is no exchange {name!r}{_meant(name, EXCHANGES)}; there are "
            f"{', '.join(EXCHANGES)}"
        )
    try:
        found: Exchange = called(EXCHANGES[name], arguments, path)
    except InputError as exc:
        text = str(exc)
        raise InputError(text if text.startswith(path) else f"{path}: {text}") from None
    return found


class Choice:
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

    def made(self, steps: int | None, factor: Any = None) -> Callable[..., Any]:
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
            f"{path}: there is no {name!r}{_meant(name, known)}; there are {', '.join(known)}, or "
            '"module:function"'
        )

    def _schedule_of(self, name: str) -> Callable[..., Any]:
        path = f"{self._path}.schedule"
        if name not in SCHEDULES:
            raise InputError(
                f"{path}: there is no {name!r}{_meant(name, SCHEDULES)}; there are "
                f"{', '.join(SCHEDULES)}"
            )
        if self._settings.rate is None:
            raise InputError(f"{self._path}.rate: missing, the schedule {name} begins with it")
        return getattr(_pytensor_ml(), SCHEDULES[name])

    def _divided(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
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
                    f"{_meant(key, known)}; there are {', '.join(known)}"
                )
        return own, other

    def _timetable(self, steps: int | None) -> Callable[..., Any]:
        """The schedule: of the step, with the rise of the warm-up before it."""
        settings = self._settings
        assert self._schedule is not None
        names = _names(self._schedule)
        given: dict[str, Any] = {names[0]: settings.rate, **self._timed}
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

    def _check_rate(self, rate: Any) -> None:
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


def _names(function: Callable[..., Any] | None) -> list[str]:
    return [] if function is None else list(inspect.signature(function).parameters)


def _pytensor_ml() -> Any:
    try:
        from pytensor_ml import optim
    except ImportError:
        raise BackendMissing("pytensor-ml", "train") from None
    return optim


def shared_rate(rate: float | None, path: str) -> Any:
    """The rate as a shared scalar, which a callback can lower."""
    if rate is None:
        raise InputError(f"{path}.rate: missing, and the plateau lowers it: give a number")
    return pytensor.shared(np.asarray(rate, pytensor.config.floatX), name="rate")


def metrics_of(config: Config, net: Net) -> dict[str, Any]:
    """The metrics that a config names, of the network or of `training.metrics`; default: all its.

    Raises
    ------
    InputError
    """
    if config.metrics is None:
        return dict(net.metrics)
    found = {}
    for number, value in enumerate(config.metrics):
        path = f"metrics[{number}]"
        name, arguments = named(value, path)
        if name in net.metrics and not arguments:
            found[name] = net.metrics[name]
            continue
        if name not in METRICS:
            known = [*net.metrics, *METRICS]
            raise InputError(
                f"{path}: there is no metric {name!r}{_meant(name, known)}; there are "
                f"{', '.join(known)}"
            )
        outputs = net.outputs
        if isinstance(outputs, Sequence) and len(outputs) == 1:
            [outputs] = outputs
        if outputs is None:
            raise InputError(f"{path}: {name} compares outputs, and the network names none")
        maker = getattr(metrics, name)
        check_arguments(maker, arguments, path, given=2)
        try:
            found[name] = maker(outputs, net.inputs[-1], **arguments)
        except InputTypeError as exc:
            raise InputError(f"{path}: {exc}") from None
    return found
