"""A worker's process, and its start by fork or in a fresh interpreter."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from synkhronos._transport.processes import guards
from synkhronos._transport.processes.child_process import ChildProcess
from synkhronos._transport.processes.interpreter import start_interpreter
from synkhronos._transport.processes.interrupts import Interrupts


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

    @property
    def inherited(self) -> list[int]:
        """The descriptors that a fresh interpreter inherits, beside the lifeline."""
        return [self.arena_fd, *self.bells, self.abort, self.stacks]

    def guard(self) -> None:
        """In a forked worker: end with the master, ignore Ctrl-C, and share no connection.

        The proxies of multiprocessing's managers are told of the fork, as in its own forks. Else
        two processes would speak through one connection, and take one another's answers.
        """
        if not self.debug:
            os.setpgid(0, 0)  # the terminal's Ctrl-C reaches only the master
        guards.guard(
            inherited=self.inherited,
            lifeline=self.lifeline,
            parent=self.parent,
            interruptible=False,
        )
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            util._run_after_forkers()


@dataclass
class Worker(ChildProcess):
    """The process of a member, as the master sees it."""

    rank: int = field(kw_only=True)


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


def fork_worker(
    wiring: Wiring, main: Callable[[dict[str, object]], None], withheld: list[int]
) -> Worker:
    """Fork a worker, which closes the descriptors `withheld`."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    with warnings.catch_warnings():
        # fork_safety.py examines threads more closely than Python's own warning
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return Worker(pid, rank=wiring.rank)
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


def exec_worker(wiring: Wiring, module: str, device: Mapping[str, str]) -> Worker:
    """Start a worker in a fresh interpreter that runs `module.main(wiring)`.

    `device`: environment variables for the device that it computes on.
    """
    debugged = {"stdin": None, "process_group": None} if wiring.debug else {}
    popen = start_interpreter(
        __name__,
        {"module": module, "wiring": asdict(wiring)},
        lifeline=wiring.lifeline,
        descriptors=wiring.inherited,
        cores=wiring.cores,
        environ={**os.environ, **device},
        interruptible=False,
        **debugged,
    )
    return Worker(popen.pid, popen, rank=wiring.rank)


def main(task: dict[str, Any]) -> None:
    """In the fresh interpreter: work, and end as a forked worker does."""
    importlib.import_module(task["module"]).main(task["wiring"])
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)  # the end of an interpreter that has JAX takes 0.4 s


def started_by_main_thread() -> bool:
    """Whether this is the main thread, which alone receives signals and lasts to the end."""
    return threading.current_thread() is threading.main_thread()
