"""Keeps the warnings of a run: those of Python, and those that this package logs."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from synkhronos._warnings import log

_LONGEST = 4000  # characters of a kept warning


@contextlib.contextmanager
def kept_warnings(keep: Callable[[str, str], None]) -> Iterator[None]:
    """A context in which a function is told of each warning, which is shown as before.

    Its arguments are what has warned (the category of Python's warning, the level of a log record)
    and the text. It leaves out warnings that it cannot keep, as in a fork of this process: a
    warning fails no run.
    """

    def tell(what: str, text: Callable[[], str]) -> None:
        with contextlib.suppress(Exception):
            keep(what, text()[:_LONGEST])

    def heard(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            tell(record.levelname, record.getMessage)
        return True

    show = warnings.showwarning

    def shown(message: Any, category: type[Warning], *place: Any, **others: Any) -> None:
        tell(category.__name__, message.__str__)
        show(message, category, *place, **others)

    # a filter, since a handler would end the printing of warnings by logging's last resort
    log.addFilter(heard)
    warnings.showwarning = shown
    try:
        yield
    finally:
        if warnings.showwarning is shown:  # else another one has come in its place
            warnings.showwarning = show
        log.removeFilter(heard)
