"""Groups of several nodes: how leaders start a group, and how all but the first one serve it.

The first process of an MPI launch runs the user's script. The others do not return from `fork`:
each is the leader of its node in every group that the first process starts, until that process
ends.
"""

# These rules hold here:
#
# * The first process decides. The others start what `OpenGroup` asks, serve it, and exit at
#   `EndLaunch`. They raise nothing to a user: the first process raises their errors.
# * Workers of the first group are forked before MPI is initialised, since an MPI process must not
#   be forked.
# * Whatever fails while a node starts, its leader still comes to the meeting, with its trouble as
#   text. Otherwise the leaders of the other nodes would wait for it.
# * Only the master has limits of time. Inspectors of the other nodes are off.
# * The leader of a node runs commands as the master does, by `Transactions`. A death on its node is
#   a part of its report.
# * After a transfer that was left, this launch starts no other group, and its end aborts MPI: that
#   transfer may still write into memory.
# * Launchers send SIGINT and SIGUSR1 to all processes. Only the first one handles them.

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytensor

from synkhronos._backends import mpi as mpi_backend
from synkhronos._engine.commands.base import Command
from synkhronos._engine.group_options import GroupOptions
from synkhronos._engine.member import LongCommandAbove, Member
from synkhronos._engine.transactions import Transactions
from synkhronos._errors import GroupError, StartFailed
from synkhronos._host.arena import Arena
from synkhronos._host.cores import MasterCores
from synkhronos._host.devices import Device
from synkhronos._host.launch_settings import launch_settings
from synkhronos._transport.channels.channel import ReceivingEnd
from synkhronos._transport.channels.leader_tree import Leaders
from synkhronos._transport.channels.multi_node import (
    CommandReceiver,
    MultiNodeChannel,
    message_of,
    read_message,
    reports_of,
)
from synkhronos._transport.channels.one_node import OneNodeChannel
from synkhronos._transport.channels.placement import Placement
from synkhronos._transport.communicators.between_nodes import BetweenNodes
from synkhronos._transport.communicators.gpus import with_gpus
from synkhronos._transport.communicators.hierarchy import Hierarchy
from synkhronos._transport.communicators.shared_memory import SharedMemory
from synkhronos._transport.processes.guards import end_with_parent
from synkhronos._transport.processes.worker import started_by_main_thread
from synkhronos._transport.shared_state.waiting import GroupEnded, PeerDied, PeerFailed
from synkhronos._transport.shared_state.worker_output import labelled, logged
from synkhronos._warnings import log

_SPIN_SECONDS = 0.001
_NAPS_MS = (0.05, 10)  # of leaders, first and longest: MPI has no descriptor to sleep on
_COUNT_SECONDS = 0.01  # between two messages about the progress of a long command
_REST_SECONDS = 0.02  # between two attempts to get a command, after a worker has died
_DEATH_SECONDS = 0.001  # the same, to send a report or to get a verdict
_END_SECONDS = 5.0  # that leaders have to leave a command when the first process ends


@dataclass(frozen=True)
class OpenGroup:
    """The first process asks for a group."""

    options: dict[str, object]
    # of PyTensor. The script may have changed them after the other processes entered `fork`
    settings: dict[str, str]


@dataclass(frozen=True)
class EndLaunch:
    """The first process ends."""


@dataclass(frozen=True)
class NodeInfo:
    """The message of a leader about its node; `members_per_gpu` as in GroupOptions."""

    host: str
    pids: list[int]
    devices: tuple[Device, ...]
    members_per_gpu: int
    versions: dict[str, str]
    trouble: str = ""


@dataclass(frozen=True)
class AssignRank(Command):
    """Tell the workers of a node their ranks in the group."""

    placement: Placement
    node: int
    members_per_gpu: int

    def run(self, member: Member) -> None:
        """Use the rank from now on."""
        home = member.communicator
        assert isinstance(home, SharedMemory), home  # as every worker has until it has its rank
        host = Hierarchy(home, self.placement, self.node, None)
        member.assign_rank(with_gpus(host, self.members_per_gpu))


@dataclass
class MpiProcess:
    """This process in MPI, from the first group until it exits."""

    world: mpi_backend.World
    leaders: Leaders
    busy: bool = False  # whether a group is alive

    def awaited(self) -> tuple[tuple[int, ...], str]:
        """The nodes that are late, for messages; while a group starts, no ranks are known."""
        return (), ", ".join(f"node {node}" for node in self.leaders.missing())

    def idle(self) -> None:
        """Wait without watching a group, since there is none."""
        self.leaders.wait_with(_wait)
        self.world.wait_with(mpi_backend.poll)

    def end(self) -> None:
        """Let the other leaders exit; abort the job if one of them does not answer.

        MPI ends in all processes together, so this one would wait without end.
        """
        until = time.monotonic() + _END_SECONDS

        def late() -> bool:
            if time.monotonic() < until:
                return False
            nodes = self.leaders.missing()
            log.error("nodes %s do not answer: the job is ended by MPI_Abort", nodes)
            self.world.abort()

        if self.leaders.transfer_failed:
            log.error("a transfer between nodes has not ended: the job is ended by MPI_Abort")
            self.world.abort()
        self.leaders.wait_with(lambda ready: _wait(lambda: ready() or late()))
        self.leaders.post(self.leaders.number + 1, message_of(EndLaunch()))
        self.leaders.collect()
        self.world.finalize()


