"""The error of a command line that asks for what is not possible."""

from __future__ import annotations


class UsageError(Exception):
    """The command line is wrong; nothing was started."""
