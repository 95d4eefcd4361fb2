"""The folder of a run: its configuration and environment, its metrics, places for the rest.

::

    runs/a/run.json         one entry for each start: configuration, environment, command line
           metrics.jsonl    one line of JSON for each event
           ckpt/            checkpoints
           log/             what the members print
           .lock            held by the process that writes

A line is appended by one system call, so a kill at any moment leaves whole lines, and at most one
torn line at the end. The next writer ends a torn line before it writes; readers skip it.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import math
import os
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from synkhronos._checks import options_checked, shown
from synkhronos._errors import InputError, InputTypeError
from synkhronos._host import files
from synkhronos._host.descriptors import Descriptor
from synkhronos._host.environment import environment
from synkhronos._host.secrets import HIDDEN, is_telling, without_secrets, words_without_secrets
from synkhronos._warnings import log
from synkhronos.training._record.run_folder import CHECKPOINTS, LOCK, METRICS, RUN
from synkhronos.training._record.scalars import plain

FORMAT = 1


class Recorder:
    """Writes what a run leaves behind, into a folder of its own.

    Parameters
    ----------
    folder : path
        The folder of the run, which is made. One process at a time may write there.
    config : mapping, optional
        What the run was asked to do, for people and programs that read ``run.json``. Of what JSON
        cannot hold, it keeps the ``repr``.
    name : str, optional
        Write to the folder `name` in `folder` instead.
    resume : bool
        Go on with the run that the folder holds, or start a new one if it holds none. Then call
        `resumed` with the step from which it goes on.

    Attributes
    ----------
    folder : Path
        The folder of the run.

    Raises
    ------
    InputError
        Another process writes there, or the folder holds a run and `resume` is False.
    OSError
        The folder cannot be made or written to.

    Notes
    -----
    Needs no other library. A line takes about 20 us and one system call. The lock is `flock`; on
    file systems that have none, a warning is logged.

    Examples
    --------
    >>> import tempfile
    >>> from synkhronos.training import Recorder, read_metrics
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Recorder(folder.name, {"batch": 512}, name="a") as recorder:
    ...     recorder.write("step", step=1, loss=0.5)
    ...     recorder.write("epoch", step=2, epoch=0, loss=float("nan"))
    >>> [(line["kind"], line["loss"]) for line in read_metrics(recorder.folder)]
    [('step', 0.5), ('epoch', nan)]
    >>> folder.cleanup()
    """

    @options_checked
    def __init__(
        self,
        folder: str | os.PathLike[str],
        config: Mapping[str, object] | None = None,
        name: str | None = None,
        *,
        resume: bool = False,
    ) -> None:
        if not isinstance(folder, str | os.PathLike):
            raise InputTypeError(
                f"Recorder(folder={shown(folder)}): give the path of the run's folder"
            )
        if config is not None and not isinstance(config, Mapping):
            raise InputTypeError(
                f"Recorder(config={shown(config)}): give a mapping, such as {{'batch': 512}}"
            )
        self.folder = Path(folder) / (name or "")
        self._descriptors: list[Descriptor] = []
        self._finish = weakref.finalize(self, _close, self._descriptors)
        _open.add(self)
        try:
            with _explained(self.folder):
                files.make_folder(self.folder)
                self._descriptors.append(_locked(self.folder))
                starts = _starts(self.folder, resume)
                _write_run(self.folder, [*starts, _start(config or {})])
                self._metrics, self._torn = _appending(self.folder / METRICS)
                self._descriptors.append(self._metrics)
                files.sync(self.folder)
        except BaseException:
            self.close()
            raise

    @property
    def checkpoints(self) -> Path:
        """The folder for checkpoints; the first one makes it."""
        return self.folder / CHECKPOINTS

    @property
    def logs(self) -> Path:
        """The folder for what members print."""
        return self.folder / "log"

    def write(self, kind: str, /, **values: object) -> None:
        """Append one line to ``metrics.jsonl``.

        Parameters
        ----------
        kind : str
            What the line tells, such as "step", "epoch" or "validated".
        **values
            Numbers, texts, truth values, None, and lists and dicts of them; arrays become lists. A
            number ``step`` is what `resumed` goes by.

        Raises
        ------
        InputError, InputTypeError
            A value is something else, a name is "kind" or "time", or the recorder is closed.
        OSError
            The line could not be written as a whole, as on a full disk. Readers skip what was
            written of it, and later lines are not affected.
        """
        line = {"kind": str(kind), "time": round(time.time(), 6)}
        if clash := line.keys() & values.keys():
            raise InputError(f"write: each line has its own {clash.pop()!r}; choose another name")
        line |= {name: _json_value(name, value) for name, value in values.items()}
        text = json.dumps(line, allow_nan=False)
        self._append((b"\n" if self._torn else b"") + text.encode() + b"\n")

    def _append(self, rest: bytes) -> None:
        descriptor = self._opened()
        self._torn = True
        try:
            while rest:  # one turn, unless the disk is full: then the next says so
                rest = rest[os.write(descriptor, rest) :]
        except OSError as exc:
            exc.filename = os.fspath(self.folder / METRICS)
            raise
        self._torn = False

    def sync(self) -> None:
        """Force all lines to the disk, so that they outlast a power cut; some milliseconds."""
        os.fsync(self._opened())

    def check(self) -> None:
        """Raise if the folder is no longer the one that this recorder has locked.

        `fit` asks before each save: another run that has begun in a new folder of this name would
        get the checkpoints of this one.

        Raises
        ------
        InputError
            The folder, its lock or its metrics were removed, moved or replaced.
        """
        self._opened()
        for name, descriptor in zip((LOCK, METRICS), self._descriptors, strict=True):
            if not files.is_still(self.folder / name, descriptor):
                raise InputError(
                    f"{self.folder}: {name} was removed, moved or replaced while this run wrote "
                    "there, perhaps by another run: nothing more is saved. Give each run a folder "
                    "of its own, and start this one again"
                )

    def resumed(self, step: int) -> None:
        """Write that the run goes on from `step`: readers drop the later steps before this line."""
        self.write("resumed", step=step)

    def close(self) -> None:
        """Release the folder; repeated calls do nothing."""
        self._finish()

    def _opened(self) -> int:
        if not self._descriptors or not self._metrics.is_ours:
            raise InputError(f"{self!r} is closed, or belongs to another process: make a new one")
        return self._metrics

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Recorder({str(self.folder)!r})"


def _json_value(name: str, value: object) -> object:
    """A value as a line holds it: plain, and floats that JSON does not have as texts."""
    if isinstance(value, Mapping):
        return {str(key): _json_value(f"{name}[{key!r}]", item) for key, item in value.items()}
    if getattr(value, "ndim", 0) and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_json_value(f"{name}[{i}]", item) for i, item in enumerate(value)]
    value = plain(name, value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


# The recorders of this process. A fork of it, such as a member of a group, gives them up: else it
# would hold the lock for longer than this process lives.
_open: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _leave_all() -> None:
    for recorder in list(_open):
        recorder.close()


os.register_at_fork(after_in_child=_leave_all)


def _close(descriptors: list[Descriptor]) -> None:
    while descriptors:
        descriptors.pop().close()


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Say in errors of the file system what was asked, and what to do."""
    try:
        yield
    except OSError as exc:
        what = "a run needs a folder that this process can write to: choose another one"
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            what = "free some space, or choose a folder on another disk"
        exc.add_note(f"while the folder of a run was made, {folder}: {what}")
        raise


