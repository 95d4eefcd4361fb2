"""Which parent runs a trial, and whether that parent still lives."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from synkhronos._errors import InputError
from synkhronos.search._studies import give_back, running

_KEY = "owner"  # of the attribute of a trial


def claim(trial: Any) -> None:
    """Note in the study that this process runs a trial."""
    trial.set_user_attr(_KEY, _process(os.getpid()))


def take_over(study: Any, alone: bool) -> int:
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
    owner = trial.user_attrs.get(_KEY)
    if not isinstance(owner, Mapping) or owner.get("host") != _host():
        return None
    pid = owner.get("pid")
    if not isinstance(pid, int) or pid == os.getpid():  # an earlier search of this process
        return False
    found = _process(pid)
    return found["started"] >= 0 and found == owner


def _process(pid: int) -> dict[str, Any]:
    """A process, told apart from later ones with its pid."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
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
    except OSError:
        return ""
