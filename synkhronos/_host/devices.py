"""The device of each member: cores or a GPU, as the user asks or as the machine suggests."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytensor

from synkhronos._checks import check_integer, or_none, shown
from synkhronos._errors import BackendMissing, InputError, InputTypeError
from synkhronos._host import cores

_NAME = re.compile(r"cpu|cuda(:\d+)?")
_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")  # JAX accepts either
_FRACTION = 0.75  # of a GPU's memory that JAX takes by default
_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
_NO_DRIVER = (
    "no NVIDIA driver lists a GPU in /proc/driver/nvidia/gpus (a container sees GPUs if it was "
    "started with --gpus all)"
)


@dataclass(frozen=True)
class Device:
    """The device of one member."""

    kind: str = "cpu"  # "cpu" or "cuda"
    number: int = 0  # the number of the GPU, among those that the master may see
    visible: str = ""  # its name in CUDA_VISIBLE_DEVICES
    sharers: int = 1  # the number of members on this GPU
    asked: bool = False  # whether JAX is bound to it; if not, JAX chooses

    def __str__(self) -> str:
        return f"cuda:{self.number}" if self.kind == "cuda" else self.kind

    def environment(self, environ: Mapping[str, str], spans: bool = False) -> dict[str, str]:
        """The variables for a new process, whose parent has the environment `environ`.

        `spans`: whether its group may span several machines.

        >>> Device("cuda", 1, "1", 2, True).environment({})  # doctest: +NORMALIZE_WHITESPACE
        {'JAX_PLATFORMS': 'cuda,cpu', 'CUDA_VISIBLE_DEVICES': '1',
         'JAX_CUDA_VISIBLE_DEVICES': 'all', 'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.375',
         'NCCL_SOCKET_IFNAME': 'lo', 'NCCL_RAS_ENABLE': '0', 'NCCL_MULTI_RANK_GPU_ENABLE': '1'}
        """
        if not self.asked:
            return {}
        if self.kind == "cpu":
            return {"JAX_PLATFORMS": "cpu"}
        return {
            "JAX_PLATFORMS": "cuda,cpu",
            "CUDA_VISIBLE_DEVICES": self.visible,
            "JAX_CUDA_VISIBLE_DEVICES": "all",
            **self.memory(environ),
            **self.exchange(environ, spans),
        }

    def memory(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variable with the fraction of the GPU's memory that JAX takes at its start.

        Raises
        ------
        InputError
            The user's own fraction is not a number.
        """
        name = next((n for n in _FRACTIONS if environ.get(n)), _FRACTIONS[-1])
        whole = _FRACTION
        if given := environ.get(name):
            try:
                whole = float(given)
            except ValueError:
                raise InputError(
                    f"{name}={given!r} in the environment is not a number: it is the fraction of a "
                    f"GPU's memory that JAX takes at its start, {_FRACTION} unless set"
                ) from None
        return {name: f"{whole / self.sharers:.4g}"}

    def exchange(self, environ: Mapping[str, str], spans: bool = False) -> dict[str, str]:
        """Variables for NCCL, unless the user sets them: no ports to other machines without need.

        In a group of several nodes, members of two nodes may be on one machine, and on one GPU.
        """
        found = {} if spans else {"NCCL_SOCKET_IFNAME": "lo"}
        found["NCCL_RAS_ENABLE"] = "0"
        if spans or self.sharers > 1:
            found["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        return {name: value for name, value in found.items() if name not in environ}


def get_n_gpu() -> int:
    """Count the NVIDIA GPUs of this machine; opens none of them.

    >>> get_n_gpu() >= 0
    True
    """
    with contextlib.suppress(OSError):
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    with contextlib.suppress(OSError):  # some sandboxes hide the driver's folder
        return len([name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)])
    return 0


def visible_gpus(environ: Mapping[str, str], count: int) -> tuple[str, ...]:
    """CUDA's names of the GPUs, out of `count`, that a process of this environment may see.

    CUDA reads the list up to the first GPU that does not exist. Only the driver can resolve names
    that are not numbers.

    >>> visible_gpus({}, 2), visible_gpus({"CUDA_VISIBLE_DEVICES": "3,1,4,0"}, 4)
    (('0', '1'), ('3', '1'))
    """
    asked = environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None or not count:
        return tuple(map(str, range(count)))
    found = []
    for name in map(str.strip, asked.split(",")):
        number = int(name) if re.fullmatch(r"-?\d+", name) else 0
        if not name or not 0 <= number < count:
            break
        found.append(name)
    return tuple(found)


