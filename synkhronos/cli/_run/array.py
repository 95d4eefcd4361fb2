"""A job array of Slurm: each of its tasks runs the script with a part of the items of `map`."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence

from synkhronos._errors import StartFailed
from synkhronos._host.launch_settings import PART
from synkhronos.cli._run.usage import UsageError
from synkhronos.cli._say import complain, say

_SECONDS = 120.0  # for sbatch, which may wait for a busy controller
_OTHERS = {  # options that a task would not get
    "nodes": "--nodes",
    "hosts": "-H",
    "hostfile": "--hostfile",
    "launcher": "--launcher",
    "launcher_args": "--launcher-args",
    "log_dir": "--log-dir",
    "tee": "--tee",
    "resume": "--resume",
    "timeout": "--timeout",
}


def submit(options: argparse.Namespace, python: Sequence[str]) -> int:
    """Submit the array, or print its line; returns the exit code.

    Raises
    ------
    UsageError
        Other options are given, which an array has not.
    StartFailed
        There is no sbatch, or it refuses.
    """
    line = _line(options, python)
    if options.dry_run:
        say(shlex.join(line))
        return 0
    try:
        done = subprocess.run(
            line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS
        )
    except FileNotFoundError:
        raise StartFailed("sbatch was not found, and --array submits a job by it") from None
    except subprocess.TimeoutExpired:
        raise StartFailed(
            f"sbatch has not answered for {_SECONDS:g} seconds: squeue --me tells whether the job "
            "is there"
        ) from None
    if done.returncode:
        raise StartFailed(f"sbatch has refused the job: {done.stderr.strip() or done.returncode}")
    complain(f"synk run: submitted job {done.stdout.strip()}, an array of {options.array} tasks")
    sys.stderr.flush()
    return 0


def _line(options: argparse.Namespace, python: Sequence[str]) -> list[str]:
    if given := [word for name, word in _OTHERS.items() if getattr(options, name)]:
        raise UsageError(
            f"--array and {', '.join(given)}: each task of an array runs the script on one node; "
            "leave the others out, or give them to sbatch by --sbatch-args"
        )
    words = [*python, "-m", "synkhronos", "run"]
    if options.members is not None:
        words += ["-n", str(options.members)]
    if options.devices:
        words += ["-D", options.devices]
    if options.max_restarts:
        words += ["--max-restarts", str(options.max_restarts)]
    words += ["--pymc"] if options.pymc else []
    for each in options.exported:
        words += ["-x", each]
    if options.module:
        words += ["-m", *options.module]
    elif options.code:
        words += ["-c", *options.code]
    elif options.program:
        words += options.program
    else:
        raise UsageError("give a script, -m MODULE or -c CODE")
    wrapped = f"{PART}=$SLURM_ARRAY_TASK_ID/{options.array} exec {shlex.join(words)}"
    given = shlex.split(options.sbatch_args)
    return ["sbatch", "--parsable", f"--array=1-{options.array}", *given, f"--wrap={wrapped}"]
