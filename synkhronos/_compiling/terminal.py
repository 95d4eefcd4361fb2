"""One line of a terminal that is drawn over and over, below all that is printed."""

from __future__ import annotations

import os
import unicodedata
from typing import Any, TextIO

# ECMA-48
ERASE = "\r\x1b[2K"  # carriage return, erase in line
CLEAR = "\x1b[2J\x1b[H"  # erase in page, cursor to the first line
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"  # select graphic rendition


class Line:
    """A line of a stream, which replaces the one drawn before.

    The cursor stands at its beginning, so that the next text, of whoever writes it, replaces it.

    Parameters
    ----------
    stream : text stream or None
        None: nothing is written.
    dim : bool
        Whether the terminal shows it less bright.
    """

    def __init__(self, stream: TextIO | None, dim: bool = False) -> None:
        self._stream = stream
        self._form = f"{_DIM}{{}}{_PLAIN}\r" if dim else "{}\r"
        self.shown = ""  # the text on the screen; empty after `erase`
        self.read = stream is not None  # false once nobody reads the stream any more

    def draw(self, text: str) -> None:
        """Replace the line by a text of at most `width` columns, without control characters."""
        self.erase()
        self.write(self._form.format(text))
        self.shown = text

    def erase(self) -> None:
        """Take the line away."""
        if self.shown:
            self.shown = ""
            self.write(ERASE)

    def write(self, text: str) -> None:
        """Write to the stream; one that nobody reads any more ends the showing, no more."""
        if self._stream is None:
            return
        try:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                encoding = self._stream.encoding or "ascii"
                self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):  # its reader has ended, or it is closed
            self.read = False

    @property
    def width(self) -> int:
        """Columns that it may fill; in the last one, some terminals begin a new line."""
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns if self._stream else 0
        except (OSError, ValueError, AttributeError):  # not a file of the system, or closed
            columns = 0
        return (columns or 80) - 1


def is_terminal(stream: Any) -> bool:
    """Whether a person reads a stream."""
    try:
        return stream is not None and bool(stream.isatty())
    except (AttributeError, ValueError):  # not a file, or closed
        return False


def can_redraw(stream: Any) -> bool:
    """Whether a stream is a terminal that can replace a line."""
    return os.environ.get("TERM", "dumb") not in ("", "dumb") and is_terminal(stream)


def cells(text: str) -> int:
    """The columns that a terminal needs for a text (Unicode Standard Annex 11).

    >>> cells("abc"), cells("\u65e5\u672c")
    (3, 4)
    """
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def cut(text: str, width: int) -> str:
    """The beginning of a text that fits into `width` columns.

    >>> cut("abcdef", 4), cut("\u65e5\u672c", 3)
    ('abcd', '\u65e5')
    """
    while cells(text) > width:
        text = text[:-1]
    return text
