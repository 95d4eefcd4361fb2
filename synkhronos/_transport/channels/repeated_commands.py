"""Commands that are sent again: the second time, only a number travels.

The sender compares by identity. Both ends keep the objects, so an identity is not reused while the
sender knows it.
"""

from __future__ import annotations

_REMEMBERED = 256  # commands; a newer one takes the number of the oldest


class Repeatable:
    """A command as a channel sees it; the engine's commands derive from it."""

    repeats = False  # the very same object may be posted again, as one word


class SentCommands(dict[int, tuple[int, Repeatable]]):
    """The sender's side: from the `id` of a command to its number and the command itself.

    It is a dict so that a look-up costs no call of a Python function.
    """

    def __init__(self) -> None:
        self._ids: dict[int, int] = {}  # by number
        self._next = 0

    def add(self, command: Repeatable) -> int:
        """Give a command that is about to be sent a number from 1; 0: it is never sent again."""
        if not command.repeats:
            return 0
        number = self._next % _REMEMBERED + 1
        self._next += 1
        self.pop(self._ids.get(number, 0), None)
        self._ids[number] = id(command)
        self[id(command)] = number, command
        return number


class ReceivedCommands(dict[int, object]):
    """The receiver's side: from a number to the command that it stands for."""

    def add(self, number: int, command: object) -> None:
        """Keep a command that may be sent again."""
        if number:
            self[number] = command
