"""A worker process: its start, and the commands that it runs until the group ends."""

from __future__ import annotations

import contextlib
import marshal
import os
from collections.abc import Iterator
from typing import Any

from synkhronos._engine.member import Member
from synkhronos._engine.transactions import Transactions
from synkhronos._host.arena import Arena
from synkhronos._host.cores import bind_worker
from synkhronos._host.files import replace
from synkhronos._transport.channels.channel import InlineChannel
from synkhronos._transport.channels.one_node_end import OneNodeEnd
from synkhronos._transport.communicators.gpus import with_gpus
from synkhronos._transport.communicators.shared_memory import SharedMemory
from synkhronos._transport.processes.worker import Wiring
from synkhronos._transport.shared_state.control_words import ControlWords
from synkhronos._transport.shared_state.node import Node
from synkhronos._transport.shared_state.status import Status
from synkhronos._transport.shared_state.waiting import Waiter
from synkhronos._transport.shared_state.worker_output import redirect


def main(wiring_fields: dict[str, Any]) -> None:
    """Run a worker process from its start until the group ends."""
    wiring = Wiring(**wiring_fields)
    if wiring.forked:  # a fresh interpreter has called it before its imports
        wiring.guard()
    _leave_stacks(wiring)
    arena = Arena(wiring.size, wiring.rank, wiring.arena_fd, wiring.region_bytes, wiring.mirror)
    arena.copy_in_forks()
    os.register_at_fork(after_in_child=arena.close_fd)  # the locks in it are those of members
    Status(arena).describe(wiring.master)
    words = ControlWords(arena)
    waiter = Waiter(wiring.rank, wiring.master, words, wiring.bells, wiring.abort, wiring.crowded)
    node = Node(wiring.rank, wiring.master, arena, words, waiter)
    bind_worker(wiring.cores)
    if not wiring.debug:
        _leave_terminal()
        redirect(words, wiring.rank, wiring.master)
    comm = with_gpus(SharedMemory(node), wiring.members_per_gpu)
    member = Member(
        wiring.rank, wiring.size, wiring.master, comm, node.views, waiter.interrupts, node
    )
    with _profiled(wiring):
        end = OneNodeEnd(node)
        end.ready()
        Transactions(member, InlineChannel()).serve(end)
    member.communicator.close()


def _leave_terminal() -> None:
    """Close the terminal, so that only the master reads it."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _leave_stacks(wiring: Wiring) -> None:
    """Write the Python stack to a file that the master reads, at a crash or on SIGUSR1."""
    import faulthandler
    import signal

    faulthandler.enable(wiring.stacks)
    faulthandler.register(signal.SIGUSR1, file=wiring.stacks, all_threads=True)


@contextlib.contextmanager
def _profiled(wiring: Wiring) -> Iterator[None]:
    if not wiring.profile:
        yield
        return
    import cProfile

    profile = cProfile.Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        profile.create_stats()
        replace(f"synk_worker_{wiring.rank}.prof", marshal.dumps(profile.stats))  # as dump_stats
