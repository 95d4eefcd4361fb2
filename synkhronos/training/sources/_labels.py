"""What `classes` may be: the number of classes, or their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synkhronos._checks import check_integer, is_integer, shown
from synkhronos._errors import InputError, InputTypeError


def check_classes(what: str, value: Any) -> int | tuple[str, ...] | None:
    """The number of classes, or the names of classes in the order of their numbers."""
    if value is None:
        return None
    if is_integer(value):
        return check_integer(f"{what}: classes", value, 1)
    several = isinstance(value, Sequence) and not isinstance(value, str)
    names = tuple(name for name in value if isinstance(name, str)) if several else ()
    if not names or len(names) < len(value):
        raise InputTypeError(
            f"{what}: classes={shown(value)}: give the number of classes, or a list of their names"
        )
    if len(set(names)) < len(names):
        raise InputError(f"{what}: classes={shown(value)} has a name twice")
    return names
