"""What a member keeps of functions and loaders beside their compiled code, by their numbers."""

from __future__ import annotations

from typing import Any


class Installed:
    """What one member keeps, by the number of a function or loader; each user knows the class.

    Examples
    --------
    >>> installed = Installed()
    >>> installed.keep(3, [1.0])
    >>> installed.of(list, 3), installed.find(list, 4), len(installed)
    ([1.0], None, 1)
    """

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, number: int, what: object) -> None:
        """Keep something, in place of what was kept by this number."""
        self._kept[number] = what

    def of[T](self, kind: type[T], number: int) -> T:
        """What is kept by a number."""
        found = self._kept[number]
        assert isinstance(found, kind), f"{number}: {type(found).__name__}, not {kind.__name__}"
        return found

    def find[T](self, kind: type[T], number: int) -> T | None:
        """What is kept by a number; None if nothing is, as after a restart."""
        return self.of(kind, number) if number in self._kept else None

    def forget(self, number: int) -> None:
        """Drop what is kept by a number, if anything is."""
        self._kept.pop(number, None)
