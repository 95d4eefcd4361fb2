"""Spans: what a member did from when to when, while its group is traced.

They are written to a ring in memory. A file would slow the calls that are to be looked at.
"""

from __future__ import annotations

import struct

import numpy as np

SPAN = np.dtype([("start", "<f8"), ("end", "<f8"), ("kind", "<i4"), ("number", "<i4")])
# Kinds below these are the phases of calls (`_engine.commands.base.PHASES`)
RUN, COLLECT, COMPILE = 16, 17, 18  # a member's part of a command; the wait for reports
NAMED = 32  # and above: names given by the master

_PACK = struct.Struct("<ddii").pack_into


class Spans:
    """The latest spans of one member."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity  # spans that are kept; the oldest are overwritten
        self._ring = bytearray(capacity * SPAN.itemsize)
        self._count = 0
        self.number = 0  # that of the command which runs: each span gets it
        self._kinds: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """Of the kinds from `NAMED` on."""
        return list(self._kinds)

    def add(self, start: float, end: float, kind: int) -> None:
        """Keep a span; seconds of the clock `time.perf_counter`."""
        at = self._count % self._capacity * 24
        _PACK(self._ring, at, start, end, kind, self.number)
        self._count += 1

    def add_command(self, start: float, end: float, name: str) -> None:
        """In the master: the whole of a command, of which other members know the number only."""
        self.add(start, end, self._kind(name))

    def add_named(self, start: float, end: float, name: str) -> None:
        """In the master: what is outside of commands, or around several."""
        command, self.number = self.number, 0
        self.add(start, end, self._kind(name))
        self.number = command

    def _kind(self, name: str) -> int:
        return self._kinds.setdefault(name, NAMED + len(self._kinds))

    def taken(self) -> tuple[bytes, int]:
        """The spans, the oldest first, and how many have been overwritten."""
        lost = max(0, self._count - self._capacity)
        if not lost:
            return bytes(self._ring[: self._count * SPAN.itemsize]), 0
        at = self._count % self._capacity * SPAN.itemsize
        return bytes(self._ring[at:] + self._ring[:at]), lost
