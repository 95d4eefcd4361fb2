"""What members can work on: how many of them there are without being told."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pytensor

from synkhronos import _cores
from synkhronos._errors import InputError


def get_n_gpu() -> int:
    """Count the NVIDIA GPUs of this machine, without opening one.

    >>> get_n_gpu() >= 0
    True
    """
    with contextlib.suppress(OSError):
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    return 0


def size_of(n_parallel: int | None, devices: Any) -> int:
    """The number of members that is asked for, or that suits the machine."""
    if n_parallel is None:
        if devices is not None:
            return len(devices)
        gpus = get_n_gpu() if "JAX" in str(pytensor.config.mode).upper() else 0
        return gpus or _cores.physical()
    if isinstance(n_parallel, bool) or int(n_parallel) != n_parallel or n_parallel < 1:
        raise InputError(f"n_parallel={n_parallel!r}: a group has at least 1 member")
    if devices is not None and len(devices) != n_parallel:
        raise InputError(f"{n_parallel} members were asked for with {len(devices)} devices")
    return int(n_parallel)
