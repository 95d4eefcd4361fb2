"""What workers print and log reaches the master, prefixed by rank.

Each worker has a ring of bytes at the head of its region: it writes records and its own head
word, the master reads them and writes its own tail word. A full ring never blocks a worker for
long: it waits up to a second for the master to read, then drops lines and counts them.
"""

from __future__ import annotations

import io
import logging
import struct
import sys
import threading
import time
from typing import Any, TextIO

from synkhronos._transport.channels.control_words import (
    LOST,
    PRINTED,
    RING,
    RING_BYTES,
    TAILS,
    Words,
)

log = logging.getLogger("synkhronos")

_RECORD = struct.Struct("=IB")  # bytes of text, kind
_OUT, _ERR, _LOG = range(3)
_PATIENCE = 1.0  # seconds
_LONGEST = RING_BYTES // 4  # bytes of a record's text
_CUT = b" ... (cut)"


class Pen:
    """Writes records into this member's ring."""

    def __init__(self, words: Words, rank: int, master: int) -> None:
        self._words = words.of[rank]
        self._ring = words.bytes[rank][RING : RING + RING_BYTES]
        self._tail = words.of[master]
        self._tail_at = TAILS + rank
        self._patient = True
        self.lock = threading.RLock()
        self._writing = False

    def write(self, kind: int, text: str) -> None:
        """Put one record into the ring, or count it as lost."""
        data = text.encode("utf-8", "backslashreplace")
        if len(data) > _LONGEST:
            data = data[: _LONGEST - len(_CUT)] + _CUT
        with self.lock:
            self._put(_RECORD.pack(len(data), kind) + data)

    def _put(self, data: bytes) -> None:
        if self._writing:  # a finalizer or signal handler prints in the middle of this
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
        until = time.monotonic() + (_PATIENCE if self._patient else 0.0)
        while self._words[PRINTED] - self._tail[self._tail_at] + need > RING_BYTES:
            if time.monotonic() >= until:
                self._patient = False
                return False
            time.sleep(0.005)
        self._patient = True
        return True


class RelayStream(io.TextIOBase):
    """A worker's sys.stdout or sys.stderr."""

    def __init__(self, pen: Pen, kind: int) -> None:
        self._pen = pen
        self._kind = kind
        self._pending = ""

    def writable(self) -> bool:
        """It is for writing."""
        return True

    def write(self, text: str) -> int:
        """Relay every line that is complete."""
        with self._pen.lock:
            *lines, self._pending = (self._pending + text).split("\n")
            for line in lines:
                self._pen.write(self._kind, line)
        return len(text)

    def flush(self) -> None:
        """Relay a line that has no end yet."""
        if not self._pending:  # as after every command: not worth the lock
            return
        with self._pen.lock:
            if self._pending:
                self._pen.write(self._kind, self._pending)
                self._pending = ""


class RelayHandler(logging.Handler):
    """The root handler of a worker: records travel as text, and the master handles them anew."""

    def __init__(self, pen: Pen) -> None:
        super().__init__()
        self._pen = pen

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        try:
            message = record.getMessage()
            if record.exc_info:
                message += "\n" + logging.Formatter().formatException(record.exc_info)
            # the message last: a long one is cut, and what stands before it is not
            name = record.name.replace("\n", " ")
            self._pen.write(_LOG, f"{record.levelno} {name}\n{message}")
        except Exception:
            self.handleError(record)


def redirect(words: Words, rank: int, master: int) -> None:
    """Make this process's prints, warnings and logs go to the master."""
    pen = Pen(words, rank, master)
    sys.stdout = RelayStream(pen, _OUT)
    sys.stderr = RelayStream(pen, _ERR)
    for logger in _all_loggers():
        logger.handlers[:] = []
        logger.propagate = True
    logging.getLogger().addHandler(RelayHandler(pen))


def _all_loggers() -> list[logging.Logger]:
    named = logging.Logger.manager.loggerDict.values()
    return [logging.getLogger(), *(x for x in named if isinstance(x, logging.Logger))]


class Reader:
    """The master's end of all rings."""

    def __init__(self, words: Words, ranks: list[int], master: int) -> None:
        self._words = words
        self._rings = [(r, words.of[r]) for r in ranks]
        self._tails = words.of[master]
        self._lost = dict.fromkeys(ranks, 0)
        self.first = 0  # the first of this node's ranks

    def drain(self) -> None:
        """Show what the workers have printed and logged since the last time."""
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


def _show(rank: int, kind: int, text: str) -> None:
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
    if stream is not None:
        _say(stream, f"[rank {rank}] {text}\n")


def _say(stream: TextIO, text: str) -> None:
    """Write what a worker has printed; if that cannot be done, no call of the user's fails."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    except (OSError, ValueError):  # its reader has gone, or it has been closed
        log.debug("could not show %r", text)
