"""Descriptors that are looked at before they are written to or closed.

A program may close those of others, as `os.closerange` does, and open files that get their numbers.
"""

from __future__ import annotations

import os
from typing import Self


class Descriptor(int):
    """An open descriptor of this process, with the file that it was opened for.

    All eventfds are one file to the kernel, and so are pidfds before Linux 6.9.

    >>> ours = Descriptor(os.memfd_create("an example"))
    >>> ours.is_ours
    True
    >>> os.close(ours); another = os.open(os.devnull, os.O_RDONLY)
    >>> another == ours, ours.is_ours
    (True, False)
    >>> ours.close(); os.close(another)
    """

    _file: tuple[int, int]

    def __new__(cls, number: int) -> Self:
        made = super().__new__(cls, number)
        made._file = _file_of(number)
        return made

    @property
    def is_ours(self) -> bool:
        """Whether it is still open, and of the same file; 1 to 3 us."""
        try:
            return _file_of(self) == self._file
        except OSError:
            return False

    def close(self) -> None:
        """Close it, unless the number belongs to another file by now."""
        if self.is_ours:
            os.close(self)


def _file_of(number: int) -> tuple[int, int]:
    found = os.fstat(number)
    return found.st_dev, found.st_ino
