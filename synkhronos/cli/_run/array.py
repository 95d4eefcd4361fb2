"""A job array of Slurm: each of its tasks runs the script with a part of the items of `map`."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence

from synkhronos._errors import StartFailed
from synkhronos._host.launch_settings import PART, without_settings
from synkhronos._host.secrets import words_without_secrets
from synkhronos.cli._run.plan import exported, program
from synkhronos.cli._run.usage import UsageError, words_of
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
    "pymc_folder": "--pymc-folder",
}


def submit(options: argparse.Namespace, python: Sequence[str]) -> int:
    """Submit the array, or print its line; returns the exit code.

    Raises
    ------
    UsageError
        Other options are given, which an array has not, or the script is not there.
    StartFailed
        There is no sbatch, or it refuses.
    """
    environ = without_settings(os.environ)  # else tasks would take the parts for another script's
    words = _words(options, python)
    exported(options.exported, environ)
    given = words_of("--sbatch-args", options.sbatch_args)
    if options.dry_run:
        words, given = words_without_secrets(words), words_without_secrets(given)
        say(shlex.join(_line(options.array, given, words)))
        return 0
    try:
        done = subprocess.run(
            _line(options.array, given, words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env=environ,
        )
    except FileNotFoundError:
        raise StartFailed("sbatch was not found, and --array submits a job by it") from None
    except OSError as exc:
        raise StartFailed(f"sbatch cannot be started: {exc.strerror}") from None
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


def _words(options: argparse.Namespace, python: Sequence[str]) -> list[str]:
    """The command line of a task."""
    if given := [word for name, word in _OTHERS.items() if getattr(options, name)]:
        raise UsageError(
            f"--array and {', '.join(given)}: each task of an array runs the script on one node, "
            "and shares folders with the others. Leave them out. --sbatch-args has options of "
            "sbatch, such as --output=FILE for what tasks print"
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
    return [*words, *program(options)]


def _line(tasks: int, given: Sequence[str], words: Sequence[str]) -> list[str]:
    """The command line of sbatch, with options of the user."""
    wrapped = f"{PART}=$SLURM_ARRAY_TASK_ID/{tasks} exec {shlex.join(words)}"
    return ["sbatch", "--parsable", f"--array=1-{tasks}", *given, f"--wrap={wrapped}"]
