"""Brings what workers print and log to the master, prefixed by rank.

Each worker has a ring buffer at the head of its region. It writes records and its head word; the
master reads the records and writes its tail word. If the ring is full, the worker waits up to a
second for the master to read. Then it drops lines and counts them.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from synkhronos._host.rank_logs import RankLogs
from synkhronos._transport.shared_state.control_words import (
    LOST,
    PRINTED,
    RING,
    RING_BYTES,
    TAILS,
    ControlWords,
)
from synkhronos._warnings import log

_RECORD = struct.Struct("=IB")  # bytes of text, kind
_OUT, _ERR, _LOG = range(3)
_WAIT_SECONDS = 1.0
_LONGEST = RING_BYTES // 4  # bytes of a record's text
_CUT = b" ... (cut)"


class OutputWriter:
    """Writes records into the ring of this member."""

    def __init__(self, words: ControlWords, rank: int, master: int) -> None:
        self._words = words.of[rank]
        self._ring = words.bytes[rank][RING : RING + RING_BYTES]
        self._tail = words.of[master]
        self._tail_at = TAILS + rank
        self._patient = True
        self.lock = threading.RLock()
        self._writing = False

    def write(self, kind: int, text: str) -> None:
        """Write one record, or count it as lost."""
        data = text.encode("utf-8", "backslashreplace")
        if len(data) > _LONGEST:
            data = data[: _LONGEST - len(_CUT)] + _CUT
        with self.lock:
            self._put(_RECORD.pack(len(data), kind) + data)

    def part(self) -> None:
        """In a fork of the worker: write to the terminal, since the ring has one writer."""
        self.lock = threading.RLock()  # another thread may have held it
        self._put = self._show  # type: ignore[method-assign]

    def _show(self, data: bytes) -> None:
        _, kind = _RECORD.unpack_from(data)
        text = data[_RECORD.size :]
        if kind == _LOG:
            text = text.partition(b" ")[2].replace(b"\n", b": ", 1)
        with contextlib.suppress(OSError):
            os.write(1 if kind == _OUT else 2, b"[pid %d] %s\n" % (os.getpid(), text))

    def _put(self, data: bytes) -> None:
        if self._writing:  # a finalizer or signal handler prints during a write
            self._words[LOST] += 1
            return
        self._writing = True
        try:
            if self._room(len(data)):
                self._copy(data)
            else:
                self._words[LOST] += 1
        finally:
            self._writing = False

    def _copy(self, data: bytes) -> None:
        head = self._words[PRINTED]
        at = head % RING_BYTES
        first = min(len(data), RING_BYTES - at)
        self._ring[at : at + first] = data[:first]
        self._ring[: len(data) - first] = data[first:]
        self._words[PRINTED] = head + len(data)

    def _room(self, need: int) -> bool:
        until = time.monotonic() + (_WAIT_SECONDS if self._patient else 0.0)
        while self._words[PRINTED] - self._tail[self._tail_at] + need > RING_BYTES:
            if time.monotonic() >= until:
                self._patient = False
                return False
            time.sleep(0.005)
        self._patient = True
        return True


class RelayStream(io.TextIOBase):
    """A worker's sys.stdout or sys.stderr."""

    def __init__(self, writer: OutputWriter, kind: int) -> None:
        self._writer = writer
        self._kind = kind
        self._pending = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Send every complete line."""
        with self._writer.lock:
            *lines, self._pending = (self._pending + text).split("\n")
            for line in lines:
                self._writer.write(self._kind, line)
        return len(text)

    def flush(self) -> None:
        """Send a line that is not complete yet."""
        if not self._pending:  # most often so after a command: skip the lock
            return
        with self._writer.lock:
            if self._pending:
                self._writer.write(self._kind, self._pending)
                self._pending = ""


class RelayHandler(logging.Handler):
    """The root handler of a worker: sends records as text, which the master handles again."""

    def __init__(self, writer: OutputWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
            if record.exc_info:
                message += "\n" + logging.Formatter().formatException(record.exc_info)
            # the message is last, since a long record is cut at its end
            name = record.name.replace("\n", " ")
            self._writer.write(_LOG, f"{record.levelno} {name}\n{message}")
        except Exception:
            self.handleError(record)


def redirect(words: ControlWords, rank: int, master: int) -> None:
    """Send the prints, warnings and logs of this process to the master."""
    writer = OutputWriter(words, rank, master)
    os.register_at_fork(after_in_child=writer.part)
    sys.stdout = RelayStream(writer, _OUT)
    sys.stderr = RelayStream(writer, _ERR)
    for logger in _all_loggers():
        logger.handlers[:] = []
        logger.propagate = True
    logging.getLogger().addHandler(RelayHandler(writer))


def _all_loggers() -> list[logging.Logger]:
    named = logging.Logger.manager.loggerDict.values()
    return [logging.getLogger(), *(x for x in named if isinstance(x, logging.Logger))]


class LabelledStream(io.TextIOBase):
    """A leader's sys.stdout or sys.stderr: each line has its rank in front, as workers' lines."""

    def __init__(self, bare: TextIO, rank: int) -> None:
        self.bare = bare  # the stream that it was before
        self._rank = rank
        self._pending = ""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.bare.fileno()

    def write(self, text: str) -> int:
        """Show every complete line."""
        *lines, self._pending = (self._pending + text).split("\n")
        for line in lines:
            self._show(line)
        return len(text)

    def flush(self) -> None:
        """Show a line that is not complete yet."""
        line, self._pending = self._pending, ""
        if line:
            self._show(line)
        self.bare.flush()

    def _show(self, line: str) -> None:
        for listener in _listeners:
            listener(self._rank, line)
        _write_to(self.bare, f"[rank {self._rank}] {line}\n")


@contextlib.contextmanager
def labelled(rank: int) -> Iterator[None]:
    """A context in which this process's lines have its rank in front."""
    out, err = LabelledStream(sys.stdout, rank), LabelledStream(sys.stderr, rank)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield
    finally:
        for stream in (out, err):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()


