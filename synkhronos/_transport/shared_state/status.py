"""A group's state, for other processes of the same user while it works: `synk top`.

The memory of a node has no name, but the kernel shows the memfd of a process to processes of the
same user, under /proc/PID/fd. They read it with `pread`, which allocates no page of it, and hold it
open for a moment only, since an open file keeps the memory of a group that has ended. Nobody waits
for anything: words have one writer, and a reader takes them as they are.

A page in each member's head says where the rest is. The page of the node's first process also has
the name of the latest command, a note of the program, and the places of the clocks of functions.
"""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass

from synkhronos._errors import printable
from synkhronos._host.arena import Arena
from synkhronos._transport.shared_state.control_words import (
    ASLEEP,
    COMPILING,
    PID,
    POSTED,
    PROGRESS,
    REPORTED,
    STATUS,
    STATUS_BYTES,
)

_MAGIC = int.from_bytes(b"synktop2", "little")  # the last character is the version of the page
# words
_KNOWN, _REGION_BYTES, _REGIONS, _MASTER, _OWNER, _FIRST, _CLOCKS, _NUMBER, _TIME = range(9)
_HEAD = 10  # words that are read of each member's page
_SLOTS = _HEAD  # first word of the places of clocks: offset, number of cells of a member
_MAX_CLOCKS = 16
_MAX_CELLS = 1024  # of a member; a reader believes no more
_WHAT, _WHAT_BYTES = 1024, 128  # offset in the page, and length
_NOTE, _NOTE_BYTES = 2048, 512


class Status:
    """The page of this process."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        page = arena.head(arena.mine)[STATUS : STATUS + STATUS_BYTES]
        self._words, self._bytes = page.cast("q"), page

    def describe(self, master: int) -> None:
        """Say whose memory this is; `master` is the node's first process, as a region."""
        words, arena = self._words, self._arena
        words[_REGION_BYTES], words[_REGIONS] = arena.region_bytes, arena.regions
        words[_MASTER], words[_OWNER] = master, os.getpid()
        words[_KNOWN] = _MAGIC

    def count_from(self, first: int) -> None:
        """Set the rank of the node's first member."""
        self._words[_FIRST] = first

    def show(self, what: str) -> None:
        """Name the latest command."""
        self._write(what, _WHAT, _WHAT_BYTES)

    def began(self, number: int) -> None:
        """Say that the master sends a command now; it says nothing of one that it repeats."""
        self._words[_NUMBER], self._words[_TIME] = number, time.perf_counter_ns()

    def note(self, text: str) -> None:
        """Leave a note of the program, such as how far a training is."""
        self._write(text, _NOTE, _NOTE_BYTES)

    def _write(self, text: str, at: int, most: int) -> None:
        raw = text.encode(errors="backslashreplace")[:most]  # a script's name may be any bytes
        self._bytes[at : at + most] = raw + bytes(most - len(raw))

    def add_clocks(self, offset: int, cells: int) -> None:
        """Say where the clocks of a function are; of more than 16, those of the latest ones."""
        words = self._words
        slot = _SLOTS + 2 * (words[_CLOCKS] % _MAX_CLOCKS)
        words[slot], words[slot + 1] = offset, cells
        words[_CLOCKS] += 1


@dataclass(frozen=True)
class MemberStatus:
    """The state of one member, as the memory has it."""

    rank: int
    pid: int
    reported: int  # the latest command that it has reported on
    asleep: bool
    compiling: bool
    progress: int  # the word PROGRESS: of a long command, the count of steps
    clocks: tuple[tuple[float, ...], ...]  # for each function with clocks, its cells


@dataclass(frozen=True)
class GroupStatus:
    """The state of the members of one node, as the memory has it."""

    master: int  # the rank of the node's first process, as an index of `members`
    posted: int  # the number of the latest command
    # when it was sent, in seconds of `time.perf_counter`; None: it repeats an earlier one
    began: float | None
    what: str
    note: str
    members: tuple[MemberStatus, ...]


def read_status(fd: int) -> GroupStatus | None:
    """Read the memory of a node.

    Parameters
    ----------
    fd : int
        The memfd, open for reading.

    Returns
    -------
    GroupStatus or None
        None: this is not the memory of a group, or the group has not started yet.
    """
    try:
        return _read(fd)
    except (struct.error, IndexError, OSError, OverflowError):  # another program's memory
        return None


def _read(fd: int) -> GroupStatus | None:
    first = _words(fd, STATUS, _HEAD)
    if len(first) < _HEAD or first[_KNOWN] != _MAGIC:
        return None
    stride, regions, master = first[_REGION_BYTES], first[_REGIONS], first[_MASTER]
    if not (0 <= master < regions and 0 < stride * regions <= os.fstat(fd).st_size):
        return None
    home = master * stride
    page = _words(fd, home + STATUS, _SLOTS + 2 * _MAX_CLOCKS)
    if page[_KNOWN] != _MAGIC:
        return None
    places = [(page[i], page[i + 1]) for i in range(_SLOTS, len(page), 2) if page[i]]
    if any(not (0 <= cells <= _MAX_CELLS and offset >= 0) for offset, cells in places):
        return None
    clocks = [_reals(fd, offset, cells * regions) for offset, cells in places]
    members = []
    for region in range(regions):
        words = _words(fd, region * stride, 16)
        own = _words(fd, region * stride + STATUS, _HEAD)
        cells = [c[region * len(c) // regions :][: len(c) // regions] for c in clocks]
        members.append(
            MemberStatus(
                page[_FIRST] + region,
                own[_OWNER] or words[PID],
                words[REPORTED],
                bool(words[ASLEEP]),
                bool(words[COMPILING]),
                words[PROGRESS],
                tuple(cells),
            )
        )
    posted = _words(fd, home, 16)[POSTED]
    return GroupStatus(
        master,
        posted,
        page[_TIME] / 1e9 if page[_NUMBER] == posted else None,
        _text(fd, home + STATUS + _WHAT, _WHAT_BYTES),
        _text(fd, home + STATUS + _NOTE, _NOTE_BYTES),
        tuple(members),
    )


def _words(fd: int, offset: int, count: int) -> tuple[int, ...]:
    raw = os.pread(fd, 8 * count, offset)
    return struct.unpack(f"<{len(raw) // 8}q", raw[: len(raw) // 8 * 8])


def _reals(fd: int, offset: int, count: int) -> tuple[float, ...]:
    return struct.unpack(f"<{count}d", os.pread(fd, 8 * count, offset))


def _text(fd: int, offset: int, most: int) -> str:
    return printable(os.pread(fd, most, offset).rstrip(b"\0").decode(errors="replace"))
