"""Plain Python values of what users and numpy call numbers."""

from __future__ import annotations

from typing import Any

from synkhronos._checks import shown
from synkhronos._errors import InputTypeError


def text_of(value: object) -> str:
    """A value of a table, as people read it."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def plain(name: str, value: Any) -> int | float | str | bool | None:
    """One number, text, truth value or None; numbers of numpy and JAX become Python's.

    Raises
    ------
    InputTypeError
        It is something else, such as an array of several elements.
    """
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
        if type(value).__name__ == "longdouble":  # which numpy leaves as it is
            value = float(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputTypeError(
        f"{name}={shown(value)}: a number, a text, True, False or None is needed; reduce an array "
        "to one number first"
    )