_LAUNCHER = os.getppid()
_joined: list[MpiProcess] = []  # at most one
_awaiting: list[dict[str, str]] = []  # at most one: the settings when `expect` was called


def _part() -> None:
    """In a fork: it is no process of the launch."""
    for process in _joined:
        process.world.part()
    _joined.clear()
    _awaiting.clear()


os.register_at_fork(after_in_child=_part)


def _join() -> MpiProcess:
    """Initialise MPI, once."""
    if not _joined:
        if started_by_main_thread():
            end_with_parent()  # some launchers leave their processes behind when they are killed
            if os.getppid() != _LAUNCHER:
                os._exit(1)  # the launcher has died before
        with _kept(signal.SIGUSR1):
            world = mpi_backend.World()
        _joined.append(MpiProcess(world, Leaders(world, _wait)))
    return _joined[0]


@contextlib.contextmanager
def _kept(number: int) -> Iterator[None]:
    """A context that keeps what this process does at a signal: MPICH takes SIGUSR1 for itself."""
    before = signal.getsignal(number)
    yield
    if started_by_main_thread() and before is not None:
        signal.signal(number, before)


def expect() -> None:
    """In the first process: note that the others serve from now on.

    Their settings are compared with the current ones, since the script may change its own later.
    """
    _awaiting[:] = [_settings()]


def busy() -> bool:
    """Whether a group of this process spans the nodes."""
    return any(process.busy for process in _joined)


@atexit.register  # before `group` registers its own: so this runs after all groups are closed
def _end() -> None:
    """Let the other leaders exit."""
    if _awaiting:
        _join()
    for process in _joined:
        if process.world.rank == 0:
            process.end()


def _wait(ready: Callable[[], bool]) -> None:
    """Wait without watching a group."""
    until, (nap, longest) = time.perf_counter() + _SPIN_SECONDS, _NAPS_MS
    while not ready():
        if time.perf_counter() > until:
            time.sleep(nap / 1000)
            nap = min(2 * nap, longest)


def _settings() -> dict[str, str]:
    return {name: str(getattr(pytensor.config, name)) for name in ("mode", "floatX")}


def _info(
    start: GroupOptions | None,
    channel: OneNodeChannel | None,
    settings: dict[str, str],
    trouble: str = "",
) -> NodeInfo:
    pids = [] if channel is None else [channel.pid(r) for r in range(channel.node.size)]
    devices, shared = ((), 0) if start is None else (start.devices, start.members_per_gpu)
    versions = {
        "Python": platform.python_version(),
        "Synkhronos": sys.modules["synkhronos"].__version__,
        "PyTensor": pytensor.__version__,
        "numpy": np.__version__,
        **settings,
    }
    return NodeInfo(platform.node(), pids, devices, shared, versions, trouble)


def _difference(infos: list[NodeInfo]) -> str:
    """Why these nodes cannot form a group; empty if they can."""
    found = [f"node {i} ({h.host}): {h.trouble}" for i, h in enumerate(infos) if h.trouble]
    first = infos[0]
    for i, other in enumerate(infos[1:], 1):
        found += [
            f"{what} is {value} on node {i} ({other.host}), {first.versions[what]} on node 0"
            for what, value in other.versions.items()
            if value != first.versions[what]
        ]
    return "; ".join(found)


def _meet(process: MpiProcess, info: NodeInfo) -> list[NodeInfo]:
    """Exchange information between all leaders; raises in all of them if they cannot be a group."""
    _, heard = process.leaders.agree(payload=message_of(info))
    infos: list[NodeInfo] = [read_message(heard[r]) for r in range(process.world.size)]
    if different := _difference(infos):
        raise StartFailed(f"the nodes cannot be one group: {different}")
    return infos


def _placement(infos: list[NodeInfo]) -> Placement:
    return Placement(tuple(len(h.pids) for h in infos))


def _labels(infos: list[NodeInfo]) -> list[str]:
    """The place and the device of each member, for messages."""
    return [
        f"{f'{device}, ' if device.kind != 'cpu' else ''}node {node} ({info.host})"
        for node, info in enumerate(infos)
        for device in info.devices
    ]


