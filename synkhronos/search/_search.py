"""`search`: trials of an objective, in slots of cores."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from synkhronos._checks import (
    check_integer,
    check_number,
    check_seconds,
    options_checked,
    or_none,
    shown,
)
from synkhronos._errors import InputError, InputTypeError, StartFailed
from synkhronos._host import files
from synkhronos._host.cores import available, divided, shares
from synkhronos._host.system import trouble
from synkhronos._transport.processes.interpreter import lifeline
from synkhronos._transport.processes.slots import in_memory
from synkhronos._transport.serialization import pack_or_refuse
from synkhronos._warnings import log
from synkhronos.search._outcomes import Outcomes
from synkhronos.search._ownership import owner, take_over
from synkhronos.search._parent import Parent
from synkhronos.search._studies import Callback, ends_itself, is_study
from synkhronos.search._trial import Trial
from synkhronos.search._trial_process import Settings


@options_checked
def search(
    objective: Callable[[Trial], object],
    study: Any,
    *,
    trials: int,
    on: object = None,
    slots: int | Sequence[Sequence[int]] = 1,
    members: int | None = None,
    folds: int = 1,
    target: float | None = None,
    limit: float | None = None,
    failures: int = 5,
    alone: bool = True,
    log_dir: Any = None,
    callbacks: Sequence[Callback] = (),
) -> Any:
    """Search for the values that make an objective best; each trial runs in a process of its own.

    A trial's process is a fresh interpreter on the cores of its slot. It starts its own group. This
    process asks the study for trials and tells it their values; without `on` nobody else writes to
    the study. A trial that raises or dies is a failed trial, and the search goes on.

    Parameters
    ----------
    objective : callable
        Gets a `Trial`; returns a number, or one for each direction of the study. It travels by
        cloudpickle, so it may stand in the script or in a notebook's cell.
    study : optuna.Study
        As for `open_study`.
    trials : int
        In all, with those that the study has already: the same line resumes a search.
    on : Client, "ray", MPIPoolExecutor or Executor, optional
        Where trials run: by the workers of a client of Dask, of Ray, of mpi4py, or of an executor
        of ``concurrent.futures``. They read and write the study, so its storage is one that all of
        them see. Default: in slots of this machine.
    slots : int, or sequence of sequences of int
        How many trials run at once. The cores are divided among them; or the cores of each. With
        `on` as many run as its workers have cores for, `members` each.
    members : int, optional
        What ``fork()`` starts in a trial. Default: one for each core of the slot; one with `on`.
    folds : int
        Call the objective this number of times in a trial, and tell the mean. Each fold is a
        report, after which the trial may be pruned. ``trial.split(n)`` gives the rows of a fold.
    target : float, optional
        Ask for no more trials after a value as good as this one.
    limit : float, optional
        Seconds for a trial. A trial that takes longer is killed, and has failed.
    failures : int
        Raise after this number of failed trials in a row.
    alone : bool
        No other process or thread searches this study. Then trials that seem to run are of
        searches that have died: they fail, and their values are asked again. False: that is so
        only of trials of this machine whose search has died.
    log_dir : path, optional
        A folder for what trials print, in files ``trial-N.log``. Default: they print here. With
        `on` they print where the workers do.
    callbacks : sequence of callables
        Called with the study and each trial that has ended, as in Optuna. After ``study.stop()`` in
        one, no more trials are asked for.

    Returns
    -------
    optuna.Study
        The same; ``best_trial``, ``best_params`` and ``best_value`` are Optuna's.

    Raises
    ------
    InputError, InputTypeError
        An argument is not possible. Nothing was started. With `on`: the study is in memory, or in
        a file of SQLite that workers on other machines do not see.
    SynkhronosError
        Too many trials in a row have failed. With `on`: a worker does not see the study, has other
        versions of the packages, or the workers are gone.
    BackendMissing
        Optuna is not installed.
    KeyboardInterrupt
        Ctrl-C: the trials that ran have ended, and are asked again in the next search.
    Exception
        Of the storage, or of a callback; trials as with Ctrl-C.

    Notes
    -----
    Cost: for each trial the start of an interpreter, and the imports of the objective: a second
    with PyTensor. Each value drawn and each report takes about a millisecond with SQLite. Trials
    end with this process, for any reason.

    With `on` a trial also costs its worker the connection to the storage, 0.1 to 0.2 s. If a worker
    ends, its trial runs once again in another one, with the same values; then it has failed.

    Trials at the same time draw other values in each run, since a sampler sees those that have
    ended by then. ``open_study(sampler="random", seed=0, pruner=None)`` repeats all values, with
    any `slots` and on any pool.

    Examples
    --------
    >>> from synkhronos.search import open_study, search
    >>> def objective(trial):
    ...     return (trial.suggest_float("x", -5, 5) - 2) ** 2
    >>> study = search(objective, open_study("parabola", seed=0), trials=2)
    >>> [trial.state.name for trial in study.trials]
    ['COMPLETE', 'COMPLETE']
    """
    if not callable(objective):
        raise InputTypeError(f"search: objective={shown(objective)}: give a function of a trial")
    if not is_study(study):
        raise InputTypeError(
            f'search: study={shown(study)}: give a study, as in open_study("digits", "search.db")'
        )
    if trouble():
        raise StartFailed(trouble())
    if ends_itself(study):
        raise InputError(
            f"search: {type(study.sampler).__name__} ends a study by itself, within Optuna's own "
            "loop: enqueue its values by study.enqueue_trial, or use another sampler"
        )
    trials = check_integer("search: trials", trials, 1)
    folds = check_integer("search: folds", folds, 1)
    failures = check_integer("search: failures", failures, 1)
    members = or_none(check_integer, "search: members", members, 1)
    limit = check_seconds("search: limit", limit)
    if target is not None and len(study.directions) > 1:
        raise InputError("search: target= is for studies of one objective")
    goal = or_none(check_number, "search: target", target, -math.inf, math.inf)
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise InputTypeError(
            f"search: callbacks={shown(callbacks)}: give a list of functions of a study and a trial"
        )
    packed = pack_or_refuse(objective, "search: the objective", "Make that inside of the objective")
    seconds = math.inf if limit is None else limit
    outcomes = Outcomes(study, trials=trials, failures=failures, target=goal, callbacks=callbacks)
    if on is not None:
        for name, is_given in (("slots", slots != 1), ("log_dir", log_dir is not None)):
            if is_given:
                raise InputError(f"search: {name}= is for this machine alone: leave it out, or on=")
        from synkhronos.search._pooled import PooledTrials, pool_for  # they import PyTensor

        pool = pool_for(study, on, members or 1)
    else:
        cores, folder = _cores(slots), _folder(log_dir)
    with owner() as this:
        lost = take_over(study, alone)
        if lost:
            log.info("%d trials of a process that has ended will be asked again", lost)
        if on is not None:
            given = {"members": members or 1, "folds": folds, "limit": limit}
            PooledTrials(study, pool, packed, this, outcomes, given).run()
        else:
            with in_memory(packed, "synk-objective") as held, lifeline() as end:
                settings = Settings(held, end, members, folds, folder)
                Parent(study, cores, settings, this, outcomes, seconds).run()
    return study


def _cores(slots: object) -> list[list[int]]:
    """The cores of each slot; the first slot to be filled is the last one."""
    if isinstance(slots, str) or not isinstance(slots, int | Sequence):
        raise InputTypeError(f"search: slots={shown(slots)}: give a number, or lists of cores")
    if isinstance(slots, Sequence):
        if not slots:
            raise InputError("search: slots=[]: give the cores of at least one")
        return divided(slots, None, len(slots))[::-1]
    return shares(available(), check_integer("search: slots", slots, 1))[::-1]


def _folder(given: Any) -> Path | None:
    if given is None:
        return None
    folder = Path(os.fspath(given))
    try:
        files.make_folder(folder)
    except OSError as exc:
        raise InputError(f"search: log_dir={str(folder)!r}: {exc.strerror}") from None
    return folder
