"""Commands that the other end remembers by a number, so that they travel as one word."""

from __future__ import annotations

from typing import Any

_REMEMBERED = 256


class Repeats:
    """What has been sent, by the very objects."""

    def __init__(self) -> None:
        self._sent: dict[int, tuple[int, Any]] = {}
        self._slots: dict[int, int] = {}
        self._next = 0

    def find(self, command: Any) -> int:
        """The number of a command that has been sent, or 0."""
        found = self._sent.get(id(command))
        return 0 if found is None else found[0]

    def remember(self, command: Any) -> int:
        """Give a command a number under which it can be sent again; 0: it never will be."""
        if not command.repeats:
            return 0
        slot = self._next % _REMEMBERED + 1
        self._next += 1
        self._sent.pop(self._slots.get(slot, 0), None)
        self._slots[slot] = id(command)
        self._sent[id(command)] = slot, command
        return slot

    def clear(self) -> None:
        """Forget all: the other end may not have understood the last one."""
        self._sent.clear()
