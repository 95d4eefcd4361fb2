"""Starting the members of a group: at its start, and again when its workers are restarted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NoReturn

import pytensor

from synkhronos._backends import mpi as mpi_backend
from synkhronos._engine import nodes
from synkhronos._engine.group_options import GroupOptions
from synkhronos._engine.member import Member
from synkhronos._errors import GroupError, InputError
from synkhronos._host.arena import Arena, Views
from synkhronos._host.cores import MasterCores
from synkhronos._transport.channels.channel import Channel, InlineChannel
from synkhronos._transport.communicators.gpus import with_gpus
from synkhronos._transport.communicators.shared_memory import SharedMemory
from synkhronos._transport.communicators.solo import Solo
from synkhronos._transport.shared_state.status import Status


def start_members(
    options: GroupOptions, arena: Arena, master_cores: MasterCores | None
) -> tuple[Channel, Member]:
    """Start the workers; returns the channel to them, and the master as a member."""
    if options.launch is not None:
        with cancelling(options):
            channel = options.start_workers(arena)
        spanning, member = nodes.lead_all(options, channel, master_cores)
        options.devices = spanning.devices
        return spanning, member
    if len(options.cores) == 1:
        return _start_alone(options, arena, master_cores)
    channel = options.start_workers(arena)
    node = channel.node
    if master_cores is not None and len({c for cores in options.cores for c in cores}) >= node.size:
        master_cores.keep_place()
        node.waiter.keep_place = master_cores.keep_place
    comm = with_gpus(SharedMemory(node), options.members_per_gpu)
    held, master = channel.interrupts, options.master
    return channel, Member(master, node.size, master, comm, node.views, held, node, master_cores)


def _start_alone(
    options: GroupOptions, arena: Arena, master_cores: MasterCores | None
) -> tuple[Channel, Member]:
    channel = InlineChannel()
    Status(arena).describe(0)
    held, on_gpu = channel.interrupts, bool(options.members_per_gpu)
    return channel, Member(0, 1, 0, Solo(), Views(arena), held, None, master_cores, on_gpu)


def described(options: GroupOptions, channel: Channel, member: Member) -> str:
    """The group in one line: members, devices, cores and threads, mode, nodes, and their start.

    Cores are those of this node's members.
    """
    config, nodes = pytensor.config, member.communicator.nodes
    devices = list(dict.fromkeys(map(str, options.devices)))
    most = max(map(len, options.cores))
    return (
        f"group of {member.size} on {', '.join(devices)}; master rank {member.rank}; cores "
        f"{' | '.join(map(_as_ranges, options.cores))}{' of this node' * (nodes > 1)}; "
        f"{most} thread{'s' * (most > 1)} each; mode {config.mode}, floatX {config.floatX}; "
        f"{nodes} node{'s' * (nodes > 1)}; "
        + ("no workers" if member.size == 1 else f"workers started by {channel.started}")
    )


def _as_ranges(cores: Sequence[int]) -> str:
    """Numbers as text, as in 0-3,8."""
    found: list[list[int]] = []
    for core in sorted(cores):
        if found and core == found[-1][1] + 1:
            found[-1][1] = core
        else:
            found.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def follow(options: GroupOptions) -> None:
    """Return in the first process of a launch; in all others, serve it until they exit."""
    if options.follows:
        assert options.launch is not None
        nodes.follow(options, options.launch)


def serve(launch: mpi_backend.Launch) -> NoReturn:
    """Start members whenever the first process of a launch asks for them, until it ends."""
    nodes.follow(None, launch)


@contextlib.contextmanager
def cancelling(options: GroupOptions) -> Iterator[None]:
    """A context: an exception inside is sent to the other nodes, which wait for the group."""
    try:
        yield
    except Exception as exc:
        if options.launch is not None:
            nodes.cancel(options, exc)
        raise


def launched(mpi: bool | None) -> mpi_backend.Launch | None:
    """The MPI launch that a group spans: that of this process, unless the user declines."""
    if mpi is False:
        mpi_backend.stay_alone()
    found = mpi_backend.launch() if mpi in (None, True) else None
    if found is not None and nodes.busy():
        if mpi:
            raise GroupError("mpi=True: one group at a time spans the nodes; close the other first")
        return None
    if mpi and found is None:
        raise InputError(
            "mpi=True: no MPI launch of several processes was found; start the script by mpirun, "
            "mpiexec or srun --mpi=pmix"
        )
    return found
