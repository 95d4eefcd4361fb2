"""Passes the script's output on: the lines of the ranks to show, and those for rank-0.log."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Collection

from synkhronos._host.rank_logs import RankLogs

_RELAYED = re.compile(rb"\[rank (\d+)\] ")  # in front of what the master shows of a worker
_LONGEST = 1 << 16  # bytes of a line that are kept
_PIECE = select.PIPE_BUF  # what a pipe takes without a wait if poll says that it can be written
_MOST_WAITING = 1 << 20  # bytes that a reader has not taken; at more, the script waits for it


class Output:
    """The way of the script's standard output and error output to those of this process.

    Lines that are not relayed from a worker belong to rank 0. No write waits for a reader: a signal
    would have to wait, too.
    """

    def __init__(self, shown: Collection[int] | None, logs: RankLogs | None) -> None:
        self._shown = shown  # ranks whose lines are shown; None: all
        self._logs = logs  # gets the lines of rank 0. The workers' own are written by their node
        self._lines = {1: b"", 2: b""}  # the beginning of the next line of each stream
        self._done = {1: 0, 2: 0}  # bytes of the unfinished line that are shown already
        self._waiting = {1: bytearray(), 2: bytearray()}  # for the readers of this process's output

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
        self._waiting[stream] += line[self._done[stream] :]
        self.flush()

    @property
    def blocked(self) -> list[int]:
        """The streams whose reader has not taken everything."""
        return [stream for stream, waiting in self._waiting.items() if waiting]

    @property
    def full(self) -> bool:
        """Whether so much waits for readers that no more should be fed."""
        return max(map(len, self._waiting.values())) > _MOST_WAITING

    def flush(self) -> None:
        """Write as much as the readers take now."""
        for stream in self.blocked:
            waiting, poller = self._waiting[stream], select.poll()
            poller.register(stream, select.POLLOUT)
            while waiting and poller.poll(0):
                try:
                    del waiting[: os.write(stream, waiting[:_PIECE])]
                except BlockingIOError:
                    break
                except OSError:  # the reader has ended
                    waiting.clear()
