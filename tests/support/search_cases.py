"""What each pool does for `search`, as cases; a program that runs all of them on one kind.

python search_cases.py KIND FOLDER
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import objectives
import optuna
import pytest
from pool_cases import opened

from synkhronos._errors import SynkhronosError
from synkhronos.search import _pooled, open_study, search

type Case = Callable[[Any, Path], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """One of the cases, which gets a pool and an empty folder."""
    CASES[function.__name__] = function
    return function


def states(study: Any) -> list[str]:
    """Of its trials."""
    return [trial.state.name for trial in study.trials]


@case
def values(pool: Any, folder: Path) -> None:
    """The study has all; enqueued values are drawn, and others are those of the seed."""
    study = open_study("a", folder / "a.journal", sampler="random", seed=0)
    study.enqueue_trial({"x": 2.0})
    seen: list[int] = []
    callbacks = [lambda study, trial: seen.append(trial.number)]
    assert search(objectives.parabola, study, trials=4, on=pool, callbacks=callbacks) is study
    again = open_study("a", folder / "a.journal", sampler="random")
    drawn = [trial.params["x"] for trial in again.trials]
    assert states(again) == ["COMPLETE"] * 4
    assert (drawn[0], again.best_value, sorted(seen)) == (2.0, 0.0, [0, 1, 2, 3])
    assert len(set(drawn)) == 4
    here = open_study("b", sampler="random", seed=0)
    assert drawn[1:] == [here.ask().suggest_float("x", -5.0, 5.0) for _ in range(4)][1:]
    assert [trial.value for trial in again.trials] == [(x - 2) ** 2 for x in drawn]


@case
def ends(pool: Any, folder: Path) -> None:
    """Each end of a trial is told as with slots, and no worker ends with it."""
    study = open_study("a", folder / "a.db")
    search(objectives.by_number, study, trials=11, on=pool, failures=100)
    assert states(study) == ["COMPLETE", *["FAIL"] * 9, "COMPLETE"]
    why = [trial.user_attrs.get("failure", "") for trial in study.trials]
    assert "killed by SIGKILL" in why[1]
    assert why[2] == "ZeroDivisionError: division by zero"
    assert "has returned nan" in why[3]
    assert "trial 7: " in why[7]
    assert "something else than messages" in why[9]


@case
def pruned(pool: Any, folder: Path) -> None:
    """A report in a worker reaches the pruner; folds are reports."""
    pruner = optuna.pruners.ThresholdPruner(upper=1.0)
    study = open_study("a", folder / "a.db", pruner=pruner)
    search(objectives.told, study, trials=1, on=pool)
    [trial] = study.trials
    assert (trial.state.name, trial.value) == ("PRUNED", 2.0)
    folds = open_study("b", folder / "a.db", pruner=None)
    search(objectives.fold_value, folds, trials=1, folds=3, on=pool)
    assert (folds.best_value, len(folds.trials[0].intermediate_values)) == (3.0, 3)


@case
def limit(pool: Any, folder: Path) -> None:
    """A late trial is killed, and its worker goes on."""
    study = open_study("a", folder / "a.journal")
    search(objectives.sleeps, study, trials=1, limit=1.0, on=pool)
    assert "longer than limit=1 seconds" in study.trials[0].user_attrs["failure"]
    search(objectives.parabola, study, trials=2, on=pool)
    assert states(study) == ["FAIL", "COMPLETE"]


@case
def failures(pool: Any, folder: Path) -> None:
    """Too many in a row end the search, with the last traceback."""
    study = open_study("a", folder / "a.journal")
    with pytest.raises(SynkhronosError, match=r"(?s)2 trials in a row .*the last one: .*Mend the"):
        search(objectives.always_raises, study, trials=9, failures=2, on=pool)
    assert "RUNNING" not in states(study)


@case
def not_seen(pool: Any, folder: Path) -> None:
    """A worker that lacks the file says so, and one that has another one; trials are given back."""
    study = open_study("a", folder / "a.journal")
    known = _pooled.place_of
    _pooled.place_of = lambda study: known(study)._replace(file=str(folder / "gone"))
    try:
        with pytest.raises(
            SynkhronosError, match=r"the worker on .* has no '.*/gone', the storage"
        ):
            search(objectives.parabola, study, trials=1, on=pool)
    finally:
        _pooled.place_of = known
    assert states(study) == ["FAIL", "WAITING"]


@case
def other_versions(pool: Any, folder: Path) -> None:
    """A worker with another version of a package runs nothing."""
    study = open_study("a", folder / "a.journal")
    known = _pooled.versions_here
    _pooled.versions_here = lambda names: {**known(names), "optuna": "1.2.3"}
    try:
        with pytest.raises(SynkhronosError, match=r"in place of 1.2.3: install the same versions"):
            search(objectives.parabola, study, trials=1, on=pool)
    finally:
        _pooled.versions_here = known
    assert states(study) == ["FAIL", "WAITING"]


@case
def interrupt(pool: Any, folder: Path) -> None:
    """Ctrl-C gives trials back, and the pool goes on with another search, at last."""
    study = open_study("a", folder / "a.journal")
    done = threading.Event()

    def press() -> None:
        while not done.wait(0.05):
            if (folder / "begun").exists():
                os.kill(os.getpid(), signal.SIGINT)
                return

    keys = threading.Thread(target=press)
    keys.start()
    objective = functools.partial(objectives.says_and_sleeps, folder)
    try:
        with pytest.raises(KeyboardInterrupt):
            search(objective, study, trials=1, on=pool)
    finally:
        done.set()
        keys.join()
    assert states(study) == ["FAIL", "WAITING"]
    search(objectives.parabola, study, trials=1, on=pool)
    assert states(study) == ["FAIL", "COMPLETE"]
    assert study.trials[1].params == study.trials[0].params


def main(kind: str, folder: str) -> None:
    """Run all cases on a pool of this kind, and say so."""
    logging.getLogger("synkhronos").setLevel(logging.ERROR)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with opened(kind, 2) as pool:
        for name, function in CASES.items():
            began = time.monotonic()
            place = Path(folder) / name
            place.mkdir(mode=0o700)
            function(pool, place)
            sys.stdout.write(f"{kind}: {name}: {time.monotonic() - began:.1f} s\n")
            sys.stdout.flush()
    sys.stdout.write("all cases\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
