"""Starts a fresh interpreter, which runs a function of a module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from synkhronos._host.cores import bind, environment
from synkhronos._transport.processes import guards
from synkhronos._transport.processes.lasting_thread import LastingThread

# The first code of the process. It runs on its cores already, since the parent had bound its own
# thread to them; the guards come before imports, which take a second.
_BOOTSTRAP = """
import json, runpy, sys
hello = json.loads(sys.argv.pop())
runpy.run_path(hello["guards"])["guard"](**hello["guarded"])
sys.path[:] = hello["path"]
import importlib
importlib.import_module(hello["module"]).main(hello["task"])
"""


def start_interpreter(
    module: str,
    task: Mapping[str, object],
    *,
    lifeline: int | None,
    descriptors: Sequence[int] = (),
    cores: Sequence[int] | None = None,
    n_threads: int | None = None,
    environ: Mapping[str, str] | None = None,
    interruptible: bool = True,
    **popen: Any,
) -> subprocess.Popen[bytes]:
    """Start an interpreter that runs ``module.main(task)``; Ctrl-C of the terminal spares it.

    It finds modules where this process finds them, and imports none from the working folder.

    Parameters
    ----------
    module : str
    task : mapping
        For the function: anything that JSON can hold.
    lifeline : int or None
        See `lifeline`. The process ends with the last write end, and with this process. None: it
        outlives both.
    descriptors : sequence of int
        What the process inherits.
    cores : sequence of int, optional
        The process is bound to them, and its libraries have a thread for each.
    n_threads : int, optional
        The threads of each library, where cores are not bound.
    environ : mapping, optional
        Its environment, beside the numbers of threads. Default: that of this process.
    interruptible : bool
        False: it ignores SIGINT.
    popen
        Other arguments of `subprocess.Popen`, such as streams. Default: nothing to read, a process
        group of its own, output where this process prints.
    """
    inherited = [*descriptors, *([] if lifeline is None else [lifeline])]
    hello = {
        "module": module,
        "task": dict(task),
        "guards": guards.__file__,
        "guarded": {
            "inherited": inherited,
            "lifeline": lifeline,
            "parent": os.getpid(),
            "interruptible": interruptible,
        },
        "path": sys.path,
    }
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    if cores is not None:
        n_threads = len(cores)
    threads = {} if n_threads is None else environment(n_threads)
    options = {"stdin": subprocess.DEVNULL, "process_group": 0, **popen}
    made: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        with nullcontext() if cores is None else _bound_to(cores):
            made.append(
                subprocess.Popen(
                    [sys.executable, *flags, "-P", "-c", _BOOTSTRAP, json.dumps(hello)],
                    pass_fds=inherited,
                    env={**(os.environ if environ is None else environ), **threads},
                    **options,
                )
            )
        return made[0]

    def pidfds() -> list[int]:
        try:
            return [os.pidfd_open(made[0].pid)]
        except OSError:
            made[0].kill()
            made[0].wait()
            raise

    return start() if lifeline is None else LastingThread(pidfds).call(start)


@contextmanager
def lifeline() -> Iterator[int]:
    """The read end of a pipe that nobody writes to; its write end is closed after the context.

    Processes that `start_interpreter` gives it to end then, or when this process ends.
    """
    read, write = os.pipe()
    try:
        yield read
    finally:
        os.close(read)
        os.close(write)


@contextmanager
def _bound_to(cores: Sequence[int]) -> Iterator[None]:
    """Bind this thread to cores for the start of a process, which inherits that."""
    before = os.sched_getaffinity(0)
    bind(cores)
    try:
        yield
    finally:
        bind(before)
