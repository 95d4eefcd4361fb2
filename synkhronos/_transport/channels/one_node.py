"""The channel between processes of one machine: control words and mailboxes in the arena.

The master writes a command into its mailbox (a large one into a block of its region), writes the
command's number into POSTED, and signals the workers that sleep. A worker writes its outcome into
its own mailbox, then the number into REPORTED. A command that is posted again as the same object
travels as one word: every worker keeps it under NUMBER.
"""

# These rules hold here:
#
# * A number is written last. The master writes the bytes of a command, then LENGTH, OFFSET and
#   NUMBER, then POSTED; a worker its outcome, then REPORTED. So whoever sees the number sees the
#   rest: x86 keeps the order of stores, and elsewhere words have fences (`ordered_words`).
# * A mailbox is overwritten when nobody reads it any more: that of commands after all have reported
#   on the one before, also an abandoned one; that of outcomes after the next command was posted.
# * An outcome that is `lent` is read where the worker has written it, and void after the next
#   command. All others are copied.
# * Bytes too large for a mailbox get a block of the sender's region, which the sender keeps until
#   its next large one.
# * Exceptions travel as text (`Failure`): to unpickle an unknown one can hang or run code.
# * The master owns workers and descriptors. A fork of it closes its copies, and ends nothing.

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from synkhronos._errors import GroupClosed, GroupError, WorkerDied
from synkhronos._host.arena import Arena
from synkhronos._host.descriptors import Descriptor
from synkhronos._host.thread_pools import ThreadLimits
from synkhronos._transport import serialization
from synkhronos._transport.channels.channel import WORKER_DIED, Channel
from synkhronos._transport.channels.repeated_commands import (
    Repeatable,
    SentCommands,
)
from synkhronos._transport.channels.stalls import Inspector
from synkhronos._transport.processes.child_process import END_SECONDS, end
from synkhronos._transport.processes.fork_safety import reasons_against_fork
from synkhronos._transport.processes.lasting_thread import LastingThread
from synkhronos._transport.processes.worker import (
    Wiring,
    Worker,
    exec_worker,
    fork_worker,
    signals_blocked,
)
from synkhronos._transport.shared_state.control_words import (
    ABANDONED,
    COMMITTED,
    COMPILING,
    LENGTH,
    MAILBOX,
    MAILBOX_BYTES,
    MAX_MEMBERS,
    NUMBER,
    OFFSET,
    PID,
    POSTED,
    PRINTED,
    PROGRESS,
    QUIT,
    READY,
    REPORTED,
    RESULTS,
    STOPPING,
    TAILS,
    ControlWords,
    progress_of,
)
from synkhronos._transport.shared_state.node import Node
from synkhronos._transport.shared_state.status import Status
from synkhronos._transport.shared_state.waiting import GroupEnded, PeerDied, Waiter
from synkhronos._transport.shared_state.worker_output import OutputReader
from synkhronos._warnings import log

READY_SECONDS = 60.0  # a worker started by exec imports PyTensor first

_alive: weakref.WeakSet[OneNodeChannel] = weakref.WeakSet()
_dying: set[OneNodeChannel] = set()  # closed, with killed workers that are not gone


