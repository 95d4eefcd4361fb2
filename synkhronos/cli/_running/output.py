"""Passes the script's output on: the lines of the ranks to show, and those for rank-0.log."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection

from synkhronos._host.rank_logs import RankLogs

_RELAYED = re.compile(rb"\[rank (\d+)\] ")  # in front of what the master shows of a worker
_LONGEST = 1 << 16  # bytes of a line that are kept


class Output:
    """The way of the script's standard output and error output to those of this process.

    What is not relayed from a worker belongs to rank 0.

    Parameters
    ----------
    shown : collection of int, or None
        Ranks whose lines are shown; None: all.
    logs : RankLogs or None
        Gets the lines of rank 0. The workers' own are written by their node.
    """

    def __init__(self, shown: Collection[int] | None, logs: RankLogs | None) -> None:
        self._shown = shown
        self._logs = logs
        self._lines = {1: b"", 2: b""}  # the beginning of the next line of each stream
        self._done = {1: 0, 2: 0}  # bytes of the unfinished line that are shown already

    def feed(self, stream: int, data: bytes) -> None:
        """Take what the script has written to its descriptor 1 or 2."""
        *lines, rest = (self._lines[stream] + data).split(b"\n")
        for line in lines:
            self._finish(stream, line, b"\n")
        if len(rest) > _LONGEST:
            self._finish(stream, rest, b"")
            rest = b""
        self._lines[stream] = rest

    @property
    def unfinished(self) -> bool:
        """Whether the beginning of a line has not been shown."""
        return any(len(line) > self._done[stream] for stream, line in self._lines.items())

    def idle(self) -> None:
        """Nothing came for a while: show the beginning of a line, such as a question."""
        for stream, line in self._lines.items():
            if line:
                self._show(stream, line)
                self._done[stream] = len(line)

    def end(self) -> None:
        """Nothing will come: finish the last line."""
        for stream, line in self._lines.items():
            if line:
                self._finish(stream, line, b"")
                self._lines[stream] = b""

    def _finish(self, stream: int, line: bytes, end: bytes) -> None:
        self._show(stream, line + end)
        self._done[stream] = 0
        if self._logs is not None and not _RELAYED.match(line):
            self._logs.write(0, line.decode("utf-8", "backslashreplace").rstrip("\r"))

    def _show(self, stream: int, line: bytes) -> None:
        relayed = _RELAYED.match(line)
        rank = int(relayed[1]) if relayed else 0
        if self._shown is not None and rank not in self._shown:
            return
        rest = line[self._done[stream] :]
        with contextlib.suppress(OSError):  # the reader of this process's output has ended
            while rest:
                rest = rest[os.write(stream, rest) :]
