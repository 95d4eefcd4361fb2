"""Every wait of the package: spin for a short time, then sleep, watching the other side.

A waiter polls its own bell (an eventfd), the abort eventfd, which is never read and so frees all
waiters at once when the group ends, and the pidfds of the members it depends on. While it spins
it yields the core each turn: plain spinning costs milliseconds where members outnumber cores.

The word ASLEEP saves the ringing of bells nobody hears. Reading it is a race (a store here, a load
there); the sleeper therefore looks again after a system call, and sleeps no longer than NAP_MS
before it looks once more. By then everybody has seen the word; a worker without a command sleeps
longer from there on.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import time
from collections.abc import Callable, Iterable

from synkhronos._transport.channels.control_words import ASLEEP, QUIT, Words
from synkhronos._transport.channels.interrupts import Interrupts

NAP_MS = 100
IDLE_NAP_MS = 2000  # a tenth of a millisecond each, and a bell, a death or the end cut it short
_LOOK_AROUND = 16  # waits between two looks at which core this is
SPIN_SECONDS = 0.0015  # idle gaps up to this keep a call's cost at a few microseconds
_LONGER = 1.125  # each nap than the one before: together 8 times as long as the last
_GLANCE_SECONDS = 50e-6  # between two looks at what rings no bell
LOOKS = 20  # before the first yield, which costs half a microsecond
YIELDS_WHERE_CROWDED = 40  # turns before sleeping where members outnumber cores

# x86 shows stores to other cores in program order. Elsewhere only system calls order them, so
# members do not spin but sleep and ring.
_ORDERED = platform.machine() in ("x86_64", "AMD64")


class GroupEnded(Exception):
    """The abort eventfd is set or the master has said quit."""


class PeerDied(Exception):
    """A member that this one waits for is gone."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} died")
        self.rank = rank


class PeerFailed(Exception):
    """A member that this one waits for has raised in the command under way, or it is abandoned."""


class Waiter:
    """Waits of one member on its shared words."""

    def __init__(
        self, rank: int, master: int, words: Words, bells: list[int], abort: int, crowded: bool
    ) -> None:
        self.rank = rank
        self._master = words.of[master]
        self._mine = words.of[rank]
        self._words = words.of
        self._bells = bells
        self._spin = 0.0 if crowded or not _ORDERED else SPIN_SECONDS
        self._looks = LOOKS if self._spin else 1
        self._poll = select.poll()
        self._poll.register(bells[rank], select.POLLIN)
        self._poll.register(abort, select.POLLIN)
        self._abort = abort
        self._pidfds: dict[int, int] = {}
        self.tick: Callable[[], None] | None = None
        self.inspect: Callable[[], None] | None = None
        self.interrupts = Interrupts()
        self.keep_place: Callable[[], None] | None = None
        # the first and the longest, of a member that also waits for what rings no bell
        self.naps_ms: tuple[float, float] | None = None
        self._waits = 0

    def watch(self, pidfds: dict[int, int]) -> None:
        """Notice the deaths of these members: {rank: pidfd}."""
        for rank, fd in pidfds.items():
            self._pidfds[fd] = rank
            self._poll.register(fd, select.POLLIN)

    def ring(self, ranks: Iterable[int]) -> None:
        """Wake those of the members that sleep, after a word of ours has changed."""
        words = self._words
        for rank in ranks:
            if words[rank][ASLEEP] or not _ORDERED:
                os.eventfd_write(self._bells[rank], 1)

    def wait(self, ready: Callable[[], bool], idle: bool = False) -> None:
        """Return once `ready()` is true; it may raise to end the wait.

        `idle`: whoever makes it true rings this member's bell.

        Raises
        ------
        PeerDied, GroupEnded, and what `inspect` raises
        """
        for _ in range(self._looks):
            if ready():
                return
        if not self._spins(ready):
            self._sleep(ready, IDLE_NAP_MS if idle else NAP_MS)

    def attend(self, done: Callable[[], bool], check: Callable[[], None]) -> None:
        """Return once `done()` is true, which rings no bell: what a GPU does, say.

        `check` may raise to end the wait. An interrupt waits for the end: what the members have
        begun together they finish together.

        Raises
        ------
        PeerDied, GroupEnded, and what `inspect` raises
        """
        until = time.perf_counter() + SPIN_SECONDS
        while time.perf_counter() < until:
            if done():
                return
            os.sched_yield()
        began = time.perf_counter()
        while not done():
            self._listen(self._poll.poll(0))
            check()
            time.sleep(_GLANCE_SECONDS)
            if time.perf_counter() - began > NAP_MS / 1e3:
                began = time.perf_counter()
                self._look_after()

    def accompany(self, done: Callable[[], bool], check: Callable[[], None]) -> None:
        """Return once `done()` is true, which goes on only while it is asked: a transfer of MPI's.

        All have come to it, so it ends whoever dies meanwhile; what that means is the next wait's
        to find out. `check` may raise to end the wait; an interrupt waits for the end.

        Raises
        ------
        GroupEnded, and what `check` and `inspect` raise
        """
        for _ in range(self._looks):
            if done():
                return
        looked = time.perf_counter()
        while not done():
            os.sched_yield()
            if time.perf_counter() - looked < NAP_MS / 1e3:
                continue
            looked = time.perf_counter()
            events = self._poll.poll(0)
            with contextlib.suppress(PeerDied):
                self._listen(events)
            check()
            self._look_after()

    def _look_after(self) -> None:
        if self.tick is not None:
            self.tick()
        if self.inspect is not None:
            self.inspect()

    def rest(self) -> None:
        """Wait for the bell or the group's end, a while: a peer has died, which the master minds.

        A wait would end at once, again and again.
        """
        poll = select.poll()
        for fd in (self._bells[self.rank], self._abort):
            poll.register(fd, select.POLLIN)
        self._mine[ASLEEP] = 1
        try:
            poll.poll(IDLE_NAP_MS)
        finally:
            self._mine[ASLEEP] = 0

    def _spins(self, ready: Callable[[], bool]) -> bool:
        """Whether it is ready within the time to spin."""
        self._waits += 1
        if self.keep_place is not None and self._waits % _LOOK_AROUND == 0:
            self.keep_place()
        turns = YIELDS_WHERE_CROWDED if not self._spin else 64
        until = time.perf_counter() + self._spin
        while True:
            for _ in range(turns):
                os.sched_yield()
                if ready():
                    return True
            self.interrupts.check()
            if time.perf_counter() >= until:
                return False

    def _sleep(self, ready: Callable[[], bool], later_naps: int) -> None:
        self._mine[ASLEEP] = 1
        nap, longest = self.naps_ms or (NAP_MS, later_naps)
        try:
            os.sched_yield()
            while not ready():
                self.interrupts.check()
                if nap < 1:  # shorter than poll can
                    time.sleep(nap / 1000)
                if self._listen(self._poll.poll(int(nap))) and self._spins(ready):
                    return  # the bell rang ahead of what it announces
                nap = min(_LONGER * nap, longest) if self.naps_ms else longest
                self._look_after()
        finally:
            self._mine[ASLEEP] = 0

    def _listen(self, events: list[tuple[int, int]]) -> bool:
        """Whether this member's bell has rung."""
        if self._master[QUIT] or any(fd == self._abort for fd, _ in events):
            raise GroupEnded  # and if members have ended, then since the group has
        rang = False
        for fd, _ in events:
            if fd != self._bells[self.rank]:
                raise PeerDied(self._pidfds[fd])
            os.eventfd_read(fd)
            rang = True
        return rang
