"""The options of a group, checked: members, devices, cores, limits."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from synkhronos._backends import jax as jax_backend
from synkhronos._backends import mpi as mpi_backend
from synkhronos._checks import check_integer, check_seconds, check_word, shown
from synkhronos._engine.worker import main
from synkhronos._errors import InputError, StartFailed
from synkhronos._host import cores as _cores
from synkhronos._host.arena import Arena
from synkhronos._host.devices import Device, are_cores, devices_for
from synkhronos._host.launch_settings import LaunchSettings
from synkhronos._transport.channels.one_node import OneNodeChannel
from synkhronos._warnings import log

GRACE_SECONDS = 0.5  # for workers to leave before they are killed
_PROFILE_SECONDS = 10.0  # the same where each writes a profile, on a busy machine
# the same where each member has to leave a GPU; the master's own abort included, less than 5 s
_GPU_SECONDS = 2.5


@dataclass
class GroupOptions:
    """The options that a group is started with."""

    cores: list[list[int]]  # for each member of this node, its cores
    # what each of them computes on; after the start, those of all nodes
    devices: tuple[Device, ...]
    limited: bool  # whether the user has named the cores
    master: int
    start: str | None  # "fork", "exec" or None
    profile: bool
    debug: bool
    # seconds
    timeout: float | None
    stall_warning: float | None
    max_restarts: int
    launch: mpi_backend.Launch | None = None  # for a group of several nodes
    # the user's own, which the other nodes of a later group get
    options: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = len(self.cores)
        check_word("start", self.start, ("fork", "exec", None))
        self.master = check_integer("master_rank", self.master, 0, size - 1)
        if self.master and self.launch is not None:
            raise InputError(f"master_rank={self.master}: with MPI the master's rank is 0")
        self.max_restarts = check_integer("max_restarts", self.max_restarts, 0)
        if self.max_restarts and self.launch is not None:
            raise InputError(
                "max_restarts: MPI ends all of a job's processes where one dies, and none can be "
                "restarted; let the job restart, from a checkpoint"
            )
        self.timeout = check_seconds("timeout", self.timeout)
        self.stall_warning = check_seconds("stall_warning", self.stall_warning)
        # JAX in a fork of this process would look for the GPU that the master has
        if any(d.kind != "cpu" for d in self.devices) and size > 1:
            if self.start == "fork":
                raise InputError('start="fork": members on GPUs start by exec; leave it out')
            self.start = "exec"
        spans = self.launch is not None
        self.environments = [d.environment(os.environ, spans) for d in self.devices]

    @staticmethod
    def of(
        members: int | None,
        devices: object,
        cores: object,
        launch: mpi_backend.Launch | None = None,
        **options: Any,
    ) -> GroupOptions:
        """Find the number of members on this node, their devices, and their cores."""
        asked = {"members": members, "devices": devices, "cores": cores, **options}
        if launch is not None and launch.local_size > 1:  # each of them is a node
            if members is None and (devices is None or str(devices) == "cuda"):
                members = 1
            if cores is None:
                turn = launch.local_rank, launch.local_size
                cores = _cores.slice_of_launch(*turn, mpi_backend.siblings())
        elif launch is not None and members is None and _cores.bound_to_one():
            log.warning(
                "%s has bound this process to one core, so its node gets one member: pass "
                "--bind-to none (Open MPI) or --cpus-per-task (srun), or fork(n)",
                launch.launcher,
            )
        found = devices_for(devices, members, 0 if launch is None else launch.local_rank)
        given = devices if are_cores(devices) else None
        shares = _cores.divided(given, cores, len(found))
        limited = given is not None or cores is not None
        return GroupOptions(shares, found, limited, **options, launch=launch, options=asked)

    @property
    def grace(self) -> float:
        """Seconds that workers have to leave."""
        if self.profile:
            return _PROFILE_SECONDS
        return _GPU_SECONDS if self.members_per_gpu else GRACE_SECONDS

    @property
    def grace_after_loss(self) -> float:
        """The same after a death: none, unless a worker has a profile to write or a GPU to leave.

        If all workers of a large group woke to leave, they would keep the cores from the master.
        """
        return self.grace if self.profile or self.members_per_gpu else 0.0

    @property
    def members_per_gpu(self) -> int:
        """The most members of this node that share a GPU; 0 where not all are on GPUs."""
        gpus = [d.number for d in self.devices if d.kind == "cuda"]
        return max(map(gpus.count, gpus)) if len(gpus) == len(self.devices) else 0

    def bind(self) -> Callable[[], None]:
        """Bind JAX to the master's device; returns a function that ends this."""
        return jax_backend.bind(self.devices[self.master], self.launch is not None)

    @property
    def follows(self) -> bool:
        """Whether this process serves the first process of its launch."""
        return self.launch is not None and self.launch.rank > 0

    def arena(self) -> Arena:
        """Make the node's arena; on other nodes it holds a copy of the master's region, too."""
        alone = self.launch is not None and len(self.cores) == 1
        return Arena(len(self.cores), self.master, mirror=self.follows, private=alone)

    def master_cores(self) -> _cores.MasterCores | None:
        """The cores that the master uses while it computes its part; None: all."""
        if len(self.cores) > 1 or self.limited or self.launch is not None:
            return _cores.MasterCores(self.cores[self.master])
        return None  # alone, the master has all cores

    def start_workers(self, arena: Arena) -> OneNodeChannel:
        """Start the workers of this node."""
        channel = OneNodeChannel(
            arena,
            self.cores,
            main,
            main.__module__,
            self.start,
            [str(d) for d in self.devices],
            self.environments,
            profile=self.profile,
            debug=self.debug,
            members_per_gpu=0
            if self.launch
            else self.members_per_gpu,  # else AssignRank tells them
        )
        channel.inspector.limit = math.inf if self.timeout is None else self.timeout
        warning = self.stall_warning
        channel.inspector.warning = math.inf if warning is None else warning
        return channel


