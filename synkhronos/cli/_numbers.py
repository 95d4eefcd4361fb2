"""Numbers on command lines, as `add_argument` takes types."""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

from synkhronos._checks import check_integer, check_number
from synkhronos._errors import InputError


def _read(make: type, check: Callable[..., object], limits: dict[str, float], text: str) -> object:
    value: object = text
    with contextlib.suppress(ValueError):
        value = make(text)
    try:
        return check("", value, **limits)
    except InputError as exc:
        raise argparse.ArgumentTypeError(str(exc).removeprefix("=")) from None


def integers(least: int) -> Callable[[str], Any]:
    """The type of integers that are not less."""
    return functools.partial(_read, int, check_integer, {"least": least})


def numbers(**limits: float) -> Callable[[str], Any]:
    """The type of numbers within the limits of `check_number`."""
    return functools.partial(_read, float, check_number, limits)


count = integers(1)
seconds = numbers(above=0, most=math.inf)
