"""Whether this process can be forked safely, and the reasons if it cannot."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from synkhronos._backends import jax as jax_backend
from synkhronos._backends import mpi as mpi_backend
from synkhronos._host.thread_pools import thread_pools
from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.numba import NUMBA

_LOOKS = 5


def reasons_against_fork() -> list[str]:
    """The reasons why a fork of this process is unsafe; empty if it is safe.

    The child has one thread. Locks that other threads held stay locked, and thread pools are gone.
    After JAX or torch has run, the child deadlocks; after a parallel numba function, the OpenMP
    runtime kills it. OpenBLAS rebuilds its pool and is safe.
    """
    found = []
    if threading.active_count() > 1 or threading.current_thread() is not threading.main_thread():
        found.append(f"{threading.active_count()} Python threads are alive")
    if jax_backend.has_run():
        found.append("JAX has run")
    if mpi_backend.is_initialised():
        found.append("MPI is initialised")
    if "torch" in sys.modules:
        found.append("torch is loaded")
    if numba_parallel_has_run():
        found.append("a parallel numba function has run")
    if cuda_is_open():
        found.append("CUDA is initialised")
    extra = 0 if found else _foreign_threads()
    for _ in range(_LOOKS):  # a joined thread stays in /proc for a moment
        if extra > 0:
            time.sleep(0.002)
            extra = _foreign_threads()
    if extra > 0:
        found.append(f"{extra} threads of unknown libraries are alive")
    return found


def numba_parallel_has_run() -> bool:
    """Whether numba has started its own thread pool."""
    with optional_gain():
        return NUMBA.is_imported("_is_initialized") and bool(NUMBA.get("_is_initialized"))
    return False


def cuda_is_open() -> bool:
    """Whether this process holds an NVIDIA device open."""
    for link in Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(link).startswith("/dev/nvidia"):
                return True
        except OSError:  # closed meanwhile
            continue
    return False


def _foreign_threads() -> int:
    """Native threads apart from those of Python, OpenBLAS and jemalloc.

    jemalloc (in pyarrow, which PyMC imports through pandas) handles a fork itself.
    """
    tasks = os.listdir("/proc/self/task")
    alive = len(tasks) - sum(_name_of(task) == "jemalloc_bg_thd" for task in tasks)
    if alive == threading.active_count():
        return 0
    pools = sum(
        max(library.num_threads - 1, 0)
        for library in thread_pools()
        if library.internal_api == "openblas"
    )
    return alive - threading.active_count() - pools


def _name_of(task: str) -> str:
    try:
        return Path(f"/proc/self/task/{task}/comm").read_text().strip()
    except OSError:  # it has just ended
        return ""
