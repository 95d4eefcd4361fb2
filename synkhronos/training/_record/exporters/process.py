"""An exporter beside a run: a process that follows the run's lines, and ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from synkhronos._errors import InputError, SynkhronosError
from synkhronos._host import files
from synkhronos._host.cores import environment
from synkhronos._transport.processes.interpreter import start_interpreter
from synkhronos._warnings import log
from synkhronos.training._record.exporters.exporter import check_target, export

_LIMIT = 60.0  # seconds for the exporter to take the last lines, and to end
_NICE = 10  # members come first


def checked_targets(given: str | Sequence[str], folder: object) -> tuple[str, ...]:
    """The targets of `fit`, one or several.

    Raises
    ------
    InputError
        One is unknown, or there is no folder with a record to export.
    BackendMissing
        The library of one is not installed.
    """
    found = (given,) if isinstance(given, str) else tuple(given or ())
    for to in found:
        check_target(to)
    if found and folder is None:
        raise InputError(f"export={given!r} gives away what a folder records: give folder=")
    return found


@contextlib.contextmanager
def exported(run: Path, to: str) -> Iterator[None]:
    """A context beside which a process exports the run; it ends after the last line.

    It also ends after the death of this process, by the end of a pipe. A failure of it fails no
    run: a warning is logged. Its output is in ``log/export-TARGET.log``.
    """
    owner = os.getpid()
    said = run / "log" / f"export-{to}.log"
    files.make_folder(said.parent)
    with open(files.appending(said), "ab") as output:
        process = start_interpreter(
            __name__,
            {"run": str(run.resolve()), "to": to},
            lifeline=None,  # it takes the last lines after the death of this process
            environ=os.environ | environment(1),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
    try:
        yield
    finally:
        if os.getpid() == owner:  # a fork that leaves the run must not end it
            _end(process, to, said)


def _end(process: subprocess.Popen[bytes], to: str, said: Path) -> None:
    """Let the exporter take the last lines."""
    assert process.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # it has ended before
            # a word, since a worker forked meanwhile also holds the pipe, and would keep it open
            process.stdin.write(b"\n")
        process.stdin.close()
        code = process.wait(_LIMIT)
    except subprocess.TimeoutExpired:
        log.warning("the export to %s has not ended within %.0f s: it is stopped", to, _LIMIT)
    else:
        if code:
            log.warning("the export to %s has failed (exit code %d): see %s", to, code, said)
        elif not said.stat().st_size:
            said.unlink()
            with contextlib.suppress(OSError):  # others have logs there
                said.parent.rmdir()
    finally:
        process.kill()
        process.wait()


def main(task: dict[str, str]) -> None:
    """In the process of the exporter: serve, and end with an exit code."""
    sys.exit(serve(task["run"], task["to"]))


def serve(run: str, to: str) -> int:
    """Export a run until standard input ends or has a word; returns the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the last lines come after them
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    try:
        export(run, to, follow=True, lifeline=sys.stdin.fileno())
    except SynkhronosError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0
