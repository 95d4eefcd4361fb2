"""Studies of Optuna: how they are opened, asked and told."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from synkhronos._checks import check_integer, options_checked, or_none, shown
from synkhronos._errors import InputError, InputTypeError, SynkhronosError, needing
from synkhronos._host import files
from synkhronos._host.files import check_place
from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.optuna import OPTUNA

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

SQLITE = (".db", ".sqlite", ".sqlite3")
JOURNAL = (".journal", ".jsonl", ".log")
DIRECTIONS = ("minimize", "maximize")
AGAIN_OF = "synkhronos:again_of"  # the attribute with the number of the trial that was lost
_LOOKS, _LOOK_SECONDS = 5, 0.1  # at a journal whose last line is not whole
_LOCKED_SECONDS = 60.0  # for which SQLite waits for another process that writes

type Callback = Callable[[Study, FrozenTrial], object]


def optuna() -> ModuleType:
    """The library, which is imported when it is first used.

    Raises
    ------
    BackendMissing
    """
    with needing("Optuna", "search"):
        import optuna as library
    return library


@options_checked
def open_study(
    name: str,
    storage: object = None,
    *,
    direction: str | Sequence[str] = "minimize",
    sampler: object = "tpe",
    pruner: object = "median",
    seed: int | None = None,
) -> object:
    """Open the study of this name, or make it.

    Parameters
    ----------
    name : str
    storage : path or str, optional
        A file: SQLite if its name ends in .db, .sqlite or .sqlite3; a journal if it ends in
        .journal, .jsonl or .log, which parents on several machines can share. Or the URL of a
        database. None: in memory, which ends with this process.
    direction : {"minimize", "maximize"} or sequence of them
        One for each value that the objective returns.
    sampler : {"tpe", "nsga2", "random"} or sampler of Optuna
        "tpe": trials that still run count as bad ones, so that slots try different values.
        "nsga2": the genetic algorithm, for one objective or several.
    pruner : {"median", "hyperband"}, pruner of Optuna, or None
        Which trials to stop early. None: none of them.
    seed : int, optional
        Of a sampler given by name. With "random" the values of a trial follow from it and from the
        trial's number, wherever trials run. With the others values repeat if trials run one after
        another, on this machine. A study that is resumed draws other values than it began with.

    Returns
    -------
    optuna.Study

    Raises
    ------
    InputError, InputTypeError
        An argument is not possible, the study has other directions, or its file is damaged.
    BackendMissing
        Optuna is not installed.

    Notes
    -----
    Cost: 0.3 s for Optuna's import. A new SQLite file takes 0.3 s.

    Examples
    --------
    >>> from synkhronos.search import open_study
    >>> study = open_study("digits", direction="maximize", seed=0)
    >>> study.study_name, len(study.trials)
    ('digits', 0)
    """
    if not isinstance(name, str) or not name:
        raise InputTypeError(f"open_study: name={shown(name)}: give a text")
    wanted = [direction] if isinstance(direction, str) else list(direction)
    if not wanted or not all(d in DIRECTIONS for d in wanted):
        raise InputError(f'open_study: direction={shown(direction)}: "minimize" or "maximize"')
    seed = or_none(check_integer, "open_study: seed", seed, 0)
    library = optuna()
    with _named(storage):
        study = library.create_study(
            study_name=name,
            storage=_storage(storage),
            directions=wanted,
            load_if_exists=True,
            pruner=_pruner(pruner),
        )
        before = len(study.get_trials(deepcopy=False))
    found = [d.name.lower() for d in study.directions]
    if found != wanted:
        raise InputError(
            f"open_study: direction={shown(direction)}, and the study {name!r} of "
            f"{shown(storage)} has {', '.join(found)}: give these, or another name"
        )
    study.sampler = _sampler(sampler, seed, before)
    return study


@contextlib.contextmanager
def _named(storage: object) -> Iterator[None]:
    """A context in which errors of a damaged file, of any library, have its name."""
    try:
        yield
    except (SynkhronosError, OSError):  # an OSError has the name, and is not of what a file holds
        raise
    except Exception as exc:
        if not isinstance(storage, str | os.PathLike) or "://" in os.fspath(storage):
            raise
        said = str(exc).partition("\n")[0]
        raise InputError(
            f"storage={os.fspath(storage)}: it cannot be read as a study of Optuna "
            f"({type(exc).__name__}: {said}). Perhaps it was cut off, or is of another program: "
            "give a whole copy or another file; of a journal, take out the lines that are not whole"
        ) from exc


def _storage(given: object) -> object:
    if given is None:
        return None
    library = optuna()
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else ""
    if "://" in text:
        return library.storages.RDBStorage(text)
    suffix = Path(text).suffix
    if suffix not in (*SQLITE, *JOURNAL):
        raise InputError(
            f"storage={shown(given)}: a file for SQLite ({', '.join(SQLITE)}) or a journal "
            f"({', '.join(JOURNAL)}), or the URL of a database"
        )
    folder = Path(text).absolute().parent
    if not folder.is_dir():
        raise InputError(f"storage={shown(given)}: there is no folder {folder}: make it first")
    check_place(text)  # SQLite's own error does not say why it cannot write
    if suffix in JOURNAL:
        _check_last_line(Path(text))
        # absolute, since workers of a pool have another working folder
        backend = library.storages.journal.JournalFileBackend(str(Path(text).absolute()))
        return library.storages.JournalStorage(backend)
    from sqlalchemy.pool import NullPool

    # without a pool, no connection stays open between two writes
    options = {"poolclass": NullPool, "connect_args": {"timeout": _LOCKED_SECONDS}}
    return library.storages.RDBStorage(f"sqlite:///{Path(text).absolute()}", engine_kwargs=options)


def _check_last_line(journal: Path) -> None:
    """Raise if the last line of a journal has no end: the next one would be a part of it."""
    for _ in range(_LOOKS):
        if not journal.exists() or files.read_bytes(journal, most=None)[-1:] in (b"", b"\n"):
            return
        time.sleep(_LOOK_SECONDS)  # another machine may be writing it
    raise InputError(
        f"storage={journal}: its last line is not whole, as after a kill or a full disk: take "
        "that line out. Its trial then counts as one that was not told"
    )


def _sampler(given: object, seed: int | None, before: int) -> object:
    samplers = optuna().samplers
    if isinstance(given, samplers.BaseSampler):
        return given
    kinds = {
        "tpe": samplers.TPESampler,
        "nsga2": samplers.NSGAIISampler,
        "random": samplers.RandomSampler,
    }
    if not isinstance(given, str) or given not in kinds:
        raise InputError(
            f"open_study: sampler={shown(given)}: {', '.join(kinds)}, or a sampler of Optuna"
        )
    if seed is not None and given == "random":
        from synkhronos.search._by_number import RandomByNumber  # it imports Optuna

        return RandomByNumber(seed)
    if seed is not None:  # else a resumed study would draw its first values again
        seed = int(np.random.SeedSequence([seed, before]).generate_state(1)[0])
    return kinds[given](seed=seed)


def _pruner(given: object) -> object:
    pruners = optuna().pruners
    if isinstance(given, pruners.BasePruner):
        return given
    kinds = {
        None: pruners.NopPruner,
        "median": pruners.MedianPruner,
        "hyperband": pruners.HyperbandPruner,
    }
    if not isinstance(given, str | None) or given not in kinds:
        raise InputError(
            f"open_study: pruner={shown(given)}: median, hyperband, None, or a pruner of Optuna"
        )
    return kinds[given]()


def is_study(value: object) -> bool:
    """Whether a value is a study of Optuna."""
    return isinstance(value, optuna().Study)


def ends_itself(study: Study) -> bool:
    """Whether the sampler ends the study when it has tried all values, which only Optuna can do."""
    samplers = optuna().samplers
    return isinstance(study.sampler, samplers.GridSampler | samplers.BruteForceSampler)


def call_back(study: Study, trial: Trial, callbacks: Iterable[Callback]) -> bool:
    """Call each; returns whether one has called ``study.stop()``."""
    here = SimpleNamespace(in_optimize_loop=False)
    with optional_gain():  # Optuna refuses study.stop() outside of its own loop
        OPTUNA.put(study, "_stop_flag", False)
        here = OPTUNA.of(study, "_thread_local")
    before, here.in_optimize_loop = here.in_optimize_loop, True
    try:
        for callback in callbacks:
            callback(study, trial)
    finally:
        here.in_optimize_loop = before
    with optional_gain():
        return bool(OPTUNA.of(study, "_stop_flag"))
    return False


def running(study: Study) -> list[FrozenTrial]:
    """The trials that some parent runs, or has left behind."""
    states = optuna().trial.TrialState
    return list(study.get_trials(deepcopy=False, states=(states.RUNNING,)))


def asked_again(study: Study) -> dict[int, int]:
    """The numbers of trials that were lost, and of those that replace them."""
    trials = study.get_trials(deepcopy=False)
    return {t.user_attrs[AGAIN_OF]: t.number for t in trials if AGAIN_OF in t.user_attrs}


def counted(study: Study) -> int:
    """How many trials have ended, without those that were lost, or run now."""
    states = optuna().trial.TrialState
    lost = asked_again(study)
    trials = study.get_trials(deepcopy=False)
    return sum(t.state != states.WAITING and t.number not in lost for t in trials)


def give_back(study: Study, trial: Trial) -> None:
    """Fail a trial whose end nobody will report, and ask its values again in a later trial.

    The new trial comes first: if this process dies between the two, the next one finds it. A trial
    that has ended stays: an interrupt may come after the study was told, before that was noted.
    """
    states = optuna().trial.TrialState
    if study.get_trials(deepcopy=False)[trial.number].state.is_finished():
        return
    if trial.number not in asked_again(study):
        values = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
        study.enqueue_trial(values, user_attrs={AGAIN_OF: trial.number})
    study.tell(trial.number, state=states.FAIL, skip_if_finished=True)


def tell(study: Study, trial: Trial, values: Sequence[float]) -> object:
    """The trial has ended with these values."""
    return study.tell(trial, list(values), skip_if_finished=True)


def tell_pruned(study: Study, trial: Trial) -> object:
    """The trial has been stopped early; its value is that of its last report."""
    return study.tell(trial, state=optuna().trial.TrialState.PRUNED, skip_if_finished=True)


def tell_failed(study: Study, trial: Trial, why: str) -> object:
    """The trial has failed; `why` is kept in the study."""
    library = optuna()
    try:
        trial.set_user_attr("failure", why)
    except library.exceptions.UpdateFinishedTrialError:  # another parent has given it back
        return None
    return study.tell(trial, state=library.trial.TrialState.FAIL, skip_if_finished=True)


def values_or_why(study: Study, values: Any) -> tuple[list[float], str]:
    """The numbers that an objective has returned; or why these are none."""
    found = values if isinstance(values, list) else [values]
    wanted = len(study.directions)
    if len(found) != wanted:
        return [], f"the objective has returned {len(found)} values, and the study has {wanted}"
    if not all(isinstance(v, float) and v == v for v in found):
        what = shown(found[0] if wanted == 1 else found)
        return [], f"the objective has returned {what}: a number is needed"
    return found, ""


def reached(study: Study, target: float) -> bool:
    """Whether some trial has a value as good as the target; of a study with one objective."""
    library = optuna()
    done = study.get_trials(deepcopy=False, states=(library.trial.TrialState.COMPLETE,))
    if study.direction == library.study.StudyDirection.MAXIMIZE:
        return any(t.value >= target for t in done)
    return any(t.value <= target for t in done)


def answer(study: Study, trial: Trial, request: Mapping[str, Any]) -> dict[str, Any]:
    """The reply to a request of a trial's process; what is wrong with it is a part of the reply."""
    library = optuna()
    try:
        if kind := request.get("suggest"):
            methods = {
                "float": trial.suggest_float,
                "int": trial.suggest_int,
                "categorical": trial.suggest_categorical,
            }
            return {"value": methods[kind](request["name"], **request["arguments"])}
        if "report" in request:
            trial.report(request["report"], request["step"])
            return {"prune": bool(trial.should_prune())}
        trial.set_user_attr(request["set"], request["value"])
        return {}
    except (ArithmeticError, ValueError, TypeError, NotImplementedError) as exc:
        return {"error": str(exc)}
    except library.exceptions.UpdateFinishedTrialError:
        return {"error": "another parent has given this trial back"}
