"""Starts a fresh interpreter that ends when this process ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

from synkhronos._host.cores import bind, environment
from synkhronos._transport.processes import guards
from synkhronos._transport.processes.lasting_thread import LastingThread

# The first code of the process. It runs on its cores already, since the parent had bound its own
# thread to them; the guards come before imports, which take a second.
_BOOTSTRAP = """
import json, os, runpy, signal, sys
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
hello = json.loads(sys.argv.pop())
guards = runpy.run_path(hello["guards"])
for descriptor in hello["inherited"]:
    os.set_inheritable(descriptor, False)
guards["end_with_parent"]()
held = guards["hold"](hello["lifeline"])
if os.getppid() != hello["parent"]:
    os._exit(1)
sys.path[:] = hello["path"]
import importlib
importlib.import_module(hello["module"]).main(hello)
"""


def start_interpreter(
    module: str,
    hello: Mapping[str, Any],
    *,
    descriptors: Sequence[int],
    lifeline: int,
    cores: Sequence[int],
    environ: Mapping[str, str],
    output: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start an interpreter that runs ``module.main(hello)``; Ctrl-C of the terminal spares it.

    Parameters
    ----------
    module : str
    hello : mapping
        For the function: anything that JSON can hold.
    descriptors : sequence of int
        What the process inherits.
    lifeline : int
        The read end of a pipe whose write end only this process holds.
    cores : sequence of int
        The process is bound to them.
    environ : mapping
        Its environment, beside the numbers of threads.
    output : file, optional
        What it prints. Default: where this process prints.
    """
    inherited = [*descriptors, lifeline]
    told = {
        **hello,
        "module": module,
        "inherited": inherited,
        "lifeline": lifeline,
        "parent": os.getpid(),
        "guards": guards.__file__,
        "path": sys.path,
    }
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    made: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        with _bound_to(cores):
            made.append(
                subprocess.Popen(
                    [sys.executable, *flags, "-P", "-c", _BOOTSTRAP, json.dumps(told)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    process_group=0,
                    pass_fds=inherited,
                    env={**environ, **environment(len(cores))},
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

    return LastingThread(pidfds).call(start)


@contextmanager
def _bound_to(cores: Sequence[int]) -> Iterator[None]:
    """Bind this thread to cores for the start of a process, which inherits that."""
    before = os.sched_getaffinity(0)
    bind(cores)
    try:
        yield
    finally:
        bind(before)
