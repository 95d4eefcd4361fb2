"""What members compute on: cores or a GPU each, as asked for or as suits the machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytensor

from synkhronos._errors import BackendMissing, InputError, InputTypeError
from synkhronos._host import cores

_NAME = re.compile(r"cpu|cuda(:\d+)?")
_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")  # JAX takes one of them
_FRACTION = 0.75  # of a GPU's memory, what JAX takes for itself unless told otherwise
_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
_NO_DRIVER = (
    "no NVIDIA driver shows a GPU in /proc/driver/nvidia/gpus (a container sees them if it was "
    "started with --gpus all)"
)


@dataclass(frozen=True)
class Device:
    """What one member computes on.

    Attributes
    ----------
    kind : {"cpu", "cuda"}
    number : int
        Of the GPU, among those that the master may see.
    visible : str
        What CUDA_VISIBLE_DEVICES calls it.
    sharers : int
        Members that this GPU is divided among.
    asked : bool
        Whether JAX is held to it; else it takes what it finds.
    """

    kind: str = "cpu"
    number: int = 0
    visible: str = ""
    sharers: int = 1
    asked: bool = False

    def __str__(self) -> str:
        return f"cuda:{self.number}" if self.kind == "cuda" else self.kind

    def environment(self, environ: Mapping[str, str], spans: bool = False) -> dict[str, str]:
        """What a new process needs in its environment, whose parent has `environ`.

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
        """The share of the GPU's memory that JAX may take at once.

        Raises
        ------
        InputError
            The user's own share is no number.
        """
        name = next((n for n in _FRACTIONS if environ.get(n)), _FRACTIONS[-1])
        whole = _FRACTION
        if given := environ.get(name):
            try:
                whole = float(given)
            except ValueError:
                raise InputError(
                    f"{name}={given!r} in the environment is no number: it is the share of a GPU's "
                    f"memory that JAX takes at once, {_FRACTION} unless set"
                ) from None
        return {name: f"{whole / self.sharers:.4g}"}

    def exchange(self, environ: Mapping[str, str], spans: bool = False) -> dict[str, str]:
        """What NCCL is told unless the user does: it opens no port to other machines in vain.

        In a group that spans several, members of two nodes may be on one machine, and on one GPU.
        """
        found = {} if spans else {"NCCL_SOCKET_IFNAME": "lo"}
        found["NCCL_RAS_ENABLE"] = "0"
        if spans or self.sharers > 1:
            found["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        return {name: value for name, value in found.items() if name not in environ}


def get_n_gpu() -> int:
    """Count the NVIDIA GPUs of this machine, without opening one.

    >>> get_n_gpu() >= 0
    True
    """
    with contextlib.suppress(OSError):
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    with contextlib.suppress(OSError):  # sandboxes show the devices without the driver's folder
        return len([name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)])
    return 0


def visible_gpus(environ: Mapping[str, str], count: int) -> tuple[str, ...]:
    """What CUDA calls the GPUs that a process of this environment may see, of `count` there are.

    CUDA reads up to the first that is not there; what it makes of other names than numbers, only
    the driver knows.

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


def devices_for(asked: Any, n_parallel: int | None, place: int = 0) -> tuple[Device, ...]:
    """Each member's device on this machine; see `choose`.

    Where functions are compiled for JAX and JAX can use GPUs, members are on GPUs unless something
    else is asked for: one on each, or as many as are asked for, in turn. `place`: how many
    processes of a launch come before this one on this machine, and take their turns first.

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
        members = _checked(n_parallel) or len(gpus)
        first = place * members
        asked = [f"cuda:{i % len(gpus)}" for i in range(first, first + members)]
    hidden = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r} shows none"
    found = choose(asked, n_parallel, gpus, cores.physical(), hidden if count else _NO_DRIVER)
    if any(device.kind == "cuda" for device in found) and not has_plugin():
        raise BackendMissing("JAX with its plugin for CUDA", "cuda12", "cuda13")
    return found


