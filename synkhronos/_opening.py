"""What a group consists of, made at its start and again whenever its workers are restarted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from synkhronos import _cores, _mpi, _nodes
from synkhronos._arena import Arena, Views
from synkhronos._channels import Channel
from synkhronos._channels.inline import InlineChannel
from synkhronos._channels.local import LocalChannel
from synkhronos._communicators.shared_memory import SharedMemory
from synkhronos._communicators.solo import Solo
from synkhronos._devices import size_of
from synkhronos._errors import GroupError, InputError
from synkhronos._member import Member, main


@dataclass
class Opening:
    """How a group was asked to be started.

    Attributes
    ----------
    shares : list of list of int
        For each member of this node, its cores.
    limited : bool
        Whether the user has said which.
    start : {"fork", "exec"} or None
    timeout, stall_warning : float or None
        Seconds.
    launch : Launch or None
        Of a group of several nodes.
    options : dict
        What the other nodes of a later group are started with.
    """

    master: int
    shares: list[list[int]]
    limited: bool
    start: str | None
    profile: bool
    debug: bool
    timeout: float | None
    stall_warning: float | None
    launch: _mpi.Launch | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = len(self.shares)
        if self.start not in (None, "fork", "exec"):
            raise InputError(f'start={self.start!r}: use "fork", "exec" or None')
        if not 0 <= self.master < size:
            raise InputError(f"master_rank={self.master} is no rank of a group of {size}")
        if self.master and self.launch is not None:
            raise InputError(f"master_rank={self.master}: with MPI the master's rank is 0")
        check_seconds("timeout", self.timeout)
        check_seconds("stall_warning", self.stall_warning)

    @property
    def follows(self) -> bool:
        """Whether this process is to serve the first one of its launch."""
        return self.launch is not None and self.launch.rank > 0

    def follow(self) -> None:
        """Serve; this does not return."""
        launch = self.launch
        _nodes.follow(self, lambda options: opening(**options, launch=launch))

    def arena(self) -> Arena:
        """The node's memory, with a mirror of the master's on other nodes."""
        return Arena(len(self.shares), self.master, mirror=self.follows)

    def share(self) -> _cores.MasterShare | None:
        """What the master keeps to during its part of a call."""
        if len(self.shares) > 1 or self.limited or self.launch is not None:
            return _cores.MasterShare(self.shares[self.master])
        return None  # alone, the master has all cores

    def members(self, arena: Arena, share: _cores.MasterShare | None) -> tuple[Any, Member]:
        """Start the workers; returns the channel to them, and the master's own member."""
        if self.launch is not None:
            return _nodes.lead_all(self, arena, share)
        if len(self.shares) == 1:
            return self._alone(arena, share)
        channel = self.local(arena)
        node = channel.node
        if share is not None and len({c for cores in self.shares for c in cores}) >= node.size:
            share.keep_place()
            node.waiter.keep_place = share.keep_place
        comm, held = SharedMemory(node), channel.interrupts
        master = self.master
        return channel, Member(master, node.size, master, comm, node.views, held, node, share)

    def local(self, arena: Arena) -> LocalChannel:
        """Start the workers of this node."""
        channel = LocalChannel(
            arena,
            self.shares,
            main,
            main.__module__,
            self.start,
            profile=self.profile,
            debug=self.debug,
        )
        channel.inspector.limit = math.inf if self.timeout is None else self.timeout
        warning = self.stall_warning
        channel.inspector.warning = math.inf if warning is None else warning
        return channel

    def _alone(self, arena: Arena, share: _cores.MasterShare | None) -> tuple[Channel, Member]:
        channel = InlineChannel()
        return channel, Member(0, 1, 0, Solo(), Views(arena), channel.interrupts, None, share)


def opening(
    n_parallel: int | None,
    devices: Any,
    master_rank: int,
    start: str | None,
    cores: Any,
    profile_workers: bool,
    debug: bool,
    timeout: float | None,
    stall_warning: float | None,
    launch: _mpi.Launch | None,
) -> Opening:
    """Read a user's wishes on this node."""
    options = {name: value for name, value in locals().items() if name != "launch"}
    if launch is not None and launch.local_size > 1:  # each of them is a node
        if n_parallel is None and devices is None:
            n_parallel = 1
        if cores is None:
            cores = _cores.slice_of(_cores.available(), launch.local_rank, launch.local_size)
    size = size_of(n_parallel, devices)
    return Opening(
        master_rank,
        _cores.shares(devices, cores, size),
        devices is not None or cores is not None,
        start,
        profile_workers,
        debug,
        timeout,
        stall_warning,
        launch,
        options,
    )


def launched(mpi: bool | None) -> _mpi.Launch | None:
    """The launch that a group spans: one that the environment tells of, unless the user says no."""
    found = _mpi.launch() if mpi in (None, True) else None
    if found is not None and _nodes.busy():
        if mpi:
            raise GroupError("mpi=True: one group at a time spans the nodes; close the other first")
        return None
    if mpi and found is None:
        raise InputError(
            "mpi=True: no MPI launch of several processes was found; start the script by mpirun, "
            "mpiexec or srun --mpi=pmix"
        )
    return found


def check_seconds(name: str, value: Any) -> None:
    """Refuse a limit that is none."""
    if value is not None and not (isinstance(value, int | float) and value > 0):
        raise InputError(f"{name}={value!r}: give seconds above 0, or None")
