"""Exports a run: once, or while it goes on."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from synkhronos._checks import check_word
from synkhronos._errors import BackendMissing, InputError
from synkhronos.training._record.exporters.target import Target
from synkhronos.training._record.run_folder import METRICS, LineReader, writer_of

# The targets; for each what it imports, and the extra that installs it.
NEEDS: dict[str, tuple[str, ...]] = {
    "tensorboard": ("tensorboardX", "tensorboard"),
    "csv": (),
    "mlflow": ("mlflow",),
}
# ended; or the number is that of a thread, which has another name in each version of Linux
_NO_PROCESS = (errno.ESRCH, errno.EINVAL, errno.ENOENT)
_PAUSE = 0.5  # seconds between two looks for new lines

type Lines = list[dict[str, object]]


def check_target(to: str) -> None:
    """Raise if nothing can be exported to this.

    Raises
    ------
    InputError
        It is not a target.
    BackendMissing
        Its library is not installed.
    """
    check_word("export", to, [*NEEDS])
    if NEEDS[to] and importlib.util.find_spec(NEEDS[to][0]) is None:
        raise BackendMissing(*NEEDS[to])


def export(
    run: str | os.PathLike[str],
    to: str,
    folder: str | os.PathLike[str] | None = None,
    follow: bool = False,
    lifeline: int | None = None,
) -> tuple[str, int]:
    """Give the lines of a run to a target.

    Parameters
    ----------
    run : path
        The folder of the run.
    to : {"tensorboard", "csv", "mlflow"}
    folder : path, optional
        Where to write. Default: in the run's folder; for MLflow, MLFLOW_TRACKING_URI.
    follow : bool
        Go on with the lines that are appended, until the run or its process ends.
    lifeline : int, optional
        Follow until this descriptor can be read, or has ended.

    Returns
    -------
    str
        Where it has written.
    int
        The number of lines.

    Raises
    ------
    InputError
        The target is unknown, or the folder holds no run.
    BackendMissing
        The target's library is not installed.
    """
    check_target(to)
    path = Path(run)
    try:
        reader = LineReader(path)
    except OSError as exc:
        raise InputError(
            f"{path}: there is no run to export ({METRICS}: {exc.strerror}): give the folder that "
            "fit(folder=) or Recorder has made"
        ) from None
    count, latest = 0, {}
    with reader:
        target = _target(to)(path, None if folder is None else Path(folder))
        try:
            for lines in _batches(reader, path, follow, lifeline):
                target.take(lines)
                count, latest = count + len(lines), lines[-1]
        finally:
            target.close(latest.get("kind") == "end" and bool(latest.get("reason", True)))
    return target.place, count


def _target(to: str) -> type[Target]:
    if to == "csv":
        from synkhronos.training._record.exporters._csv import Table

        return Table
    if to == "mlflow":
        from synkhronos.training._record.exporters._mlflow import MLflowRun

        return MLflowRun
    from synkhronos.training._record.exporters._tensorboard import TensorBoard

    return TensorBoard


def _batches(reader: LineReader, run: Path, follow: bool, lifeline: int | None) -> Iterator[Lines]:
    """Lines as they come, some at a time, never none."""
    with _end_of(run, lifeline) as ended:
        over, kind = not follow, ""
        while True:
            lines = reader.new()
            if over:
                lines += reader.last()
            if lines:
                kind = str(lines[-1].get("kind"))
                yield lines
            if over:
                return
            over = (lifeline is None and kind == "end") or ended(_PAUSE)


@contextlib.contextmanager
def _end_of(run: Path, lifeline: int | None) -> Iterator[Any]:
    """A function that waits some seconds, and says whether nobody will write any more."""
    poll = select.poll()
    with contextlib.ExitStack() as stack:
        if lifeline is not None:  # which forks of the writer may keep open when it has died
            poll.register(lifeline, select.POLLIN)
        if (pid := writer_of(run)) is not None:
            try:
                process = os.pidfd_open(pid)
            except OSError as exc:
                if exc.errno not in _NO_PROCESS:
                    raise
                yield lambda seconds: True
                return
            stack.callback(os.close, process)
            poll.register(process, select.POLLIN)
        yield lambda seconds: bool(poll.poll(1000 * seconds))