def _member(
    process: MpiProcess,
    start: GroupOptions,
    channel: OneNodeChannel,
    infos: list[NodeInfo],
    master_cores: MasterCores | None,
) -> Member:
    """Make the leader's member, after the workers of its node know their ranks."""
    placement, shared = _placement(infos), [h.members_per_gpu for h in infos]
    members_per_gpu = max(shared) if all(shared) else 0
    node, rank = process.world.rank, placement.first[process.world.rank]
    channel.count_from(rank)
    if channel.workers:
        number = channel.post(AssignRank(placement, node, members_per_gpu), "start")
        channel.collect(number)
    between = BetweenNodes(process.leaders, process.world, channel.interrupts)
    host = Hierarchy(SharedMemory(channel.node), placement, node, between)
    comm = with_gpus(host, members_per_gpu)
    member = Member(
        rank,
        placement.size,
        0,
        comm,
        channel.node.views,
        channel.interrupts,
        channel.node,
        master_cores,
    )
    member.on_node.cores = sorted({core for share in start.cores for core in share})
    return member


def _watch(process: MpiProcess, channel: OneNodeChannel) -> None:
    waiter, check = channel.node.waiter, process.leaders.check_transfer
    waiter.naps_ms = _NAPS_MS
    process.leaders.wait_with(waiter.wait)
    channel.inspector.compiling = process.leaders.compiling
    process.world.wait_with(lambda done: waiter.wait_for_mpi(done, check))


def lead_all(
    start: GroupOptions, channel: OneNodeChannel, master_cores: MasterCores | None
) -> tuple[MultiNodeChannel, Member]:
    """In the first process, after its own workers have started: join the other nodes."""
    try:
        process = _join()
        if process.leaders.transfer_failed:
            raise GroupError(
                "a transfer between nodes has not ended, so this job can start no other group: let "
                "it end, and launch it again"
            )
        settings = _ask(process, start)
        _watch(process, channel)
        channel.inspector.elsewhere = process.awaited
        infos = _meet(process, _info(start, channel, settings))
        member = _member(process, start, channel, infos, master_cores)
    except BaseException:
        for joined in _joined:
            joined.leaders.leave()
        channel.quit(0.0)
        channel.close()
        raise
    process.busy = True

    def closed() -> None:
        process.busy = False
        process.idle()

    pids = [pid for h in infos for pid in h.pids]
    places = _placement(infos), pids, _labels(infos)
    devices = tuple(device for h in infos for device in h.devices)
    made = MultiNodeChannel(channel, process.leaders, *places, _broadcast(process), closed, devices)
    return made, member


def _ask(process: MpiProcess, start: GroupOptions) -> dict[str, str]:
    """Ask the other leaders to start a group; returns the settings to compare with theirs."""
    settings = _awaiting[0] if _awaiting else _settings()
    process.leaders.post(process.leaders.number + 1, message_of(OpenGroup(start.options, settings)))
    return settings


def cancel(start: GroupOptions, why: Exception) -> None:
    """In the first process, if its own workers do not start: tell the others, which wait."""
    process = _join()
    if process.leaders.transfer_failed:
        return
    process.idle()
    with contextlib.suppress(GroupError, PeerFailed):
        _meet(process, _info(None, None, _ask(process, start), _told(why)))


def _told(why: Exception) -> str:
    return f"{type(why).__name__}: {why}"


def _broadcast(process: MpiProcess) -> Callable[[np.ndarray], None]:
    return lambda buffer: process.world.broadcast(buffer, 0)


def follow(start: GroupOptions | None, launch: mpi_backend.Launch) -> NoReturn:
    """In the other processes: serve groups until the first process ends.

    `start` belongs to the first group; the first process sends the options of later ones.
    """
    if started_by_main_thread():
        # launchers send both to all processes; only the first one handles them
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    first = None if start is None else _attempt(start)  # workers are forked before MPI
    process, alike = _join(), False
    while True:
        process.idle()
        process.leaders.reset()
        order = process.leaders.next()
        if order is None:
            continue
        asked = read_message(order[1])
        if isinstance(asked, EndLaunch):
            break
        make = first or functools.partial(_make, launch, asked.options)
        # the script may change the first process's settings later, and not those of this process
        settings = asked.settings if alike else _settings()
        alike |= _serve_group(process, make, settings)
        first = None
    process.leaders.report(b"")
    process.world.leave()


@dataclass(frozen=True)
class Started:
    """A node's workers; `undo` frees what was made for them, after they have ended."""

    start: GroupOptions
    arena: Arena
    channel: OneNodeChannel
    undo: contextlib.ExitStack