class OutputReader:
    """The master's end of all rings."""

    def __init__(self, words: ControlWords, ranks: list[int], master: int) -> None:
        self._words = words
        self._rings = [(r, words.of[r]) for r in ranks]
        self._tails = words.of[master]
        self._lost = dict.fromkeys(ranks, 0)
        self.first = 0  # rank of this node's first member

    def drain(self) -> None:
        """Show what the workers have printed and logged since the last call."""
        for rank, words in self._rings:
            if words[PRINTED] != self._tails[TAILS + rank]:
                self._read(rank)

    def _read(self, rank: int) -> None:
        head, tail = self._words.of[rank][PRINTED], self._tails[TAILS + rank]
        data = self._copy(rank, tail, head)
        self._tails[TAILS + rank] = head
        at = 0
        while at < len(data):
            length, kind = _RECORD.unpack_from(data, at)
            at += _RECORD.size
            _show(self.first + rank, kind, data[at : at + length].decode("utf-8", "replace"))
            at += length
        lost = self._words.of[rank][LOST]
        if lost != self._lost[rank]:
            _show(
                self.first + rank,
                _ERR,
                f"... {lost - self._lost[rank]} lines were lost: printed too fast",
            )
            self._lost[rank] = lost

    def _copy(self, rank: int, tail: int, head: int) -> bytes:
        ring = self._words.bytes[rank][RING : RING + RING_BYTES]
        start, stop = tail % RING_BYTES, head % RING_BYTES
        if stop > start:
            return bytes(ring[start:stop])
        return bytes(ring[start:]) + bytes(ring[:stop])


Listener = Callable[[int, str], None]

_listeners: list[Listener] = []


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """A context in which a function is also told of each line that a worker of this node gives.

    Its arguments are the rank and the line, which is a log record if it begins with its level.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextlib.contextmanager
def logged(folder: Path) -> Iterator[None]:
    """A context in which workers' lines are also appended to ``rank-N.log`` in a folder.

    Only workers of this node have files.
    """
    with contextlib.closing(RankLogs(folder)) as logs, listening(logs.write):
        yield


def write_by_the_line() -> None:
    """Write each line of this process's output at once, also to a pipe.

    Else lines come late, and those of several nodes are cut and mixed.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def _show(rank: int, kind: int, text: str) -> None:
    for listener in _listeners:
        if kind == _LOG:
            head, _, message = text.partition("\n")
            level, _, name = head.partition(" ")
            listener(rank, f"{logging.getLevelName(int(level))} {name}: {message}")
        else:
            listener(rank, text)
    if kind == _LOG:
        head, _, message = text.partition("\n")
        level, _, name = head.partition(" ")
        logger = logging.getLogger(name)
        if logger.isEnabledFor(int(level)):
            record: Any = logger.makeRecord(
                name, int(level), "(worker)", 0, f"[rank {rank}] {message}", (), None
            )
            logger.handle(record)
        return
    stream = sys.stdout if kind == _OUT else sys.stderr
    if isinstance(stream, LabelledStream):  # the worker's line has its own rank
        stream = stream.bare
    if stream is not None:
        _write_to(stream, f"[rank {rank}] {text}\n")


def _write_to(stream: TextIO, text: str) -> None:
    """Write to a stream of the master; an error there must not fail the user's call."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    except (OSError, ValueError):  # the stream's reader has ended, or it is closed
        log.debug("could not show %r", text)
