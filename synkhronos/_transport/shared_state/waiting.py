"""All waits of the package: spin for a short time, then sleep, and watch the other members.

A waiter polls its own eventfd, by which others wake it, and the pidfds of the members it depends
on. It also polls the abort eventfd. This is never read, so it ends all waits at once when the group
ends.

While it spins it yields the core in each pass, since another member may need it: plain spinning
costs milliseconds where members outnumber cores. But a yield gives the core to any other process,
too, for a whole slice of the scheduler (3 to 4 ms). So a waiter that sees a pass take longer than
SLOW_YIELD_SECONDS sleeps at once for a while. The scheduler prefers a sleeper that is woken to busy
processes, within about 20 us. The master then stays on the core where the scheduler puts it: two
members that take turns on one core meet sooner than two that each wait for a busy process. Tiny
calls of 2 members beside 1 to 3 busy processes on 2 cores take 40 us; with 20 us of spinning before
the sleep they take 60 to 120 us.

The word ASLEEP avoids signals to members that do not sleep. Reading it is a race (a store here, a
load there). So the sleeper reads again behind a memory fence, and sleeps at most NAP_MS before it
reads once more. By then every member has seen the word; a worker without a command sleeps longer
from then on.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

from synkhronos._host.descriptors import Descriptor
from synkhronos._transport.processes.interrupts import Interrupts
from synkhronos._transport.shared_state.control_words import ASLEEP, QUIT, ControlWords
from synkhronos._transport.shared_state.ordered_words import IS_ORDERED

NAP_MS = 100
_LOOK_SECONDS = 0.1  # between two looks at descriptors that the program may have closed
IDLE_NAP_MS = 2000  # each costs 0.1 ms; a signal, a death or the end of the group ends it early
_PLACE_EVERY = 16  # waits between two checks of the core that this process is on
SPIN_SECONDS = 0.0015  # idle gaps up to this keep a call's cost at a few microseconds
_LONGER = 1.125  # ratio of a nap to the previous one; all together take 8 times the last one
_POLL_SECONDS = 50e-6  # between two looks at an event that no eventfd signals
# looks at a word before the first yield, which takes 0.5 us, with and without other processes that
# want the core; 200 looks take about 8 us
_LOOKS, _LOOKS_ALONE = 20, 200
YIELDS_WHERE_CROWDED = 40  # yields before sleeping where members outnumber cores

SLOW_YIELD_SECONDS = 200e-6  # a yield among members that wait takes about 1 us
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0  # seconds without yields after a slow one
WORTH_A_MOVE = 100e-6  # seconds of a member's work; a move to another core takes about 10 us

clock = time.perf_counter

# open for ever, since an interrupt between open and close would leave a file open
try:
    _LOADS = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
except OSError:
    _LOADS = -1


class GroupEnded(Exception):
    """The abort eventfd or the word QUIT is set."""


class PeerDied(Exception):
    """A member that this one waits for has died."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} died")
        self.rank = rank


class PeerFailed(Exception):
    """A member that this one waits for has raised, or the command has been abandoned."""


class Rivals:
    """Busy processes beside the members, noticed by a pass of a spin that takes long.

    A yield to one of them costs a slice. So after such a pass the waiter does not yield for a
    while, and not after that either as long as more processes are runnable than there are cores,
    or members where these outnumber cores.
    """

    def __init__(self, members: int = 1) -> None:
        self._until = 0.0  # no yields until then, as `clock` counts; 0: they are cheap
        self._seen = -math.inf
        self._pause = 0.0
        self._fair = max(os.cpu_count() or 1, members)  # runnable at once without any rival

    @property
    def seen(self) -> bool:
        """Whether rivals were present when last looked for."""
        return self._until > 0

    def present(self, now: float) -> bool:
        """Whether a yield may hand the core to a process that keeps it."""
        if not self._until:
            return False
        if now >= self._until:
            if runnable() <= self._fair:
                self._until = 0.0
                return False
            self._until = now + self._pause
        return True

    def timed(self, began: float) -> float:
        """End a pass that began then; returns the time now."""
        now = clock()
        if now - began > SLOW_YIELD_SECONDS:
            again = now - self._seen < 6 * self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE) if again else _SHORTEST_PAUSE
            self._seen, self._until = now, now + self._pause
        return now

    def give_way(self, now: float) -> None:
        """Let other members have the core: by a yield, beside busy processes by a short sleep."""
        if self.present(now):
            time.sleep(_POLL_SECONDS)
        else:
            os.sched_yield()
            self.timed(now)


def runnable() -> int:
    """Processes and threads of this machine that run or want to, this one among them; 0: unknown.

    It takes about 2 us: see proc(5), the fourth field of loadavg.
    """
    try:
        return int(os.pread(_LOADS, 64, 0).split()[3].split(b"/")[0])
    except (OSError, ValueError, IndexError):
        return 0


