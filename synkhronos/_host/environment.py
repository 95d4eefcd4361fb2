"""Facts about the software and the machine that a bug report and the record of a run need.

Nothing is imported for its version, and no program is started.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from pathlib import Path

import pytensor

from synkhronos._host import cores, memory_limits, thread_pools
from synkhronos._host.devices import get_n_gpu, visible_gpus
from synkhronos._host.system import trouble
from synkhronos._host.versions import versions

# All that decides results and speed: this package, its libraries, and the machine.
PACKAGES = (
    *("synkhronos", "pytensor", "numpy", "scipy", "numba", "llvmlite", "threadpoolctl"),
    *("cloudpickle", "jax", "jaxlib", "mpi4py", "nccl4py", "pymc", "nutpie", "pytensor-ml"),
    *("safetensors", "msgspec", "rich", "h5py", "zarr", "pandas", "pyarrow", "torch"),
)
_SETTINGS = ("mode", "floatX", "cxx", "base_compiledir")  # of PyTensor; also from ~/.pytensorrc
# Environment variables that PyTensor, thread pools, JAX, CUDA and MPI read; no others are shown.
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "PYTENSORRC", "PYTENSOR_FLAGS")
_PREFIXES = (
    *("SYNKHRONOS_", "OMP_", "GOMP_", "OPENBLAS_", "MKL_", "BLIS_", "NUMBA_"),
    *("JAX_", "XLA_", "NCCL_", "MPI4PY_"),
)


def environment() -> dict[str, object]:
    """The facts, as values that JSON can hold.

    Returns
    -------
    dict
        ``"system"``: Python, kernel, architecture. ``"packages"``: versions, None for what is not
        installed. ``"pytensor"``: its settings. ``"blas"``: the BLAS libraries loaded so far.
        ``"cores"``, ``"memory"`` (bytes), ``"gpus"``. ``"variables"``: the environment variables
        that are set. Only Linux has ``"blas"``, ``"cores"``, ``"memory"`` and ``"gpus"``.

    Notes
    -----
    Cost: files of /proc and /sys, and those of installed packages: about 20 ms.
    """
    found: dict[str, object] = {
        "system": {
            "python": f"{platform.python_version()}, {platform.python_implementation()}",
            "executable": sys.executable,
            "kernel": f"{platform.system()} {platform.release()}",
            "machine": platform.machine(),
            "libc": " ".join(platform.libc_ver()),
        },
        "packages": versions(PACKAGES),
        "pytensor": {name: str(getattr(pytensor.config, name)) for name in _SETTINGS},
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name in _VARIABLES or name.startswith(_PREFIXES)
        },
    }
    if not trouble():
        found |= {"blas": blas(), "cores": _cores(), "memory": _memory(), "gpus": _gpus()}
    return found


def blas() -> list[dict[str, object]]:
    """The BLAS libraries loaded so far: name, version, the type of core, the number of threads."""
    return [
        {
            "name": info["internal_api"],
            "version": info.get("version"),
            "core_type": info.get("architecture"),
            "threads": info["num_threads"],
        }
        for info in (pool.info() for pool in thread_pools.thread_pools())
        if info.get("user_api") == "blas"
    ]


def driver() -> str | None:
    """NVIDIA's driver, in its own words; None if there is none."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/driver/nvidia/version").read_text().splitlines()
        return lines[0].partition(":")[2].strip()
    return None


def _cores() -> dict[str, object]:
    return {
        "machine": os.cpu_count(),
        "bound_to": len(os.sched_getaffinity(0)),
        "may_use": len(cores.available()),
        "physical": cores.physical(),
        "model": _model(),
    }


def _model() -> str | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return None


def _memory() -> dict[str, object]:
    lowest = memory_limits.smallest()
    return {"free": memory_limits.available().free, "most": lowest.most, "limit": lowest.text}


def _gpus() -> dict[str, object]:
    count = get_n_gpu()
    return {"count": count, "visible": len(visible_gpus(os.environ, count)), "driver": driver()}