class OneNodeChannel(Channel):
    """The master's end; it owns the workers and the descriptors, but not the arena."""

    inspector: Inspector
    workers: list[Worker]

    def __init__(
        self,
        arena: Arena,
        cores: list[list[int]],
        main: Callable[[dict[str, object]], None],
        module: str,
        start: str | None,
        devices: Sequence[str],
        environments: Sequence[dict[str, str]],
        **options: object,
    ) -> None:
        size = arena.regions
        if size > MAX_MEMBERS:
            raise GroupError(f"asked for {size} members; one machine takes up to {MAX_MEMBERS}")
        self.owner = os.getpid()
        self._sent = SentCommands()
        self._all_reported = True
        self._large: np.ndarray | None = None  # the latest large command
        self._broken = ""
        workers: list[Worker] = []
        self.workers = workers
        self.what = "start"  # the latest command's name in messages
        self._devices = devices
        self._environments = environments
        self._descriptors: list[Descriptor] = []
        self._open = True
        self._arena = arena
        self._waiter: Waiter | None = None
        self._starting = LastingThread(lambda: [os.dup(w.pidfd) for w in workers])
        crowded = size > len({core for share in cores for core in share})
        try:
            arena.reserve_heads()
            self._open_descriptors(size)
            self._connect(arena, crowded)
            with signals_blocked():
                self._starting.call(
                    lambda: self._start(self._ranks, cores, crowded, main, module, start, options)
                )
                _alive.add(self)
            self._await_ready()
        except BaseException:
            self.quit(0.0)
            self.close()
            raise

    def _open_descriptors(self, size: int) -> None:
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        opened = self._descriptors
        for _ in range(size + 1):
            opened.append(Descriptor(os.eventfd(0, flags)))
        *self._bells, self._abort = opened
        opened += map(Descriptor, os.pipe2(os.O_CLOEXEC))
        self._lifeline, self._lifeline_end = opened[-2:]
        for rank in range(size):
            opened.append(Descriptor(os.memfd_create(f"synkhronos-stack-{rank}")))
            fcntl.fcntl(opened[-1], fcntl.F_SETFL, os.O_APPEND)
        self._stacks = opened[-size:]

    def _connect(self, arena: Arena, crowded: bool) -> None:
        words, master = ControlWords(arena), arena.mine
        places = master, master, words, self._bells, self._abort, crowded
        self._waiter = waiter = Waiter(*places, self._descriptors)
        self.interrupts = waiter.interrupts
        self.node = Node(master, master, arena, words, waiter)
        self._master_words = words.of[master]
        self._status = Status(arena)
        self._status.describe(master)
        self._ranks = ranks = [r for r in range(arena.regions) if r != master]
        self._reports = [words.of[r] for r in ranks]
        self._pairs = list(zip(ranks, self._reports, strict=True))
        self._reader = OutputReader(words, ranks, master)
        waiter.tick = self._reader.drain
        self.inspector = Inspector(words, master, self.workers, self._stacks, self._devices)
        waiter.inspect = self._inspect

    def _inspect(self) -> None:
        self.inspector.look(self.node.number, self.what)

    def _start(
        self,
        ranks: list[int],
        cores: list[list[int]],
        crowded: bool,
        main: Callable[[dict[str, object]], None],
        module: str,
        start: str | None,
        options: dict[str, object],
    ) -> None:
        await_killed()
        reasons = reasons_against_fork() if start != "exec" else []
        self.started = start or ("exec" if reasons else "fork")
        if start == "fork" and reasons:
            raise GroupError(
                f'start="fork" would hang or crash the workers, since {"; ".join(reasons)}: use '
                'start="exec" or leave it out'
            )
        if reasons:
            log.info("workers start by exec, since %s", "; ".join(reasons))
        forks = self.started == "fork" and ranks
        with ThreadLimits(len(cores[ranks[0]])) if forks else contextlib.nullcontext():
            for rank in ranks:
                wiring = self._wiring(rank, cores[rank], crowded, options)
                if self.started == "exec":
                    made = exec_worker(wiring, module, self._environments[rank])
                else:
                    made = fork_worker(wiring, main, self._withheld(rank))
                self.workers.append(made)
        self.node.waiter.watch({w.rank: w.pidfd for w in self.workers})

    def _withheld(self, rank: int) -> list[int]:
        """Descriptors that a forked worker must close, above all the lifeline's write end."""
        stacks = [fd for r, fd in enumerate(self._stacks) if r != rank]
        return [self._lifeline_end, *stacks, *(w.pidfd for w in self.workers)]

    def _wiring(
        self, rank: int, cores: list[int], crowded: bool, options: dict[str, Any]
    ) -> Wiring:
        arena = self.node.arena
        return Wiring(
            rank=rank,
            size=arena.regions,
            master=self.node.master,
            arena_fd=arena.own_fd(),
            region_bytes=arena.region_bytes,
            mirror=arena.mirrors,
            bells=[*self._bells],
            abort=self._abort,
            lifeline=self._lifeline,
            stacks=self._stacks[rank],
            parent=self.owner,
            cores=cores,
            crowded=crowded,
            forked=self.started == "fork",
            **options,
        )

    def _await_ready(self) -> None:
        until = time.monotonic() + READY_SECONDS

        def ready() -> bool:
            if all(w[READY] for w in self._reports):
                return True
            if time.monotonic() > until:
                late = [r for r, w in self._pairs if not w[READY]]
                raise GroupError(
                    f"ranks {late} did not start within {READY_SECONDS:.0f} s by {self.started}: "
                    f'try start="{"fork" if self.started == "exec" else "exec"}"'
                )
            return False

        self._wait(ready, "start")

    def _wait(self, ready: Callable[[], bool], during: str) -> None:
        try:
            self.node.waiter.wait(ready)
        except (PeerDied, GroupEnded):
            raise self.loss(during) from None

    def loss(self, during: str) -> WorkerDied | GroupClosed:
        """See Channel; reads the exit status of the dead workers."""
        if self.owner != os.getpid():
            return GroupClosed(
                f"{during}: this process (pid {os.getpid()}) is a fork of the group's master (pid "
                f"{self.owner}), made inside of the call, and cannot continue it"
            )
        if self._master_words[QUIT] and not self._broken:
            return super().loss(during)
        self._broken = WORKER_DIED
        dead = [w for w in self.workers if w.dead()]
        for worker in dead:
            worker.reap()
        deaths = {w.rank: (w.pid, self.device(w.rank), w.ended) for w in dead}
        error = WorkerDied.of(deaths, during)
        for worker in dead:
            if stack := self.inspector.left(worker.rank):
                error.add_note(f"rank {worker.rank} left this stack:\n{stack}")
        return error

    @property
    def broken(self) -> str:
        return self._broken

    def wake(self) -> None:
        if self._open:
            self.node.waiter.ring(self._ranks)

    def post(
        self, command: Repeatable, what: str = "a command", also: Callable[[], None] | None = None
    ) -> int:
        """See Channel. `also` sends the command elsewhere, after all that can fail here."""
        number = self._master_words[POSTED] + 1
        if not self._all_reported:  # an abandoned command may still run
            self.inspector.start_again()
            self._await_reports(number - 1, "an earlier command")
        self._all_reported = False
        if what is not self.what:
            self.what = what
            self._status.show(what)
        # which keeps the command: so no other object has its `id`
        sent = self._sent.get(id(command))
        if sent is not None:
            self._master_words[NUMBER] = sent[0]
            self._master_words[LENGTH] = 0
        elif self.workers:
            self._write(command)
            self._status.began(number)
        if also is not None:
            also()
        self.node.begin(number)
        # the last store: from here on workers run it
        self._master_words[POSTED] = number
        self.node.waiter.ring(self._ranks)
        return number

    def count_from(self, first: int) -> None:
        """Set the rank of this node's first member, for the prefixes of what workers print."""
        self._reader.first = first
        self._status.count_from(first)

    @property
    def number(self) -> int:
        return int(self._master_words[POSTED])

    def _await_reports(self, number: int, during: str) -> None:
        if not self.reported(number):
            self._wait(lambda: self.reported(number), during)

    def reported(self, number: int) -> bool:
        """Whether all workers have reported on a command."""
        for words in self._reports:  # noqa: SIM110 (a generator costs half a microsecond)
            if words[REPORTED] < number:
                return False
        return True

    def _write(self, command: Repeatable) -> None:
        packed = serialization.Serialized(command)
        arena = self.node.arena
        if packed.nbytes <= MAILBOX_BYTES:
            target = self.node.words.bytes[self.node.master][MAILBOX : MAILBOX + MAILBOX_BYTES]
            offset = self.node.master * arena.region_bytes + MAILBOX
        else:
            self._large = arena.empty((packed.nbytes,), np.uint8)
            target, offset = memoryview(self._large), arena.offset(self._large)
        self._master_words[LENGTH] = packed.write(target)
        self._master_words[OFFSET] = offset
        self._master_words[NUMBER] = self._sent.add(command)

    def collect(self, number: int, lent: bool = False) -> dict[int, object]:
        # one worker after the other: in any order the slowest decides
        looks = self.node.waiter.looks
        for words in self._reports:
            for _ in range(looks):
                if words[REPORTED] >= number:
                    break
            else:
                self.end_exchanges(number)
                self._await_reports(number, self.what)
                break
        self._all_reported = True
        return self.reports(number, lent)

    def end_exchanges(self, number: int) -> None:
        """Tell the workers that this member comes to no further exchange of a command.

        A worker that waits for it at one, since members chose differently, then raises PeerFailed.
        """
        self._master_words[REPORTED] = number

    def reports(self, number: int, lent: bool = False) -> dict[int, object]:
        found: dict[int, object] = {}
        for rank, words in self._pairs:
            if words[REPORTED] < number:
                continue
            # shown before the call returns, as if the master had printed it
            if words[PRINTED] != self._master_words[TAILS + rank]:
                self._reader.drain()
            length = words[LENGTH]
            if length:
                found[rank] = self._outcome(rank, length, words[OFFSET], lent)
        return found

    def late(self, number: int) -> list[int]:
        return [rank for rank, words in self._pairs if words[REPORTED] < number]

    def kill(self, ranks: Sequence[int]) -> None:
        for worker in self.workers:
            if worker.rank in ranks:
                worker.kill()

    def _outcome(self, rank: int, length: int, offset: int, lent: bool) -> object:
        if length < 0:
            return self.node.words.reals[rank][RESULTS : RESULTS - length].tolist()
        region = np.ndarray((length,), np.uint8, self.node.arena.buffer, offset)
        return serialization.read(memoryview(region if lent else region.copy()))

    def commit(self, number: int) -> None:
        self._master_words[COMMITTED] = number
        self.wake()

    def committed(self) -> bool:
        return bool(self._master_words[COMMITTED] == self._master_words[POSTED])

    def abandon(self) -> None:
        self._master_words[ABANDONED] = self._master_words[POSTED]
        self._sent.clear()  # a worker may not have read the latest one
        # after a death all are ended next: if they woke, they would keep the cores from the master
        if self._open and not any(w.dead() for w in self.workers):
            self.wake()

    def stop(self, number: int) -> None:
        self._master_words[STOPPING] = number

    def progress(self, number: int) -> list[int]:
        return [progress_of(number, words[PROGRESS]) for words in self.node.words.of]

    def compiling(self) -> list[int]:
        return [w.rank for w in self.workers if self.node.words.of[w.rank][COMPILING]]

    def pid(self, rank: int) -> int:
        return self.owner if rank == self.node.master else int(self.node.words.of[rank][PID])

    def device(self, rank: int) -> str:
        return self._devices[rank]

    def quit(self, grace: float, patience: float = END_SECONDS) -> None:
        if not self.workers or not self._open:
            return
        self._master_words[QUIT] = 1
        if not grace:  # first: if all woke to leave, they would keep the cores from the master
            self.kill(self._ranks)
        if self._abort.is_ours:
            os.eventfd_write(self._abort, 1)
        end(self.workers, grace, patience)

    def close(self) -> None:
        if not self._open:
            return
        try:
            if self.workers:
                self._reader.drain()
        finally:
            self._close_descriptors()
            _alive.discard(self)
            if self._waiter is not None:  # a cycle would keep the memory until a collection
                self._waiter.tick = self._waiter.inspect = None
            if all(w.ended for w in self.workers):
                self._forget_workers()
            else:
                _dying.add(self)

    def _close_descriptors(self) -> None:
        self._open = False
        while self._descriptors:
            self._descriptors.pop().close()

    def _forget_workers(self) -> None:
        """Free what workers had that have ended."""
        self._arena.empty_other_regions()
        for worker in self.workers:
            worker.leave()
        self._starting.join()

    def await_workers(self) -> None:
        """Wait for the end of workers that were killed."""
        end(self.workers, END_SECONDS)
        self._forget_workers()

    def disown(self) -> None:
        """In a fork of the master: close all that keeps the group alive."""
        for worker in self.workers:
            if worker.popen is not None:
                worker.popen.returncode = 0  # not a child of this process
            worker.leave()
        self._arena.close_fd()
        self._close_descriptors()


def await_killed() -> None:
    """Wait for the ends of workers that were killed, and were not gone when `quit` returned.

    The kernel takes about 10 ms of a core for the end of each process.
    """
    for channel in list(_dying):
        _dying.discard(channel)
        channel.await_workers()


def _disown_all() -> None:
    for channel in [*_alive, *_dying]:
        channel.disown()
    _alive.clear()
    _dying.clear()


os.register_at_fork(after_in_child=_disown_all)