def _started(start: GroupOptions) -> Started:
    try:
        with contextlib.ExitStack() as undo:
            if folder := launch_settings().log_dir:
                undo.enter_context(logged(Path(folder)))
            undo.callback(start.bind())
            arena = start.arena()
            undo.callback(arena.close_fd)
            channel = start.start_workers(arena)
            channel.inspector.limit = channel.inspector.warning = math.inf  # the master has limits
            return Started(start, arena, channel, undo.pop_all())
    except OSError as exc:
        raise StartFailed.of(len(start.devices), exc) from exc


def _make(launch: mpi_backend.Launch, options: dict[str, Any]) -> Started:
    return _started(GroupOptions.of(**options, launch=launch))


def _attempt(start: GroupOptions) -> Callable[[], Started]:
    """Start workers now; an error is raised when the first process asks for the group."""
    try:
        started = _started(start)
    except Exception as exc:
        log.error("%s", exc)  # MPI may fail for the same lack of memory
        return functools.partial(_raise, exc)
    return lambda: started


def _raise(error: Exception) -> NoReturn:
    raise error


def _serve_group(
    process: MpiProcess, make: Callable[[], Started], settings: dict[str, str]
) -> bool:
    """Serve one group until it ends; returns whether the settings of all nodes were equal."""
    node: Started | None = None
    master_cores, trouble, alike = None, "", False
    try:
        node = make()
        master_cores = node.start.master_cores()
        _watch(process, node.channel)
    except Exception as exc:
        trouble = _told(exc)
    try:
        start, channel = (node.start, node.channel) if node else (None, None)
        infos = _meet(process, _info(start, channel, settings, trouble))
        alike = True
        assert node is not None
        member = _member(process, node.start, node.channel, infos, master_cores)
        received = CommandReceiver(node.arena, _broadcast(process), process.leaders.fail_transfer)
        ranks = _placement(infos).ranks(process.leaders.rank)
        with labelled(member.rank):
            end = LeaderEnd(process.leaders, node.channel, ranks, received)
            _serve(member, node.channel, end)
        member.communicator.close()
    except (GroupError, PeerFailed, GroupEnded):
        pass  # the first process raises the error
    finally:
        if node is not None:
            node.channel.quit(node.start.grace)
            node.channel.close()
            node.undo.close()
    return alike


def _serve(member: Member, channel: OneNodeChannel, end: LeaderEnd) -> None:
    member.on_node.above = end
    try:
        Transactions(member, channel).serve(end)
    finally:
        member.on_node.above = None  # a cycle would keep the memory until it is collected
    end.skip_rest()


class LeaderEnd(ReceivingEnd, LongCommandAbove):
    """The end of the tree of leaders in a node that is not the master's."""

    def __init__(
        self, leaders: Leaders, channel: OneNodeChannel, ranks: range, received: CommandReceiver
    ) -> None:
        self._leaders = leaders
        self._channel = channel
        self._ranks = ranks
        self._received = received
        self._counted = 0.0

    def next(self) -> tuple[int, Callable[[], object]] | None:
        """Wait for the next command."""
        while True:
            try:
                order = self._leaders.next()
            except PeerDied:  # the next command reports it
                time.sleep(_REST_SECONDS)
                continue
            if order is None:
                return None
            number, message = order
            return number, functools.partial(self._received.command, message)

    def leave(self) -> None:
        """Tell the other leaders that this one agrees to no further transfer of the command."""
        self._leaders.leave()

    def report(
        self, number: int, outcome: object = None, below: dict[int, object] | None = None
    ) -> None:
        """Send the outcomes of the node's members up the tree."""
        first = self._ranks.start
        found = {first + rank: reported for rank, reported in (below or {}).items()}
        if outcome is not None:
            found[first] = outcome
        says = reports_of(found)
        while True:
            try:
                self._leaders.report(says)
                return
            except PeerDied:
                time.sleep(_DEATH_SECONDS)

    def verdict(self, number: int) -> bool:
        """Wait for the verdict of the master."""
        while True:
            try:
                return self._leaders.verdict()
            except PeerDied:
                time.sleep(_DEATH_SECONDS)

    def skip_rest(self) -> None:
        """Receive the arrays that were sent with commands after the group's end."""
        for message in self._leaders.overtaken:
            self._received.skip(message)

    @property
    def stopping(self) -> bool:
        """Whether a long command shall return; the members of this node are told."""
        stopping = self._leaders.stopping
        if stopping:
            self._channel.stop(self._channel.number)
        return stopping

    def compiling(self, now: bool) -> None:
        """Tell the other leaders whether this one compiles, or a member of its node."""
        self._leaders.compiling(now or bool(self._channel.compiling()))

    def count(self) -> None:
        """Send up what this node has counted, at most every 10 ms."""
        now = time.monotonic()
        if now - self._counted < _COUNT_SECONDS:
            return
        self._counted = now
        counts = self._channel.progress(self._channel.number)
        self._leaders.count(np.array(counts, np.int64).tobytes())
