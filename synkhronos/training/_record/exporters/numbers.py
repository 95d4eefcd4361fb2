"""The numbers of a line of the record, by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from synkhronos.training._record.run_folder import is_number

MANY = 64  # numbers of a list; a longer one, such as a large table of confusions, is left out
_OWN = ("kind", "time", "step", "epoch")


def numbers_of(line: Mapping[str, object]) -> dict[str, float]:
    """The numbers and truth values of a line; those in objects and lists by their path."""
    return {
        name: float(value)
        for key, item in line.items()
        if key not in _OWN
        for name, value in _named(key, item)
    }


def finite(value: object, otherwise: float) -> float:
    """A number that a step or a time can be, or another one."""
    return value if is_number(value) and math.isfinite(value) else otherwise


def _named(name: str, value: object) -> Iterator[tuple[str, int | float]]:
    if isinstance(value, bool) or is_number(value):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named(f"{name}/{key}", item)
    elif isinstance(value, list) and len(value) <= MANY:
        for i, item in enumerate(value):
            yield from _named(f"{name}/{i}", item)
