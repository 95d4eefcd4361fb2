"""A terminal of this test's own, and what a person sees on it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import termios
import time
from typing import TextIO

from synkhronos._host.polling import readable

_PARTS = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|(.)", re.DOTALL)


class Screen:
    """A pseudo-terminal; its `stream` is what a program writes to.

    It knows the control sequences that this package writes, and fails at others.
    """

    def __init__(self, width: int = 80) -> None:
        self._master, screen = os.openpty()
        self.width = width
        fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        self.stream: TextIO = os.fdopen(screen, "w", encoding="utf-8", buffering=1)
        self.written = ""
        self._bytes = b""

    def close(self) -> None:
        """Close both ends; programs that write then get an error."""
        with contextlib.suppress(OSError):
            self.stream.close()
        os.close(self._master)

    def hang_up(self) -> None:
        """Close the user's end only."""
        os.close(self._master)
        self._master = os.open(os.devnull, os.O_RDONLY)

    def read(self) -> str:
        """All that was written so far."""
        until = time.monotonic() + 0.2  # another thread may write on and on
        while time.monotonic() < until and readable(self._master, seconds=0.03):
            self._bytes += os.read(self._master, 65536)
        self.written = self._bytes.decode()
        return self.written

    @property
    def lines(self) -> list[str]:
        """What is on the screen, without spaces at the ends; of the last, empty line nothing."""
        rows, row, column = [[" "] * self.width], 0, 0
        for numbers, letter, char in _PARTS.findall(self.read()):
            if letter == "K":
                assert numbers == "2", "only whole lines are erased"
                rows[row] = [" "] * self.width
            elif letter:
                assert letter == "m" or (numbers, letter) in (("?25", "h"), ("?25", "l")), letter
            elif char == "\r":
                column = 0
            elif char == "\n":
                row += 1
                rows += [[" "] * self.width] * (row == len(rows))
            else:
                assert char.isprintable(), repr(char)
                assert column < self.width, "a line is too long"
                rows[row][column] = char
                column += 1
        texts = ["".join(line).rstrip() for line in rows]
        return texts[:-1] if texts[-1] == "" else texts
