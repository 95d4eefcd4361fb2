"""One member's access to what its machine's members share: arena, control words, barriers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from synkhronos._errors import GroupError
from synkhronos._host.arena import Arena, Views
from synkhronos._transport.shared_state.control_words import (
    ABANDONED,
    BARRIER,
    EXCHANGE_FAILED,
    PID,
    REPORTED,
    STOPPING,
    ControlWords,
)
from synkhronos._transport.shared_state.waiting import PeerFailed, Waiter

# Bits of a barrier's number for the exchanges of a command, and for the barriers of an exchange
# (two at most). The rest of 63 bits counts commands: enough for two weeks of calls without a pause.
_STEP_BITS, _COUNT_BITS = 24, 2
_NUMBER_AT = _STEP_BITS + _COUNT_BITS
_LAST_STEP = (1 << _NUMBER_AT) - (1 << _COUNT_BITS)


class Node:
    """One member's end of the shared memory."""

    def __init__(
        self, rank: int, master: int, arena: Arena, words: ControlWords, waiter: Waiter
    ) -> None:
        self.rank = rank
        self.size = arena.regions
        self.master = master
        self.arena = arena
        self.words = words
        self.waiter = waiter
        self.views = Views(arena)
        # the command under way. Barrier numbers contain it, so those of an abandoned command do not
        # count
        self.number = 0
        self._base = 0
        # 0 and 1 in turn, from one exchange of all members to the next; those of some do not count
        self.turn = 0
        self._master_words: Any = words.of[master]
        self._mine: Any = words.of[rank]
        self._peers: dict[Sequence[int] | None, tuple[list[int], list[Any]]] = {}
        # by who comes to `enter`: whether this member lets the others go on, the ranks that it
        # wakes, and the words that it waits for
        self._entrances: dict[Sequence[int] | None, tuple[bool, Sequence[int], Sequence[Any]]] = {}
        self._master_comes = True
        self._watches_others = rank == master  # who watches its workers from their start

    def watch_others(self) -> None:
        """In a worker: from now on, notice deaths of the other workers as the master does.

        Needed where the master does not wait. Where it waits, it ends the group: if a death woke
        all members, they would keep the cores from it.
        """
        if self._watches_others:
            return
        found: dict[int, int] = {}
        try:
            for rank in set(range(self.size)) - {self.rank, self.master}:
                with contextlib.suppress(ProcessLookupError):  # dead, which the master notices
                    found[rank] = os.pidfd_open(self.words.of[rank][PID])
        except BaseException:  # such as a shortage of descriptors: the next command tries again
            for descriptor in found.values():
                os.close(descriptor)
            raise
        self._watches_others = True
        self.waiter.watch(found)

    def begin(self, number: int) -> None:
        """Start counting the barriers of a new command."""
        self.number = number
        self._base = number << _NUMBER_AT
        self.turn = 0

    def step(self, members: tuple[int, ...] | None = None) -> None:
        """Start a new exchange of all members, or of those given; the others count it, too."""
        if self._base & _LAST_STEP == _LAST_STEP:
            raise GroupError(
                f"a command of more than {(1 << _STEP_BITS) - 1:,} exchanges of the members: "
                "divide it into several"
            )
        self._base = (self._base >> _COUNT_BITS) + 1 << _COUNT_BITS
        if members is None:
            self.turn ^= 1

    @property
    def stopping(self) -> bool:
        """Whether the master asks a long command to return."""
        words = self._master_words
        return bool(words[STOPPING] == self.number or words[ABANDONED] >= self.number)

    def barrier(self, members: tuple[int, ...] | None = None) -> None:
        """Wait until all members, or those given, have come here.

        Raises
        ------
        PeerFailed
            A member will not come: it raised, or the command was abandoned.
        """
        found = self._peers.get(members)
        if found is None:
            found = self._remember(members)
        ranks, peers = found
        self._base = here = self._base + 1
        self._mine[BARRIER] = here
        self.waiter.ring(ranks)
        for words in peers:
            self._await(words, here)

    def enter(
        self,
        members: tuple[int, ...] | None = None,
        before_release: Callable[[], object] | None = None,
    ) -> None:
        """A barrier that all members pass or none, even if one fails or is interrupted meanwhile.

        At a plain barrier a member may leave after the others have seen it come. Here one member
        (the master where it takes part) waits for all the others, and releases them by its own
        word. So what follows may change values in place. The one member calls `before_release`
        just before.
        """
        found = self._entrances.get(members) or self._remember_entrance(members)
        self._base = here = self._base + 1
        self._pass(here, found, before_release)

    def arrive(self) -> int:
        """As `step`, and the number of its entrance for all, of which other code sets the word."""
        base = self._base
        if not self._master_comes or base & _LAST_STEP == _LAST_STEP:
            self.step()  # raises, or the next line does
            self._remember(None)
        self._base = here = ((base >> _COUNT_BITS) + 1 << _COUNT_BITS) + 1
        self.turn ^= 1
        return here

    def pass_entrance(self, here: int) -> None:
        """Go on as `enter` does, at an entrance of `arrive`."""
        self._pass(here, self._entrances.get(None) or self._remember_entrance(None), None)

    def _pass(
        self,
        here: int,
        entrance: tuple[bool, Sequence[int], Sequence[Any]],
        before_release: Callable[[], object] | None,
    ) -> None:
        leads, ranks, awaited = entrance
        if not leads:
            self._mine[BARRIER] = here
            self.waiter.ring(ranks)
        for words in awaited:
            self._await(words, here)
        if leads:
            if before_release is not None:
                before_release()
            self._mine[BARRIER] = here
            self.waiter.ring(ranks)

    def wait_for_gpu(
        self, done: Callable[[], bool], beyond: Callable[[], None] = lambda: None
    ) -> None:
        """Wait for an exchange of GPUs that all members have entered; it sets no word.

        `beyond` raises if another node has failed.

        Raises
        ------
        PeerFailed
            Another member's part of it failed, or the command was abandoned.
        """
        others = [words for rank, words in enumerate(self.words.of) if rank != self.rank]

        def check() -> None:
            failed = any(words[EXCHANGE_FAILED] >= self.number for words in others)
            if failed or self._master_words[ABANDONED] >= self.number:
                raise PeerFailed
            beyond()

        self.waiter.wait_for_gpu(done, check)

    def fail_exchange(self) -> None:
        """Tell the others that this member's part of an exchange of GPUs failed."""
        self._mine[EXCHANGE_FAILED] = self.number

    def _await(self, peer: Any, here: int) -> None:
        for _ in range(self.waiter.looks):
            if peer[BARRIER] >= here:
                return

        def ready() -> bool:
            if peer[BARRIER] >= here:
                return True
            self._still_coming(peer, here)
            return False

        self.waiter.wait(ready)

    @contextlib.contextmanager
    def without_master(self) -> Iterator[None]:
        """Run a command that the master takes no part in: an exchange with it raises GroupError."""
        self.watch_others()
        known = self._peers, self._entrances
        self._peers, self._entrances, self._master_comes = {}, {}, False
        try:
            yield
        finally:
            self._peers, self._entrances = known
            self._master_comes = True

    def _remember(self, members: tuple[int, ...] | None) -> tuple[list[int], list[object]]:
        if not self._master_comes and (members is None or self.master in members):
            raise GroupError(
                "the master takes no part in a command that Group.start has posted, so its members "
                f"cannot meet rank {self.master}: pass members= without it, or use Group.run"
            )
        ranks = [r for r in members or range(self.size) if r != self.rank]
        self._peers[members] = ranks, [self.words.of[r] for r in ranks]
        return self._peers[members]

    def _remember_entrance(
        self, members: tuple[int, ...] | None
    ) -> tuple[bool, Sequence[int], Sequence[Any]]:
        ranks, peers = self._peers.get(members) or self._remember(members)
        leader = self.master if members is None or self.master in members else members[0]
        leads = leader == self.rank
        found = (True, ranks, peers) if leads else (False, (leader,), (self.words.of[leader],))
        self._entrances[members] = found
        return found

    def _still_coming(self, peer: Any, here: int) -> None:
        # BARRIER is read last: a member that has come here, and then reported, wrote it first
        left = peer[REPORTED] >= self.number or self._master_words[ABANDONED] >= self.number
        if left and peer[BARRIER] < here:
            raise PeerFailed