def followed(
    settings: LaunchSettings,
    launch: mpi_backend.Launch | None,
    spans: bool,
    members: object,
    devices: object,
    timeout: object,
) -> tuple[Any, object, Any]:
    """The number of members, devices and limit of a group that follows `synk run`.

    `spans`: whether it is for all processes of a launch.

    Raises
    ------
    InputError
        The script asks for one thing, and `synk run` for another.
    StartFailed
        The launcher has started another number of processes than this process finds.
    """
    node, size = (0, 1) if launch is None else (launch.rank, launch.size)
    if spans and settings.nodes not in (0, size):
        raise StartFailed(
            f"synk run has started {settings.nodes} processes, one a node, and this one finds "
            f"{size}: the launcher and mpi4py must belong to one MPI. Under Slurm name its plug-in "
            'for that MPI, as in synk run --launcher-args="--mpi=pmix"; `synk doctor` tries MPI'
        )
    here = settings.members_of(node) if settings.members else None
    wanted = {
        "members": (members, here, "-n, SYNKHRONOS_MEMBERS"),
        "devices": (devices, settings.devices or None, "-D, SYNKHRONOS_DEVICES"),
        "timeout": (timeout, settings.timeout, "--timeout, SYNKHRONOS_TIMEOUT"),
    }
    for name, (asked, given, source) in wanted.items():
        if settings.start and None not in (asked, given) and _plain(asked) != given:
            raise InputError(
                f"{name}={shown(asked)} in the script, and {shown(given)} by synk run ({source}): "
                f"leave {name} out of the script to follow synk run, or give both the same"
            )
    found = [given if asked is None else asked for asked, given, _ in wanted.values()]
    return found[0], found[1], found[2]


def the_members(what: str, members: object, n_parallel: object) -> Any:
    """The number of members, by its name or by that of 2017."""
    if members is not None and n_parallel is not None:
        raise InputError(
            f"{what}: members={shown(members)} and n_parallel={shown(n_parallel)}: give members "
            "alone; n_parallel is its old name"
        )
    return n_parallel if members is None else members


def given_options(maker: Callable[..., object], **options: object) -> dict[str, object]:
    """The options that are not the defaults of `maker`, in a form that can be compared."""
    known = inspect.signature(maker).parameters
    given = {name: _plain(options[name]) for name in known if name in options}
    return {name: value for name, value in given.items() if value != known[name].default}


def _plain(value: object) -> object:
    """Lists and arrays, as for cores and devices, as tuples."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return value
    return tuple(_plain(each) for each in value)


def listed(options: Mapping[str, object]) -> str:
    """How messages show options: as the user would write them."""
    return ", ".join(f"{name}={shown(value)}" for name, value in options.items())
