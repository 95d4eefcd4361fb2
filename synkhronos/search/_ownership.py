"""Which parent runs a trial, and whether that parent still lives."""

from __future__ import annotations

import contextlib
import functools
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from synkhronos._errors import InputError
from synkhronos._host.files import is_shortage
from synkhronos.search._studies import give_back, running

_KEY = "synkhronos:owner"  # of the attribute of a trial
_live: set[str] = set()  # the searches of this process, which may have several in threads


@contextlib.contextmanager
def owner() -> Iterator[dict[str, object]]:
    """A search of this process, as its trials name it; it lives as long as the context."""
    found = {**_process(os.getpid()), "search": uuid.uuid4().hex}
    _live.add(found["search"])
    try:
        yield found
    finally:
        _live.remove(found["search"])


def claim(trial: Any, by: Mapping[str, object]) -> None:
    """Note in the study which search runs a trial, see `owner`."""
    trial.set_user_attr(_KEY, by)


def is_claimed(trial: Any, by: Mapping[str, object]) -> bool:
    """Whether a study, as this process sees it, has noted that a search runs a trial."""
    return bool(trial.user_attrs.get(_KEY) == by)


def take_over(study: object, alone: bool) -> int:
    """Give the trials of dead parents back, to be asked again; returns their number.

    Parameters
    ----------
    study : optuna.Study
    alone : bool
        No other parent uses the study, so that all trials that run are of dead ones. Else only
        those of which this machine knows it.

    Raises
    ------
    InputError
        `alone`, and another parent on this machine lives. Nothing has changed.
    """
    found = running(study)
    if alone:
        for trial in found:
            _check_dead(study, trial)
    lost = [t for t in found if alone or _lives(t) is False]
    for trial in lost:
        give_back(study, trial)
    return len(lost)


def _check_dead(study: Any, trial: Any) -> None:
    if _lives(trial):
        pid = trial.user_attrs[_KEY]["pid"]
        raise InputError(
            f"search: process {pid} runs trial {trial.number} of the study {study.study_name!r}: "
            "wait for its end, or let both search by alone=False"
        )


def _lives(trial: Any) -> bool | None:
    """Whether the parent of a trial lives; None: this machine cannot know."""
    noted = trial.user_attrs.get(_KEY)
    if not isinstance(noted, Mapping) or noted.get("host") != _host():
        return None
    pid = noted.get("pid")
    if pid == os.getpid():
        return noted.get("search") in _live
    if not isinstance(pid, int):
        return False
    found = _process(pid)
    return found["started"] >= 0 and found.items() <= noted.items()


def _process(pid: int) -> dict[str, Any]:
    """A process, told apart from later ones with its pid."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError as exc:
        _check_no_shortage(exc)
        started = []
    # fields 3 and 22 of proc(5): the state, and the start in ticks since boot
    ended = not started or started[0] in "ZX"
    return {
        "host": _host(),
        "boot": _boot(),
        "pid": pid,
        "started": -1 if ended else int(started[19]),
    }


def _host() -> str:
    return os.uname().nodename


@functools.cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as exc:
        _check_no_shortage(exc)
        return ""


def _check_no_shortage(error: OSError) -> None:
    """Raise the error of a shortage: else a process that lives would seem to be dead."""
    if is_shortage(error):
        raise error
