"""Errors of a command line that asks for what is not possible."""

from __future__ import annotations

import shlex


class UsageError(Exception):
    """The command line is wrong; nothing was started."""


def words_of(option: str, given: str) -> list[str]:
    """The words in the value of an option, as a shell divides them.

    Raises
    ------
    UsageError
        A quote has no end.
    """
    try:
        return shlex.split(given)
    except ValueError as exc:
        raise UsageError(f"{option} {given!r}: {exc}: give it as a shell would take it") from None
