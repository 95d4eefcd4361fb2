"""Lines of the verbs of ``synk`` for people: names in them cannot steer a terminal."""

from __future__ import annotations

import sys

from synkhronos._errors import printable


def say(text: str) -> None:
    """Write lines to stdout."""
    sys.stdout.write(printable(text, kept="\n\t") + "\n")


def complain(text: str) -> None:
    """Write lines to stderr."""
    sys.stderr.write(printable(text, kept="\n\t") + "\n")