def _locked(folder: Path) -> Descriptor:
    """A descriptor that holds the folder's lock."""
    descriptor = files.updating(folder / LOCK)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 1000).decode(errors="replace").strip()
            raise InputError(_held(folder, holder)) from None
        except OSError as exc:
            if exc.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                raise
            log.warning("%s: its file system has no locks (%s)", folder, exc.strerror)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {os.uname().nodename}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return Descriptor(descriptor)


def _held(folder: Path, holder: str) -> str:
    pid, _, host = holder.partition(" ")
    if pid == str(os.getpid()) and host == os.uname().nodename:
        return f"{folder}: a Recorder of this process writes there: close that one first"
    by = f"process {pid} on {host}" if host else "another process"
    return f"{folder}: {by} writes there: wait for its end, or give this run a folder of its own"


def _starts(folder: Path, resume: bool) -> list[object]:
    """The entries of earlier starts, if the folder holds a run and this one may go on with it."""
    path = folder / RUN
    try:
        found = json.loads(files.read_bytes(path))
        starts = list(found["starts"])
        began = starts[0]["time"]
    except FileNotFoundError:
        metrics = folder / METRICS
        if resume or not metrics.exists() or not metrics.stat().st_size:
            return []
        raise InputError(
            f"{metrics} has lines of a run, and {path} is missing: give this run another folder, "
            "or remove that file"
        ) from None
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as exc:
        raise InputError(
            f"{path} is not what a run writes ({type(exc).__name__}: {exc}): give the run another "
            "folder, or remove that file"
        ) from None
    if found.get("format") != FORMAT:
        raise InputError(
            f"{path} has format {shown(found.get('format'))}, and this version reads {FORMAT}: "
            "give the run another folder"
        )
    if not resume:
        raise InputError(
            f"{folder} holds a run that began at {began}: go on with it by resume=True (in fit, "
            'resume="auto"), or give this run another folder'
        )
    return starts


def _start(config: Mapping[str, object]) -> dict[str, object]:
    return {
        "time": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "pid": os.getpid(),
        "host": os.uname().nodename,
        "argv": words_without_secrets(sys.orig_argv),
        "cwd": os.getcwd(),
        "config": _described(config),
        "environment": environment(),
    }


def _described(value: object) -> object:
    """A value of the configuration, without secrets; by its repr if JSON cannot hold it."""
    if isinstance(value, Mapping):
        return {
            str(key): HIDDEN if isinstance(item, str) and is_telling(str(key)) else _described(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_described(item) for item in value]
    try:
        found = _json_value("", value)
    except InputTypeError:
        found = shown(value)
    return without_secrets(found) if isinstance(found, str) else found


def _write_run(folder: Path, starts: list[object]) -> None:
    """Replace run.json as a whole, on the disk too."""
    text = json.dumps({"format": FORMAT, "starts": starts}, indent=2, allow_nan=False)
    files.replace(folder / RUN, f"{text}\n")


def _appending(path: Path) -> tuple[Descriptor, bool]:
    """A descriptor that appends, and whether the last line has no end."""
    descriptor = Descriptor(files.appending(path))
    size = os.fstat(descriptor).st_size
    return descriptor, size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