class Waiter:
    """Waits of one member for control words of the others."""

    def __init__(
        self,
        rank: int,
        master: int,
        words: ControlWords,
        bells: Sequence[int],
        abort: int,
        crowded: bool,  # whether members outnumber cores
        owned: Sequence[Descriptor] = (),
    ) -> None:
        self.rank = rank
        self._master = words.of[master]
        self._mine = words.of[rank]
        self._words = words.of
        self._bells = bells  # by rank, the eventfd that wakes the member
        # where each look at a word takes fences, members do not spin, but sleep and signal
        self._spin = 0.0 if crowded or not IS_ORDERED else SPIN_SECONDS
        self._least_yields = 0 if self._spin else YIELDS_WHERE_CROWDED
        self._first_looks = _LOOKS if self._spin else 1
        self._most_looks = _LOOKS_ALONE if self._spin else _LOOKS
        # how often a member looks at a word before it calls `wait`: a call of a function takes as
        # long as three looks
        self.looks = self._most_looks
        self.rivals = Rivals(len(bells))
        self._fence = threading.Lock()  # on x86 its locked instruction orders a store and a load
        self._poll = select.poll()
        self._poll.register(bells[rank], select.POLLIN)
        self._poll.register(abort, select.POLLIN)
        self._abort = abort
        # in the master, the bells and others, which the program may close. They are looked at every
        # 100 ms at most: before this member wakes one that sleeps, and while it sleeps itself. A
        # bell is also looked at before each wake: another file may have its number
        self._owned = owned
        self._eventfds = os.fstat(bells[rank]).st_ino  # they are one file to the kernel
        self._pidfds: dict[int, int] = {}
        self.tick: Callable[[], None] | None = None
        self.inspect: Callable[[], None] | None = None
        self.interrupts = Interrupts()
        self.keep_place: Callable[[], None] | None = None
        # the first and the longest nap, where events without an eventfd are waited for, too
        self.naps_ms: tuple[float, float] | None = None
        self._dead: set[int] | None = None  # deaths are noted here instead of raised
        self._waits = 0
        self._since = clock()  # the end of the last wait beside busy processes
        self._looked, self._ours = -math.inf, True  # at what descriptors are
        _waiters.add(self)

    @property
    def bell(self) -> int:
        """The eventfd by which others wake this member."""
        return self._bells[self.rank]

    def watch(self, pidfds: dict[int, int]) -> None:
        """Watch these members for deaths: {rank: pidfd}."""
        for rank, fd in pidfds.items():
            self._pidfds[fd] = rank
            self._poll.register(fd, select.POLLIN)

    @contextlib.contextmanager
    def surviving(self, dead: set[int]) -> Iterator[None]:
        """A context in which the ranks of members that die are put into `dead`.

        Waits raise no PeerDied in it, and `inspect` is not called.
        """
        before, self._dead, self.inspect = (self._dead, self.inspect), dead, None
        try:
            yield
        finally:
            self._dead, self.inspect = before
            for fd, rank in self._pidfds.items():
                if rank in dead:
                    self._poll.register(fd, select.POLLIN)

    def glance(self) -> None:
        """Note deaths and signals without waiting.

        Raises
        ------
        PeerDied, GroupEnded
        """
        self._listen(self._poll.poll(0))

    def ring(self, ranks: Iterable[int]) -> None:
        """Wake those of the members that sleep, after a word of this one has changed."""
        words = self._words
        for rank in ranks:
            if words[rank][ASLEEP] or not IS_ORDERED:
                self._signal(rank)

    def wait(self, ready: Callable[[], bool], idle: bool = False) -> None:
        """Return once `ready()` is true; it may raise to end the wait.

        `idle`: the change comes with a signal to this member's eventfd.

        Raises
        ------
        PeerDied, GroupEnded, and what `inspect` raises
        """
        # first without a look at the clock
        for _ in range(self._first_looks):
            if ready():
                return
        if self._spins(ready):
            return
        self._sleep(ready, IDLE_NAP_MS if idle else NAP_MS)
        if self.keep_place is not None and self.rivals.seen:
            now = clock()
            if now - self._since > WORTH_A_MOVE:
                self.keep_place()
            self._since = now

    def wait_for_gpu(self, done: Callable[[], bool], check: Callable[[], None]) -> None:
        """Return once `done()` is true, which no eventfd signals: the work of a GPU.

        `check` may raise to end the wait. Interrupts are delayed until the end, so that members
        finish together what they have begun together.

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
            time.sleep(_POLL_SECONDS)
            if clock() - began > NAP_MS / 1e3:
                began = clock()
                self._look_after()

    def wait_for_mpi(self, done: Callable[[], bool], check: Callable[[], None]) -> None:
        """Return once `done()` is true: MPI moves data only within such calls.

        All members have come, so a death does not keep it from ending; the next wait raises it.
        `check` may raise to end the wait. Interrupts are delayed until the end.

        Raises
        ------
        GroupEnded, and what `check` and `inspect` raise
        """
        for _ in range(_LOOKS):
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
        if not self._are_ours():
            raise PeerDied(self.rank)  # nothing wakes this member any more
        if self.tick is not None:
            self.tick()
        if self.inspect is not None:
            self.inspect()

    def rest(self) -> None:
        """Sleep after the death of a member, until a signal, the group's end or IDLE_NAP_MS.

        `wait` would raise PeerDied again at once. The master handles the death.
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
        """Spin; True once it is ready. Beside busy processes, look only once."""
        rivals, now = self.rivals, clock()
        if rivals.present(now):
            self.looks = _LOOKS
            self.interrupts.check()
            return ready()
        self.looks = self._most_looks
        self._waits += 1
        if self.keep_place is not None and self._waits % _PLACE_EVERY == 0:
            self.keep_place()
        until, yields = now + self._spin, 0
        while now < until or yields < self._least_yields:
            os.sched_yield()
            now = rivals.timed(now)
            if ready():
                return True
            if rivals.present(now):
                break
            yields += 1
            # about every 60 us
            if not yields & 63:
                self.interrupts.check()
        self.interrupts.check()
        return False

    def _sleep(self, ready: Callable[[], bool], later_naps: int) -> None:
        self._mine[ASLEEP] = 1
        nap, longest = self.naps_ms or (NAP_MS, later_naps)
        try:
            # the word first, then another look. Who changes a word in between sees ASLEEP and
            # signals, or the look sees the change
            with self._fence:  # released also where the handler of a signal raises
                pass
            while not ready():
                self.interrupts.check()
                if nap < 1:  # poll takes whole milliseconds
                    time.sleep(nap / 1000)
                if self._listen(self._poll.poll(int(nap))) and self._spins(ready):
                    return  # the signal comes before the change
                nap = min(_LONGER * nap, longest) if self.naps_ms else longest
                self._look_after()
        finally:
            self._mine[ASLEEP] = 0

    def _signal(self, rank: int) -> None:
        if self._are_ours() and self._is_bell(self._bells[rank]):
            os.eventfd_write(self._bells[rank], 1)

    def _is_bell(self, descriptor: int) -> bool:
        """Whether the program has not given this number to a file; 1 us."""
        try:
            return not self._owned or os.fstat(descriptor).st_ino == self._eventfds
        except OSError:
            return False

    def _are_ours(self) -> bool:
        """Whether the owned descriptors were ours at the latest look, which may be 100 ms ago.

        A look takes 1 to 3 us for each, too much for each wake.
        """
        if self._owned and (now := clock()) - self._looked > _LOOK_SECONDS:
            self._looked = now
            self._ours = all(descriptor.is_ours for descriptor in self._owned)
        return self._ours

    def _listen(self, events: list[tuple[int, int]]) -> bool:
        """Whether this member's eventfd was signalled."""
        if self._master[QUIT] or any(fd == self._abort for fd, _ in events):
            raise GroupEnded  # checked first: then deaths are a part of the end
        rang = False
        for fd, _ in events:
            if fd != self._bells[self.rank]:
                if self._dead is None:
                    raise PeerDied(self._pidfds[fd])
                self._dead.add(self._pidfds[fd])
                self._poll.unregister(fd)
            elif self._are_ours() and self._is_bell(fd):
                os.eventfd_read(fd)
            else:
                raise PeerDied(self.rank)
            rang = True
        return rang


class _Parted(Waiter):
    """The waiter of a fork of a member, which is no member itself."""

    def glance(self) -> NoReturn:
        """End what the fork does as the end of the group would."""
        raise GroupEnded

    def ring(self, ranks: Iterable[int]) -> NoReturn:
        """See `glance`; the descriptors may be other files here."""
        raise GroupEnded

    def wait(self, ready: Callable[[], bool], idle: bool = False) -> NoReturn:
        """See `glance`."""
        raise GroupEnded

    def wait_for_gpu(self, done: Callable[[], bool], check: Callable[[], None]) -> NoReturn:
        """See `glance`."""
        raise GroupEnded

    def wait_for_mpi(self, done: Callable[[], bool], check: Callable[[], None]) -> NoReturn:
        """See `glance`."""
        raise GroupEnded

    def rest(self) -> NoReturn:
        """See `glance`."""
        raise GroupEnded


_waiters: weakref.WeakSet[Waiter] = weakref.WeakSet()


def _part() -> None:
    for waiter in list(_waiters):
        waiter.__class__ = _Parted


os.register_at_fork(after_in_child=_part)
