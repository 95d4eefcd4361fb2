"""Every wait of the package: spin for a short time, then sleep, watching the other side.

A waiter polls its own bell (an eventfd), the abort eventfd, which is never read and so frees all
waiters at once when the group ends, and the pidfds of the members it depends on.

While it spins it yields the core each turn, since another member may need it: plain spinning costs
milliseconds where members outnumber cores. But a yield hands the core to any other process too,
for a whole slice of the scheduler (3 to 4 ms). A waiter that sees a turn take longer than
SLOW_TURN_SECONDS therefore sleeps at once for a while. The scheduler runs a sleeper that is woken
ahead of busy processes, within about 20 us. Then the master stays on the core where the scheduler
puts it, too: two members that take turns on one core meet sooner than two that each wait for a
busy process. Measured beside 1 to 3 busy processes on 2 cores, tiny calls of 2 members: 40 us, with
20 us of spinning before the sleep 60 to 120 us.

The word ASLEEP saves the ringing of bells that no one hears. Reading it is a race (a store here, a
load there). So the sleeper looks again behind a memory fence, and sleeps at most NAP_MS before it
looks once more. By then every member has seen the word; a worker without a command sleeps longer
from there on.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import select
import threading
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

SLOW_TURN_SECONDS = 200e-6  # a yield among members that wait takes about 1 us
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0  # seconds without yields after a slow turn

# x86 shows stores to other cores in program order. Elsewhere only system calls order them, so
# members do not spin but sleep and ring.
_ORDERED = platform.machine() in ("x86_64", "AMD64")

clock = time.perf_counter


class GroupEnded(Exception):
    """The abort eventfd is set or the master has said quit."""


class PeerDied(Exception):
    """A member that this one waits for is gone."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} died")
        self.rank = rank


class PeerFailed(Exception):
    """A member that this one waits for has raised in the command under way, or it is abandoned."""


class Rivals:
    """Busy processes beside the members, noticed by a turn of a spin that takes long.

    A yield to one of them costs a slice. So after such a turn the waiter does not yield for a
    while, and not after that either as long as more processes are runnable than there are cores.
    """

    def __init__(self) -> None:
        self._until = 0.0  # no yields until then, as `clock` counts; 0: they are cheap
        self._seen = -math.inf
        self._pause = 0.0
        self._cores = os.cpu_count() or 1

    def present(self, now: float) -> bool:
        """Whether a yield may hand the core to a process that keeps it."""
        if not self._until:
            return False
        if now >= self._until:
            if runnable() <= self._cores:
                self._until = 0.0
                return False
            self._until = now + self._pause
        return True

    def timed(self, began: float) -> float:
        """End a turn that began then; returns the time now."""
        now = clock()
        if now - began > SLOW_TURN_SECONDS:
            again = now - self._seen < 6 * self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE) if again else _SHORTEST_PAUSE
            self._seen, self._until = now, now + self._pause
        return now

    def give_way(self, now: float) -> None:
        """Let other members have the core: by a yield, beside busy processes by a short sleep."""
        if self.present(now):
            time.sleep(_GLANCE_SECONDS)
        else:
            os.sched_yield()
            self.timed(now)


def runnable() -> int:
    """Processes and threads of this machine that run or want to, this one among them; 0: unknown.

    It takes about 10 us: see proc(5), the fourth field of loadavg.
    """
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:
            return int(file.read(64).split()[3].split(b"/")[0])
    except (OSError, ValueError, IndexError):
        return 0


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
        self._least_turns = 0 if self._spin else YIELDS_WHERE_CROWDED
        self._looks = LOOKS if self._spin else 1
        self.rivals = Rivals()
        self._fence = threading.Lock()  # on x86 its locked instruction orders a store and a load
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
        now = clock()
        until = now + SPIN_SECONDS
        while now < until:
            if done():
                return
            self.rivals.give_way(now)
            now = clock()
        began = clock()
        while not done():
            self._listen(self._poll.poll(0))
            check()
            time.sleep(_GLANCE_SECONDS)
            if clock() - began > NAP_MS / 1e3:
                began = clock()
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
        looked = clock()
        while not done():
            self.rivals.give_way(clock())
            if clock() - looked < NAP_MS / 1e3:
                continue
            looked = clock()
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
        """Whether it is ready within the time to spin; beside busy processes there is none."""
        rivals, now = self.rivals, clock()
        if rivals.present(now):
            self.interrupts.check()
            return ready()
        self._waits += 1
        if self.keep_place is not None and self._waits % _LOOK_AROUND == 0:
            self.keep_place()
        until, turns = now + self._spin, 0
        while now < until or turns < self._least_turns:
            os.sched_yield()
            now = rivals.timed(now)
            if ready():
                return True
            if rivals.present(now):
                break
            turns += 1
            if not turns & 63:
                self.interrupts.check()
        self.interrupts.check()
        return False

    def _sleep(self, ready: Callable[[], bool], later_naps: int) -> None:
        self._mine[ASLEEP] = 1
        nap, longest = self.naps_ms or (NAP_MS, later_naps)
        try:
            self._fence.acquire()
            self._fence.release()
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