def has_plugin() -> bool:
    """Whether JAX can use NVIDIA's GPUs; asked without importing it."""
    return any(importlib.util.find_spec(name) is not None for name in _PLUGINS)


def choose(
    asked: Any, n_parallel: int | None, gpus: Sequence[str], suited: int, none: str = _NO_DRIVER
) -> tuple[Device, ...]:
    """Each member's device. Pure.

    Parameters
    ----------
    asked : None, str, or sequence
        "cpu", "cuda" (a member for each GPU), names with commas between them, or a list of names,
        one for each member (where ["cuda"] is one member, on the first GPU); the same GPU may be
        named again. Or cores, which are no matter of this function.
    n_parallel : int or None
        Members, if the user has said how many.
    gpus : sequence of str
        What CUDA calls those that can be seen.
    suited : int
        Members if nothing says how many.
    none : str
        Why no GPU can be seen, if that is so.

    Raises
    ------
    InputError, InputTypeError
        What was asked for is not here, or is for another number of members.

    >>> [str(d) for d in choose("cuda:0,cuda:0,cpu", None, ["0", "1"], 8)]
    ['cuda:0', 'cuda:0', 'cpu']
    """
    members = _checked(n_parallel)
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
            f'devices={asked!r}: "cuda" alone is a member for each GPU; among others name which, '
            'as in "cuda:0"'
        )
    numbers = [None if n == "cpu" else int(n.partition(":")[2] or 0) for n in names]
    wrong = [n for n in numbers if n is not None and n >= len(gpus)]
    if wrong:
        there = f"CUDA shows cuda:0 to cuda:{len(gpus) - 1} here" if gpus else none
        raise InputError(f'devices={asked!r}: {there}. devices="cpu" needs no GPU')
    _count(asked, len(names), members)
    return tuple(
        Device(asked=True)
        if number is None
        else Device("cuda", number, gpus[number], numbers.count(number), True)
        for number in numbers
    )


def are_cores(asked: Any) -> bool:
    """Whether devices are given as core numbers, one or several for each member."""
    if isinstance(asked, str) or not hasattr(asked, "__iter__"):
        return False
    flat = [core for entry in asked for core in (entry if _is_list(entry) else [entry])]
    return not any(isinstance(core, str) for core in flat)


def _is_list(entry: Any) -> bool:
    return hasattr(entry, "__iter__") and not isinstance(entry, str)


def _names(asked: Any) -> list[str]:
    given = asked.split(",") if isinstance(asked, str) else asked
    if not _is_list(given) or not all(isinstance(name, str) for name in given):
        raise InputTypeError(
            f'devices={asked!r}: give "cpu", "cuda", names such as "cuda:0,cuda:2", a list of '
            "names, or a list with the cores of each member"
        )
    names = [name.strip().lower() for name in given]
    unknown = [name for name in names if not _NAME.fullmatch(name)]
    if unknown or not names:
        raise InputError(
            f'devices={asked!r}: {unknown} are no devices; known are "cpu", "cuda" and "cuda:0", '
            '"cuda:1", ...'
        )
    return names


def _checked(n_parallel: int | None) -> int | None:
    if n_parallel is None:
        return None
    if isinstance(n_parallel, bool) or not hasattr(n_parallel, "__index__"):
        raise InputTypeError(f"n_parallel={n_parallel!r}: give the number of members, an int")
    if n_parallel < 1:
        raise InputError(f"n_parallel={n_parallel!r}: a group has at least 1 member")
    return int(n_parallel)


def _count(asked: Any, found: int, members: int | None) -> int:
    if not found or members not in (None, found):
        raise InputError(
            f"devices={asked!r} are for {found} members"
            + (f", and {members} were asked for" if members else "")
            + ": name one for each; members that share a GPU name it each"
        )
    return found