def devices_for(asked: object, members: int | None, place: int = 0) -> tuple[Device, ...]:
    """The device of each member on this machine; see `choose`.

    If the mode is JAX and JAX can use GPUs, members are on GPUs unless the user asks for something
    else: one member on each GPU, or `members` members on the GPUs in turn. `place`: the number
    of processes of the launch before this one on this machine, whose members come first.

    Raises
    ------
    InputError, InputTypeError
        As `choose`.
    BackendMissing
        JAX cannot use GPUs.
    """
    count = get_n_gpu()
    gpus = visible_gpus(os.environ, count)
    jax_mode = "JAX" in str(pytensor.config.mode).upper()
    if asked is None:
        in_turn = jax_mode
    else:
        in_turn = place > 0 and isinstance(asked, str) and asked == "cuda"
    if gpus and in_turn and has_plugin():
        each = or_none(check_integer, "members", members, 1) or len(gpus)
        first = place * each
        asked = [f"cuda:{i % len(gpus)}" for i in range(first, first + each)]
    hidden = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r} shows none"
    found = choose(asked, members, gpus, cores.physical(), hidden if count else _NO_DRIVER)
    if any(device.kind == "cuda" for device in found) and not has_plugin():
        raise BackendMissing("JAX with its plugin for CUDA", "cuda12", "cuda13")
    return found


def has_plugin() -> bool:
    """Whether JAX can use NVIDIA GPUs; does not import it."""
    return any(importlib.util.find_spec(name) is not None for name in _PLUGINS)


def choose(
    asked: Any, members: int | None, gpus: Sequence[str], suited: int, none: str = _NO_DRIVER
) -> tuple[Device, ...]:
    """The device of each member. Pure.

    Parameters
    ----------
    asked : None, str, or sequence
        "cpu", "cuda" (a member for each GPU), names separated by commas, or a list of names, one
        for each member (["cuda"] is one member, on the first GPU). A GPU may be named several
        times. Or cores, which this function only counts.
    members : int or None
        The number of members, if the user gave it.
    gpus : sequence of str
        CUDA's names of the visible GPUs.
    suited : int
        The default number of members.
    none : str
        Why no GPU is visible, if that is so.

    Raises
    ------
    InputError, InputTypeError
        A device does not exist, or their number is not that of the members.

    >>> [str(d) for d in choose("cuda:0,cuda:0,cpu", None, ["0", "1"], 8)]
    ['cuda:0', 'cuda:0', 'cpu']
    """
    members = or_none(check_integer, "members", members, 1)
    if asked is None:
        return (Device(),) * (members or suited)
    if are_cores(asked):
        return (Device(),) * _count(asked, len(asked), members)
    names = _names(asked)
    if names == ["cpu"] and isinstance(asked, str):
        names *= members or suited
    elif names == ["cuda"] and isinstance(asked, str) and gpus:
        names = [f"cuda:{i}" for i in range(min(members or len(gpus), len(gpus)))]
    if len(names) > 1 and "cuda" in names:
        raise InputError(
            f'devices={shown(asked)}: "cuda" by itself means a member for each GPU; in a list name '
            'the GPU, as in "cuda:0"'
        )
    numbers = [None if n == "cpu" else int(n.partition(":")[2] or 0) for n in names]
    wrong = [n for n in numbers if n is not None and n >= len(gpus)]
    if wrong:
        there = f"CUDA shows cuda:0 to cuda:{len(gpus) - 1} here" if gpus else none
        raise InputError(f'devices={shown(asked)}: {there}. devices="cpu" needs no GPU')
    _count(asked, len(names), members)
    return tuple(
        Device(asked=True)
        if number is None
        else Device("cuda", number, gpus[number], numbers.count(number), True)
        for number in numbers
    )


def are_cores(asked: object) -> bool:
    """Whether devices are core numbers, one or several for each member."""
    if isinstance(asked, str) or not hasattr(asked, "__iter__"):
        return False
    flat = [core for entry in asked for core in (entry if _is_list(entry) else [entry])]
    return not any(isinstance(core, str) for core in flat)


def _is_list(entry: object) -> bool:
    return hasattr(entry, "__iter__") and not isinstance(entry, str)


def _names(asked: Any) -> list[str]:
    given = asked.split(",") if isinstance(asked, str) else asked
    if not _is_list(given) or not all(isinstance(name, str) for name in given):
        raise InputTypeError(
            f'devices={shown(asked)}: give "cpu", "cuda", names such as "cuda:0,cuda:2", a list of '
            "names, or a list with the cores of each member"
        )
    names = [name.strip().lower() for name in given]
    unknown = [name for name in names if not _NAME.fullmatch(name)]
    if unknown or not names:
        raise InputError(
            f'devices={shown(asked)}: {unknown} are not devices; known are "cpu", "cuda" and '
            '"cuda:0", "cuda:1", ...'
        )
    return names


def _count(asked: object, found: int, members: int | None) -> int:
    if not found or members not in (None, found):
        raise InputError(
            f"devices={shown(asked)} are for {found} members"
            + (f", but {members} were asked for" if members else "")
            + ": name one for each member, also for members that share a GPU"
        )
    return found
