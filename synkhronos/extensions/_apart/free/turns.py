"""Turns at the centre: one member at a time, in the order in which they ask."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from synkhronos._transport.shared_state.peers import Peers
from synkhronos.extensions._apart.free.pages import ASK, Page

TURN_LOCK, CLAIM_LOCK = 0, 1
PATIENCE = 1.0  # seconds after which a member tries the lock out of its order


class Turns:
    """The turns of one member.

    The kernel's lock lets one member in. Tickets, which are words with one writer each, only decide
    who tries to get it: a race among them costs fairness and nothing else.
    """

    def __init__(self, pages: Sequence[Page], peers: Peers) -> None:
        self._pages = pages
        self._peers = peers
        self._mine = pages[peers.rank].words
        self._passed = dict.fromkeys(range(peers.size), 0)  # tickets of others that wait no more

    def take(self, stopped: Callable[[], bool]) -> bool:
        """Wait for a turn.

        Returns False, without a turn, if the member shall stop, or if a member that holds the turn
        has kept it for longer than PATIENCE. If the turn is free by then, those who asked before
        are taken to be stopped: from now on this member goes before them.
        """
        # two members may draw one number: then the rank decides, and the lock excludes anyway
        self._mine[ASK] = 1 + max(page.words[ASK] for page in self._pages)
        until = time.monotonic() + PATIENCE
        got = False

        def ready() -> bool:
            nonlocal got
            if stopped():
                return True
            if all(self._passed[other] == ticket for other, ticket in self._before()):
                got = self._peers.try_lock(TURN_LOCK)
            return got

        try:
            self._peers.wait(ready, PATIENCE)
        except BaseException:
            self.give() if got else self._leave()
            raise
        if not got and time.monotonic() >= until and not stopped():
            got = self._peers.try_lock(TURN_LOCK)
            self._passed |= dict(self._before()) if got else {}
        if not got:
            self._leave()
        return got

    def give(self) -> None:
        """End the turn."""
        self._peers.unlock(TURN_LOCK)
        self._leave()

    def _leave(self) -> None:
        self._mine[ASK] = 0
        following = self._following()
        if following is not None:
            self._peers.ring([following])

    def _before(self) -> Iterator[tuple[int, int]]:
        """The members that have asked before this one, and their tickets."""
        mine, rank = self._mine[ASK], self._peers.rank
        for other in self._peers.others():
            theirs = self._pages[other].words[ASK]
            if theirs and (theirs, other) < (mine, rank):
                yield other, theirs

    def _following(self) -> int | None:
        asking = [(self._pages[r].words[ASK], r) for r in self._peers.others()]
        return min([(ask, r) for ask, r in asking if ask], default=(0, None))[1]
