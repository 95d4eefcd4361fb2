"""The other members as a long command sees them: members wait for one another without exchange."""

from __future__ import annotations

import contextlib
import fcntl
import math
import time
from collections.abc import Callable, Iterable, Iterator

from synkhronos._transport.shared_state.node import Node

_RETRY_SECONDS = 0.001  # between two tries of a lock that another member holds


class Peers:
    """Waits, signals and locks between members, one of which may die at any time.

    A lock is one of the kernel's record locks on the arena's memfd. So the death of a member frees
    what it held.

    Parameters
    ----------
    node : Node or None
        None in a group of one. A node of one member needs neither waits nor locks.
    """

    def __init__(self, node: Node | None) -> None:
        self._node = node if node is not None and node.size > 1 else None
        self.rank = 0 if node is None else node.rank
        self.size = 1 if node is None else node.size
        self.dead: set[int] = set()  # members whose death this one has seen, inside of `engaged`
        self._others = [r for r in range(self.size) if r != self.rank]

    @contextlib.contextmanager
    def engaged(self) -> Iterator[None]:
        """A context in which deaths are noted in `dead`, and end no wait."""
        if self._node is None:
            yield
            return
        self._node.watch_others()
        with self._node.waiter.surviving(self.dead):
            yield

    def others(self) -> list[int]:
        """The ranks of the other members that live."""
        return [r for r in self._others if r not in self.dead]

    def glance(self) -> None:
        """Note deaths without waiting."""
        if self._node is not None:
            self._node.waiter.glance()

    def ring(self, ranks: Iterable[int] | None = None) -> None:
        """Wake others that sleep, after a word of this member has changed."""
        if self._node is not None:
            self._node.waiter.ring(self.others() if ranks is None else ranks)

    def wait(self, ready: Callable[[], bool], seconds: float = math.inf) -> bool:
        """Wait until `ready()`, or for about `seconds`; returns whether it is ready."""
        if self._node is None or ready():
            return ready()
        until = time.monotonic() + seconds
        found = False

        def done() -> bool:
            nonlocal found
            found = ready()
            return found or time.monotonic() > until

        self._node.waiter.wait(done)
        return found

    def try_lock(self, number: int) -> bool:
        """Take lock `number` if no other member holds it."""
        if self._node is None:
            return True
        try:
            fcntl.lockf(self._node.arena.own_fd(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def unlock(self, number: int) -> None:
        """Give a lock back."""
        if self._node is not None:
            fcntl.lockf(self._node.arena.own_fd(), fcntl.LOCK_UN, 1, number)

    def lock(self, number: int, stopped: Callable[[], bool]) -> bool:
        """Take a lock that members keep for some microseconds; False if this one shall stop."""
        while not self.try_lock(number):
            if stopped():
                return False
            self.wait(stopped, _RETRY_SECONDS)
        return True
