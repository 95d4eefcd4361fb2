"""What a group consists of, made at its start and again whenever its workers are restarted."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from synkhronos import _cores, _jax
from synkhronos._arena import Arena, Views
from synkhronos._channels import Channel
from synkhronos._channels.inline import InlineChannel
from synkhronos._channels.local import LocalChannel
from synkhronos._communicators.solo import Solo
from synkhronos._devices import Device, are_cores, devices_for
from synkhronos._errors import InputError
from synkhronos._member import Member, communicator, main

GRACE_SECONDS = 0.5  # for workers to leave before they are killed
GPU_SECONDS = 2.5  # the same where each lets go of a GPU; with the master's own abort less than 5 s


@dataclass
class Opening:
    """How a group was asked to be started.

    Attributes
    ----------
    shares : list of list of int
        For each member, its cores.
    devices : tuple of Device
        For each member, what it computes on.
    limited : bool
        Whether the user has said which cores.
    start : {"fork", "exec"} or None
    timeout, stall_warning : float or None
        Seconds.
    max_restarts : int
    """

    shares: list[list[int]]
    devices: tuple[Device, ...]
    limited: bool
    master: int
    start: str | None
    profile: bool
    debug: bool
    timeout: float | None
    stall_warning: float | None
    max_restarts: int

    def __post_init__(self) -> None:
        size = len(self.shares)
        if self.start not in (None, "fork", "exec"):
            raise InputError(f'start={self.start!r}: use "fork", "exec" or None')
        if not 0 <= self.master < size:
            raise InputError(f"master_rank={self.master} is no rank of a group of {size}")
        most = self.max_restarts
        if isinstance(most, bool) or not isinstance(most, int) or most < 0:
            raise InputError(f"max_restarts={most!r}: give a number of restarts, 0 for none")
        check_seconds("timeout", self.timeout)
        check_seconds("stall_warning", self.stall_warning)
        # JAX in a fork of this process would look for the GPU that the master has
        if any(d.kind != "cpu" for d in self.devices) and size > 1:
            if self.start == "fork":
                raise InputError('start="fork": members on GPUs start by exec; leave it out')
            self.start = "exec"
        self.environments = [d.environment(os.environ) for d in self.devices]

    @staticmethod
    def of(n_parallel: int | None, devices: Any, cores: Any, **options: Any) -> Opening:
        """Read how many members, on which devices and cores, are asked for."""
        found = devices_for(devices, n_parallel)
        given = devices if are_cores(devices) else None
        shares = _cores.shares(given, cores, len(found))
        limited = given is not None or cores is not None
        return Opening(shares, found, limited, **options)

    @property
    def on_one_gpu(self) -> int:
        """The most members that share a GPU; 0 where not all are on GPUs."""
        gpus = [d.number for d in self.devices if d.kind == "cuda"]
        return max(map(gpus.count, gpus)) if len(gpus) == len(self.devices) else 0

    def bind(self) -> Callable[[], None]:
        """Hold JAX to the master's device; returns what lets it go again."""
        return _jax.bind(self.devices[self.master])

    def share(self) -> _cores.MasterShare | None:
        """What the master keeps to during its part of a call."""
        if len(self.shares) > 1 or self.limited:
            return _cores.MasterShare(self.shares[self.master])
        return None  # alone, the master has all cores

    def members(self, arena: Arena, share: _cores.MasterShare | None) -> tuple[Any, Member]:
        """Start the workers; returns the channel to them, and the master's own member."""
        if len(self.shares) == 1:
            return self._alone(arena, share)
        channel = LocalChannel(
            arena,
            self.shares,
            main,
            main.__module__,
            self.start,
            [str(d) for d in self.devices],
            self.environments,
            profile=self.profile,
            debug=self.debug,
            on_one_gpu=self.on_one_gpu,
        )
        channel.inspector.limit = math.inf if self.timeout is None else self.timeout
        warning = self.stall_warning
        channel.inspector.warning = math.inf if warning is None else warning
        node = channel.node
        if share is not None and len({c for cores in self.shares for c in cores}) >= node.size:
            share.keep_place()
            node.waiter.keep_place = share.keep_place
        comm, held = communicator(node, self.on_one_gpu), channel.interrupts
        master = self.master
        return channel, Member(master, node.size, master, comm, node.views, held, node, share)

    def _alone(self, arena: Arena, share: _cores.MasterShare | None) -> tuple[Channel, Member]:
        channel = InlineChannel()
        held, on_gpu = channel.interrupts, bool(self.on_one_gpu)
        return channel, Member(0, 1, 0, Solo(), Views(arena), held, None, share, on_gpu)


def check_seconds(name: str, value: Any) -> None:
    """Refuse a limit that is none."""
    if value is not None and not (isinstance(value, int | float) and value > 0):
        raise InputError(f"{name}={value!r}: give seconds above 0, or None")
