"""One member's end of the shared memory."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from synkhronos._transport.shared_state.control_words import PID
from synkhronos._transport.shared_state.node import Node


class Member:
    """What a node asks of a worker's surroundings: three workers, of which it is the first."""

    size, rank, master = 4, 1, 0
    _watches_others = False

    def __init__(self) -> None:
        self.words = self.waiter = self
        self.of = [{PID: os.getpid()}] * self.size
        self.watched: dict[int, int] = {}

    def watch(self, pidfds: dict[int, int]) -> None:
        self.watched = pidfds


def test_a_shortage_of_descriptors_ends_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next command watches the others, and no descriptor is lost."""
    member: Any = Member()
    opened: list[int] = []
    pidfd_open = os.pidfd_open

    def one(pid: int) -> int:
        if opened:
            raise OSError(errno.EMFILE, "Too many open files")
        opened.append(pidfd_open(pid))
        return opened[0]

    with monkeypatch.context() as full:
        full.setattr(os, "pidfd_open", one)
        with pytest.raises(OSError, match="Too many open files"):
            Node.watch_others(member)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
    assert not member.watched
    Node.watch_others(member)
    found = member.watched
    Node.watch_others(member)
    assert (sorted(found), member.watched) == ([2, 3], found)
    for descriptor in found.values():
        os.close(descriptor)
