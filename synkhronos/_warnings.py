"""The log, warnings, and the line of the user's program that they name."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

from synkhronos._errors import InputError, SynkhronosWarning, printable

log = logging.getLogger("synkhronos")

_PACKAGE = os.path.join(os.path.dirname(__file__), "")


def place_of_user() -> str:
    """The file and line outside of this package that has called it, as messages show them."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return "an unknown line"
    folder, _, file = frame.f_code.co_filename.rpartition(os.sep)
    if "ipykernel_" in folder:  # the file of a cell is named by a hash
        return f"line {frame.f_lineno} of a notebook's cell"
    return f"{file}:{frame.f_lineno}"


_refused: ContextVar[tuple[type[SynkhronosWarning], str] | None] = ContextVar(
    "_refused", default=None
)


@contextlib.contextmanager
def refusing(category: type[SynkhronosWarning], cure: str) -> Iterator[None]:
    """A context in which warnings of a category are an InputError; `cure` ends its message."""
    token = _refused.set((category, cure))
    try:
        yield
    finally:
        _refused.reset(token)


def warn(text: str, category: type[SynkhronosWarning]) -> None:
    """Warn at the line outside of this package that has called it."""
    refused = _refused.get()
    if refused is not None and issubclass(category, refused[0]):
        raise InputError(f"{text}. {refused[1]}")
    warnings.warn(printable(text, kept="\n\t"), category, skip_file_prefixes=(_PACKAGE,))
