"""The channel of a group of one: the master is the only member, so nothing is sent."""

from __future__ import annotations

import os

from synkhronos._transport.channels.channel import Channel, TimeLimits
from synkhronos._transport.channels.repeated_commands import Repeatable
from synkhronos._transport.processes.interrupts import Interrupts


class InlineChannel(Channel):
    """Only counts the commands."""

    def __init__(self) -> None:
        self._number = 0
        self._committed = 0
        self.interrupts = Interrupts()
        self.inspector = TimeLimits()

    @property
    def number(self) -> int:
        return self._number

    def post(self, command: Repeatable, what: str = "a command") -> int:
        del command, what
        self._number += 1
        return self._number

    def commit(self, number: int) -> None:
        self._committed = number

    def committed(self) -> bool:
        return self._committed == self._number

    def pid(self, rank: int) -> int:
        del rank
        return os.getpid()
