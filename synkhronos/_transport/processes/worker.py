"""Starting workers, by fork or by fork and exec."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from synkhronos._host.cores import environment
from synkhronos._transport.processes import guards
from synkhronos._transport.processes.interrupts import Interrupts

# The first code of a worker started by exec. The guards come first, since imports take a second;
# the cores come before any library counts them.
_BOOTSTRAP = """
import json, os, runpy, sys, types
hello = json.loads(sys.argv[1])
runpy.run_path(hello["guards"])["guard"](types.SimpleNamespace(**hello["wiring"]))
try:
    os.sched_setaffinity(0, hello["cores"])
except OSError:
    pass
sys.path[:] = hello["path"]
import importlib
importlib.import_module(hello["module"]).main(hello["wiring"])
for stream in (sys.stdout, sys.stderr):
    try:
        stream.flush()
    except Exception:
        pass
os._exit(0)  # as a forked worker; the end of an interpreter that has JAX takes 0.4 s
"""


@dataclass(frozen=True)
class Wiring:
    """All that a worker needs to join its group, as numbers and text.

    `members_per_gpu`: the largest number of members on one GPU; 0 unless all are on GPUs.
    """

    rank: int
    size: int
    master: int
    arena_fd: int
    region_bytes: int
    mirror: bool
    bells: list[int]
    abort: int
    lifeline: int
    stacks: int
    parent: int
    cores: list[int]
    crowded: bool
    debug: bool
    forked: bool
    profile: bool
    members_per_gpu: int = 0


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until all processes are started, which inherit the mask.

    Another thread of this process, such as one of BLAS, may take a SIGINT that this one has
    blocked. So its handler is replaced, too.
    """
    with Interrupts():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork_worker(wiring: Wiring, main: Callable[[dict[str, Any]], None], withheld: list[int]) -> int:
    """Fork a worker, which closes the descriptors `withheld`; returns its pid."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    with warnings.catch_warnings():
        # fork_safety.py examines threads more closely than Python's own warning
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for fd in withheld:
            os.close(fd)
        main(asdict(wiring))
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def exec_worker(wiring: Wiring, module: str, device: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a worker in a fresh interpreter that runs `module.main(wiring)`.

    `device`: environment variables for the device that it computes on.
    """
    hello = {
        "path": sys.path,
        "module": module,
        "guards": guards.__file__,
        "wiring": asdict(wiring),
        "cores": wiring.cores,
    }
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return subprocess.Popen(
        [sys.executable, *flags, "-P", "-c", _BOOTSTRAP, json.dumps(hello)],
        stdin=None if wiring.debug else subprocess.DEVNULL,
        pass_fds=guards.inherited(wiring),
        env={**os.environ, **environment(len(wiring.cores)), **device},
    )


def started_by_main_thread() -> bool:
    """Whether this is the main thread, which alone receives signals and lasts to the end."""
    return threading.current_thread() is threading.main_thread()
