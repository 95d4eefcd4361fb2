"""Checks of arguments: one wording and one behaviour for all options.

A check returns the value as Python's own: integers, floats and bools of numpy are accepted. A bool
is not a number. A wrong type raises InputTypeError, and a value out of range InputError. The
message names the option, shows the value, and says what to give.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
import reprlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeGuard

from synkhronos._errors import InputError, InputTypeError


class _Short(reprlib.Repr):
    """Short texts of values, in which arrays are their dtype and shape."""

    def repr1(self, x: object, level: int) -> str:
        shape, size = getattr(x, "shape", None), getattr(x, "size", 0)
        if isinstance(shape, tuple) and isinstance(size, int) and size > _MANY:
            if len(text := repr(x)) < self.maxother and "\n" not in text:  # as for Data
                return text
            return f"<{type(x).__name__} {getattr(x, 'dtype', '')} {shape}>".replace("  ", " ")
        return super().repr1(x, level)


_MANY = 8  # elements of an array; of more, messages show only the shape
_SHORT = _Short(maxother=80, maxstring=60, maxlevel=3)


def shown(value: object) -> str:
    """A value as messages show it: short, and a large array by its dtype and shape."""
    return _SHORT.repr(value)


def plain(value: object) -> Any:
    """A scalar of numpy as Python's own; all else as it is."""
    numpy = sys.modules.get("numpy")  # nothing imports it before values of it are there
    if numpy is None or not isinstance(value, numpy.generic):
        return value
    found = value.item()
    return float(found) if type(found).__name__ == "longdouble" else found  # numpy leaves it


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer, and not a bool."""
    found = plain(value)
    return isinstance(found, int) and not isinstance(found, bool)


def check_integer(
    name: str, value: object, least: int | None = None, most: int | None = None, *, rest: str = ""
) -> int:
    """Check an integer within limits; `rest` ends the message.

    >>> check_integer("fit: epochs", 0, 1)
    Traceback (most recent call last):
    synkhronos.InputError: fit: epochs=0: give an integer of at least 1
    """
    found = value if type(value) is int else plain(value)  # spares calls about 200 ns
    fits = type(found) is int or is_integer(found)
    if fits and (least is None or found >= least) and (most is None or found <= most):
        return int(found)
    limits = _limits({"at least": least, "at most": most})
    kind = InputError if fits else InputTypeError
    raise kind(f"{name}={shown(value)}: give an integer{limits}{rest}")


def check_number(
    name: str,
    value: object,
    least: float = -sys.float_info.max,
    most: float = sys.float_info.max,
    *,
    above: float | None = None,
    below: float | None = None,
    rest: str = "",
) -> int | float:
    """Check a number within limits; those of `above` and `below` are excluded.

    >>> check_number("ema: decay", 1, 0, below=1)
    Traceback (most recent call last):
    synkhronos.InputError: ema: decay=1: give a number of at least 0 and less than 1
    """
    found = plain(value)
    fits = isinstance(found, numbers.Real) and not isinstance(found, bool)
    if (
        fits
        and least <= found <= most  # nor is nan
        and (above is None or found > above)
        and (below is None or found < below)
    ):
        return found if isinstance(found, int) else float(found)
    limits = _limits({"at least": least, "more than": above, "at most": most, "less than": below})
    kind = InputError if fits else InputTypeError
    raise kind(f"{name}={shown(value)}: give a number{limits}{rest}")


def _limits(given: dict[str, float | None]) -> str:
    """The limits that say something, as messages show them."""
    told = {word: n for word, n in given.items() if n is not None and abs(n) < sys.float_info.max}
    found = [f"{word} {n}" for word, n in told.items()]
    return " of " + " and ".join(found) if found else ""


def or_none[T](
    check: Callable[..., T], name: str, value: object, *limits: object, **more: object
) -> T | None:
    """Check as `check` does, unless the value is None."""
    return None if value is None else check(name, value, *limits, **more, rest=", or None")


def check_counts(**counts: int | None) -> None:
    """Check that each is None, or an integer of at least 1."""
    for name, count in counts.items():
        or_none(check_integer, name, count, 1)


def check_seconds(name: str, value: Any) -> int | float | None:
    """Check a number of seconds above 0, or None."""
    if value is None or (type(value) in (int, float) and value > 0):  # spares calls the rest
        return value
    return check_number(name, value, above=0, most=math.inf, rest=", in seconds, or None")


def check_flag(name: str, value: object) -> bool:
    """Check a bool."""
    found = plain(value)
    if not isinstance(found, bool):
        raise InputTypeError(f"{name}={shown(value)}: give True or False")
    return found


def check_word(name: str, value: object, words: Sequence[str | None]) -> object:
    """Check one of several words.

    >>> check_word("Loader: read", "nodes", ("master", "node", None))
    Traceback (most recent call last):
    synkhronos.InputError: Loader: read='nodes': use "master", "node" or None
    """
    if isinstance(value, str | None) and value in words:
        return value
    *first, last = [f'"{word}"' if word else "None" for word in words]
    raise InputError(f"{name}={shown(value)}: use {', '.join(first)} or {last}")


@dataclass(frozen=True)
class Checked:
    """The base of frozen dataclasses whose fields are checked when one is made."""

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, plain(getattr(self, f.name)))
        self._check()

    def _check(self) -> None:
        """Raise unless the fields make sense."""

    def _given(self, field: str) -> tuple[str, object]:
        """How messages name a field, and its value."""
        return f"{type(self).__name__}: {field}", getattr(self, field)


# Names of options in other libraries, and here.
_NAMES = {
    "acc": ("accuracy",),
    "batch_size": ("size", "batch"),
    "checkpoint_dir": ("folder",),
    "early_stopping": ("stop",),
    "learning_rate": ("rate", "optimizer"),
    "lr": ("learning_rate", "rate", "optimizer"),
    "n_jobs": ("members",),
    "n_parallel": ("members",),
    "n_rows": ("n",),
    "n_workers": ("members",),
    "num_workers": ("members",),
    "patience": ("stop",),
    "processes": ("members",),
    "update_rule": ("optimizer",),
    "validation_data": ("validation",),
    "workers": ("members",),
}


def closest(name: str, names: Sequence[str]) -> str | None:
    """The one of `names` that somebody who wrote `name` may have meant."""
    known = [n for n in _NAMES.get(name, ()) if n in names]
    return next(iter(known or difflib.get_close_matches(name, names, 1)), None)


def check_options(what: str, given: Iterable[str], maker: Callable[..., object]) -> None:
    """Refuse keywords that `maker` does not have."""
    known = inspect.signature(maker).parameters
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return
    names = [name for name in known if name != "self"]
    for name in given:
        if name not in names:
            meant = closest(name, names)
            hint = f"; did you mean {meant}=?" if meant else ""
            raise InputTypeError(f"{what}: no option {name!r}; there are {', '.join(names)}{hint}")


def options_checked[**P, R](maker: Callable[P, R]) -> Callable[P, R]:
    """Decorate what refuses keywords that it does not have, and says which there are."""
    what = maker.__qualname__.removesuffix(".__init__")

    @functools.wraps(maker)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        check_options(what, kwargs, maker)
        return maker(*args, **kwargs)

    return checked
