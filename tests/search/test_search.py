"""`search`: trials in slots, how they end, what a study holds, and what happens after a kill."""

from __future__ import annotations

import errno
import functools
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import objectives
import optuna
import pytest
from selection import thorough
from user_scripts import LIMIT, alive, ended, kill, run_script, script_command

import synkhronos as synk
from synkhronos._host.cores import available
from synkhronos.search import Trial, open_study, search
from synkhronos.search._outcomes import Outcomes
from synkhronos.search._trial import split

pytestmark = pytest.mark.timeout(LIMIT)
optuna.logging.set_verbosity(optuna.logging.WARNING)
CORES = available()
PAIR = [[CORES[0]], [CORES[-1]]]  # the same core twice where there is only one


def states(study: Any) -> list[str]:
    return [trial.state.name for trial in study.trials]


def searched(objective: Any, trials: int, **options: Any) -> Any:
    """A search in memory."""
    given = {name: options.pop(name) for name in ("direction", "pruner") if name in options}
    return search(objective, open_study("a", seed=0, **given), trials=trials, **options)


def test_trials_are_where_their_slots_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any import of theirs; what `synk run` has set for the parent is not for them."""
    monkeypatch.setenv("SYNKHRONOS_START", "1")
    before = os.sched_getaffinity(0)
    study = searched(objectives.place, 2, slots=PAIR, members=3)
    assert os.sched_getaffinity(0) == before
    found = [trial.user_attrs for trial in study.trials]
    for attrs in found:
        assert attrs["at_import"] == attrs["cores"]
        assert set(attrs["blas"]) <= {1}
        assert (attrs["members"], attrs["settings"]) == ("3", None)
    assert sorted(attrs["cores"] for attrs in found) == sorted(PAIR)


def test_a_trial_starts_its_own_group() -> None:
    study = searched(objectives.group, 1, members=2)
    assert [trial.value for trial in study.trials] == [210.0]


def test_each_end_of_a_trial_is_told() -> None:
    """A death, an exception or a wrong value is a failed trial, and the search goes on."""
    ends: list[tuple[int, str]] = []
    study = searched(
        objectives.by_number,
        11,
        slots=PAIR,
        failures=100,
        callbacks=[lambda study, trial: ends.append((trial.number, trial.state.name))],
    )
    assert states(study) == ["COMPLETE", *["FAIL"] * 9, "COMPLETE"]
    assert sorted(ends) == list(enumerate(states(study)))
    why = [trial.user_attrs.get("failure") for trial in study.trials]
    assert why[0] is why[10] is None
    assert "killed by SIGKILL" in why[1]
    assert why[2] == "ZeroDivisionError: division by zero"
    assert "has returned nan" in why[3]
    assert "has returned 2 values, and the study has 1" in why[4]
    assert "has returned 'much'" in why[5]
    assert "exited with code 3" in why[6]
    assert "trial 7: " in why[7]
    assert "cannot be sent to the study" in why[8]
    assert "something else than messages" in why[9]
    assert study.best_trial.number == 10


def test_a_fork_of_a_trial_tells_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Its replies would be the trial's, and its end too."""
    [trial] = searched(objectives.forks, 1).trials
    assert (trial.value, trial.user_attrs["ended"]) == (1.0, [1, 1, 3])
    assert len(re.findall(r"\(pid \d+\), and cannot report", capfd.readouterr().err)) == 2


def test_a_trial_that_reads_no_replies_stops_no_others() -> None:
    """Its pipe is full, and the parent does not wait for it."""
    study = searched(objectives.deaf, 2, failures=100)
    assert states(study) == ["FAIL", "COMPLETE"]
    assert "does not read the replies" in study.trials[0].user_attrs["failure"]


def test_what_counts_as_a_number() -> None:
    """As in Optuna, what float() takes; here also an array of one number, but no truth value."""
    study = searched(objectives.kinds_of_values, 7, slots=PAIR, failures=100)
    assert [trial.value for trial in study.trials] == [1.5, 0.5, 2.0, None, None, None, None]
    assert states(study) == [*["COMPLETE"] * 3, *["FAIL"] * 4]
    why = [trial.user_attrs.get("failure") for trial in study.trials]
    assert why[3] == "TypeError: the objective has returned None: return a number"
    assert why[4] == "TypeError: the objective has returned array([1., 2.]): return a number"
    assert why[5] == "TypeError: the objective has returned True: return a number"
    assert why[6] == "OverflowError: int too large to convert to float"


@pytest.mark.thorough  # what else is no number: the test above
def test_numbers_that_are_too_large(tmp_path: Path) -> None:
    """They fail their trial, and the search goes on."""
    study = open_study("a", tmp_path / "a.db", sampler="random")
    search(objectives.too_large, study, trials=5, failures=100)
    assert states(study) == [*["FAIL"] * 4, "COMPLETE"]
    for trial in study.trials[:4]:
        assert f"InputError: trial {trial.number}: " in trial.user_attrs["failure"]


def test_no_descriptors_are_left_if_none_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pipe of a trial cannot be made."""
    pipe = os.pipe
    left = 2  # the pipe of all trials, and the first one of this trial

    def full() -> tuple[int, int]:
        nonlocal left
        if not left:
            raise OSError(errno.EMFILE, "full")
        left -= 1
        return pipe()

    study = open_study("a")
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "pipe", full)
    with pytest.raises(OSError, match="full"):
        search(objectives.parabola, study, trials=1)
    assert len(os.listdir("/proc/self/fd")) == before
    assert states(study) == ["FAIL", "WAITING"]


def test_an_error_of_a_callback_ends_the_search() -> None:
    """Also a ValueError, as of a message that is not JSON."""

    def refuse(study: Any, trial: Any) -> None:
        raise ValueError("not this one")

    study = open_study("a")
    with pytest.raises(ValueError, match="not this one"):
        search(objectives.parabola, study, trials=2, callbacks=[refuse])
    assert states(study) == ["COMPLETE"]


def test_failures_in_a_row_end_the_search() -> None:
    with pytest.raises(synk.SynkhronosError, match="2 trials in a row have failed") as raised:
        searched(objectives.parabola, 9, failures=2, limit=1e-3)
    assert "longer than limit=0.001 seconds" in str(raised.value)


def test_a_traceback_of_the_last_failure() -> None:
    with pytest.raises(synk.SynkhronosError, match="missing") as raised:
        searched(missing, 9, failures=1)
    assert "in missing" in str(raised.value)


def test_a_failed_trial_prints_the_users_error(tmp_path: Path) -> None:
    """Not what calls the objective; nor where this package refuses what it has returned."""

    def texts(trial: Trial) -> Any:
        return missing(trial) if trial.number else "much"

    with pytest.raises(synk.SynkhronosError, match="missing") as raised:
        searched(texts, 9, failures=2, log_dir=tmp_path)
    said, failed = ((tmp_path / f"trial-{n}.log").read_text() for n in (0, 1))
    assert said == "TypeError: the objective has returned 'much': return a number\n"
    for text in (failed, str(raised.value)):
        _, begin, shown = text.partition("Traceback (most recent call last):\n")
        assert begin
        assert Path(synk.__file__).parent.name + "/search" not in shown
        first, *_ = shown.splitlines()
        assert first.endswith("in texts")
        assert shown.rstrip().endswith("LookupError: missing")


@pytest.mark.parametrize("name", ["a.journal", "a.db"])
@pytest.mark.parametrize("how", ["cut", *thorough("another")])
def test_a_damaged_study_is_named(tmp_path: Path, name: str, how: str) -> None:
    path = tmp_path / name
    study: Any = open_study("a", path)
    study.add_trial(optuna.trial.create_trial(value=1.0))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 5 // 9] if how == "cut" else b"{\n" + bytes(9) + b"\n")
    with pytest.raises(synk.InputError, match=rf"{name}: (its last line|it cannot be read as)"):
        open_study("a", path)
    if how == "cut":
        assert path.read_bytes() == whole[: len(whole) * 5 // 9]


def missing(trial: Trial) -> float:
    raise LookupError("missing")


missing.__module__ = "__main__"  # so that it travels by value, as in a script


def test_a_trial_that_takes_too_long() -> None:
    study = searched(objectives.sleeps, 1, limit=1.0)
    assert states(study) == ["FAIL"]
    assert "longer than limit=1 seconds" in study.trials[0].user_attrs["failure"]


def test_a_trial_is_told_to_prune() -> None:
    """After the report that is too large; its value is the last one."""
    study = searched(objectives.told, 1, pruner=optuna.pruners.ThresholdPruner(upper=1.0))
    [trial] = study.trials
    assert (trial.state.name, trial.value) == ("PRUNED", 2.0)
    assert trial.intermediate_values == {0: 0.5, 1: 2.0}
    assert states(searched(objectives.told, 1, pruner=None)) == ["COMPLETE"]


def test_the_callback_reports_and_stops_the_run() -> None:
    """An epoch without a validation reports nothing."""
    study = searched(objectives.run_of_epochs, 1, pruner=optuna.pruners.ThresholdPruner(upper=2.0))
    [trial] = study.trials
    assert (trial.state.name, trial.intermediate_values) == ("PRUNED", {0: 1.0, 2: 3.0})
    [trial] = searched(objectives.run_of_epochs, 1, pruner=None).trials
    assert (trial.state.name, trial.value) == ("COMPLETE", 9.0)
    [trial] = searched(objectives.run_of_epochs, 1, pruner=None, folds=2).trials
    assert trial.intermediate_values == {0: 9.0, 1: 9.0}


def test_a_fold_is_a_report_and_the_mean_is_told() -> None:
    [trial] = searched(objectives.fold_value, 1, folds=3).trials
    assert (trial.value, trial.intermediate_values) == (3.0, {0: 1.0, 1: 2.0, 2: 6.0})
    pruner = optuna.pruners.ThresholdPruner(upper=1.5)
    [trial] = searched(objectives.fold_value, 1, folds=3, pruner=pruner).trials
    assert (trial.state.name, trial.intermediate_values) == ("PRUNED", {0: 1.0, 1: 2.0})
    both = ["minimize", "maximize"]
    [trial] = searched(objectives.two_folds, 1, folds=3, direction=both, pruner=None).trials
    assert trial.values == [1.0, 10.0]


def test_each_row_is_in_one_fold() -> None:
    parts = [split(11, fold, 3, seed=5) for fold in range(3)]
    assert sorted(np.concatenate([held for _, held in parts])) == list(range(11))
    for train, held in parts:
        assert sorted([*train, *held]) == list(range(11))
        assert len(held) in (3, 4)
    assert not np.array_equal(split(11, 0, 3, seed=6)[1], parts[0][1])
    for n, folds in ((2, 3), (9, 1)):
        with pytest.raises(synk.InputError, match=f"{n} rows in {folds} folds"):
            split(n, 0, folds)


def test_several_objectives_by_nsga2() -> None:
    study = open_study("a", direction=["minimize", "minimize"], sampler="nsga2", seed=0)
    assert search(objectives.front, study, trials=2, slots=PAIR) is study
    assert len(study.best_trials) == 2
    with pytest.raises(synk.InputError, match="target= is for studies of one objective"):
        search(objectives.front, study, trials=3, target=1.0)


def test_the_target_ends_the_search() -> None:
    assert len(searched(objectives.parabola, 5, target=1e9).trials) == 1
    study = searched(objectives.parabola, 2, target=1e9, direction="maximize")
    assert len(study.trials) == 2


def test_what_trials_print(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    searched(objectives.by_number, 3, slots=1, failures=9, log_dir=tmp_path / "logs")
    text = (tmp_path / "logs" / "trial-2.log").read_text()
    assert "ZeroDivisionError: division by zero" in text
    assert not capfd.readouterr().err


@pytest.mark.thorough  # after a kill: test_a_killed_parent
def test_a_search_goes_on_where_it_ended(tmp_path: Path) -> None:
    """The number of trials counts those of before; values are not those of the first time."""
    path = tmp_path / "a.db"
    search(objectives.parabola, open_study("a", path, seed=0), trials=2)
    study = search(objectives.parabola, open_study("a", path, seed=0), trials=4)
    assert states(study) == ["COMPLETE"] * 4
    assert len({trial.params["x"] for trial in study.trials}) == 4
    again = open_study("b", tmp_path / "b.db", seed=0)
    search(objectives.parabola, again, trials=2)
    assert [t.params for t in again.trials] == [t.params for t in study.trials[:2]]


def test_random_values_follow_from_the_seed(tmp_path: Path) -> None:
    """And from the number of the trial, in whatever order trials draw them, also after a resume."""

    def opened(name: str, seed: int = 0) -> Any:
        return open_study("a", tmp_path / f"{name}.journal", sampler="random", seed=seed)

    def drawn(study: Any, count: int, names: str) -> dict[tuple[int, str], float]:
        """By trials of which all draw their first value before one draws its second."""
        trials = [study.ask() for _ in range(count)]
        return {(t.number, n): t.suggest_float(n, 0.0, 1.0) for n in names for t in trials}

    both = drawn(opened("both"), 4, "xy")
    one = opened("one")
    first = drawn(one, 2, "yx")
    assert len(set(both.values())) == 8
    assert first | drawn(opened("one"), 2, "yx") == both
    assert not set(drawn(opened("other", 1), 4, "xy").values()) & set(both.values())


def test_a_seed_repeats_random_values_in_slots() -> None:
    study = open_study("a", sampler="random", seed=0)
    search(objectives.parabola, study, trials=3, slots=PAIR)
    other = open_study("b", sampler="random", seed=0)
    drawn = [other.ask().suggest_float("x", -5.0, 5.0) for _ in range(3)]
    assert [trial.params["x"] for trial in study.trials] == drawn


@pytest.mark.parametrize("sampler", thorough("tpe", "nsga2"))
def test_a_seed_repeats_a_search_in_one_slot(sampler: str) -> None:
    """Samplers that learn, after they have begun to."""
    learns_soon = {
        "tpe": lambda: optuna.samplers.TPESampler(n_startup_trials=3, seed=0),
        "nsga2": lambda: optuna.samplers.NSGAIISampler(population_size=3, seed=0),
    }

    def values() -> list[float]:
        study = open_study("a", sampler=learns_soon[sampler]())
        search(objectives.parabola, study, trials=7)
        return [trial.params["x"] for trial in study.trials]

    assert values() == values()


def test_an_interrupt_gives_trials_back(tmp_path: Path) -> None:
    """Ctrl-C, here in a callback: the other trial is ended, and asked again by the next search."""

    def interrupt(study: Any, trial: Any) -> None:
        raise KeyboardInterrupt

    study = open_study("a", tmp_path / "a.db")
    objective = functools.partial(objectives.first_then_sleeps, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        search(objective, study, trials=2, slots=PAIR, callbacks=[interrupt])
    assert states(study) == ["COMPLETE", "FAIL", "WAITING"]
    search(objectives.parabola, study, trials=2)
    assert states(study) == ["COMPLETE", "FAIL", "COMPLETE"]
    assert study.trials[2].params == study.trials[1].params
    assert study.trials[2].user_attrs["synkhronos:again_of"] == 1


def test_an_interrupt_after_the_end_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C before the search has noted it: the trial is complete, and not asked again."""
    told = Outcomes.tell

    def interrupted(self: Outcomes, trial: Any, message: Any) -> None:
        told(self, trial, message)
        raise KeyboardInterrupt

    monkeypatch.setattr(Outcomes, "tell", interrupted)
    study = open_study("a")
    with pytest.raises(KeyboardInterrupt):
        search(objectives.parabola, study, trials=1)
    assert states(study) == ["COMPLETE"]


SEARCH = """
import functools, sys
from pathlib import Path
sys.path.insert(0, {support!r})
import objectives, optuna
from synkhronos.search import open_study, search
optuna.logging.set_verbosity(optuna.logging.ERROR)

folder, storage = map(Path, sys.argv[1:])
study = open_study("a", storage, seed=3)
objective = functools.partial(objectives.rendezvous, folder)
search(objective, study, trials=3, slots=[{cores}] * 2)
for t in study.trials:
    print(t.number, t.state.name, t.params["x"], t.value, t.user_attrs.get("synkhronos:again_of"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["a.db", *thorough("a.journal")])
def test_a_killed_parent(tmp_path: Path, storage: str) -> None:
    """Its trials end with it; the same script then asks their values again, and goes on."""
    text = SEARCH.format(support=str(Path(objectives.__file__).parent), cores=[CORES[0]])
    folder = tmp_path / "trials"
    folder.mkdir()
    command = script_command(tmp_path, text, str(folder), str(tmp_path / storage))
    parent = subprocess.Popen(command, start_new_session=True)
    try:
        pids = begun(folder, 2)
        kill(parent.pid)
    finally:
        parent.kill()
        parent.wait(LIMIT)
    until = time.monotonic() + LIMIT
    while alive(pids):
        assert time.monotonic() < until, "trials outlive their parent"
        time.sleep(0.02)
    (folder / "go").write_text("")
    said = [line.split() for line in ended(tmp_path, command).stdout.splitlines()]
    assert [line[1] for line in said] == ["FAIL", "FAIL", *["COMPLETE"] * 3]
    assert [line[4] for line in said] == ["None", "None", "0", "1", "None"]
    for lost, again in zip(said[:2], said[2:4], strict=True):
        assert again[2] == lost[2]
    for line in said[2:]:
        assert float(line[3]) == (float(line[2]) - 2) ** 2
    assert ended(tmp_path, command).stdout.splitlines() == [" ".join(line) for line in said]


def begun(folder: Path, count: int) -> list[int]:
    """The pids of so many trials, when all of them wait."""
    until = time.monotonic() + LIMIT
    while True:
        texts = [path.read_text() for path in folder.glob("pid-*")]
        if len(texts) == count and all(texts):
            return [int(text) for text in texts]
        assert time.monotonic() < until, "the trials have not begun"
        time.sleep(0.02)


@pytest.mark.thorough  # a search there: test_a_search_in_another_thread
@pytest.mark.slow
def test_a_parent_in_a_second_thread(tmp_path: Path) -> None:
    """Then the lifeline is the guard of trials; here the whole process is killed."""
    text = SEARCH.format(support=str(Path(objectives.__file__).parent), cores=[CORES[0]])
    lines = text.strip().splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("search("))
    lines[at] = (
        "import threading\n"
        "thread = threading.Thread(target=lambda: "
        f"{lines[at]})\nthread.start(); thread.join()"
    )
    folder = tmp_path / "trials"
    folder.mkdir()
    command = script_command(tmp_path, "\n".join(lines), str(folder), str(tmp_path / "a.db"))
    parent = subprocess.Popen(command, start_new_session=True)
    try:
        pids = begun(folder, 2)
    finally:
        parent.kill()
        parent.wait(LIMIT)
    until = time.monotonic() + LIMIT
    while alive(pids):
        assert time.monotonic() < until, "trials outlive their parent"
        time.sleep(0.02)


def owned(study: Any, pid: int) -> Any:
    """A trial that runs, by the parent of this pid."""
    from synkhronos.search import _ownership

    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    trial.set_user_attr("synkhronos:owner", _ownership._process(pid))
    return trial


def test_trials_of_other_parents() -> None:
    """Of a living one: refused, or left as they are. Of a dead one: asked again, once."""
    study = open_study("a")
    owned(study, os.getppid())
    with pytest.raises(synk.InputError, match=f"process {os.getppid()} runs trial 0 of the study"):
        search(objectives.parabola, study, trials=1)
    search(objectives.parabola, study, trials=1, alone=False)
    assert states(study) == ["RUNNING"]
    gone = owned(study, 2**22 + 1)  # above the largest pid of Linux
    search(objectives.parabola, study, trials=2, alone=False)
    assert states(study) == ["RUNNING", "FAIL", "COMPLETE"]
    assert study.trials[2].params == gone.params
    assert study.trials[2].user_attrs["synkhronos:again_of"] == 1


def test_a_shortage_of_descriptors_is_no_dead_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its trials, which it still runs, would be asked again."""
    study = open_study("a")
    owned(study, os.getppid())

    def opened(*args: object, **kwargs: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as full:
        full.setattr(Path, "read_text", opened)
        with pytest.raises(OSError, match="Too many open files"):
            search(objectives.parabola, study, trials=1, alone=False)
    assert states(study) == ["RUNNING"]


def test_a_search_in_another_thread(tmp_path: Path) -> None:
    """Its trials live: they are not asked again, and a search that is alone is refused."""
    study = open_study("a", tmp_path / "a.db")
    waits = functools.partial(objectives.rendezvous, tmp_path)
    thread = threading.Thread(target=search, args=(waits, study), kwargs={"trials": 1})
    thread.start()
    try:
        begun(tmp_path, 1)
        with pytest.raises(synk.InputError, match=f"process {os.getpid()} runs trial 0"):
            search(objectives.parabola, study, trials=2)
        search(objectives.parabola, study, trials=2, alone=False)
    finally:
        (tmp_path / "go").write_text("")
        thread.join(LIMIT)
    assert states(study) == ["COMPLETE", "COMPLETE"]
    owned(study, os.getpid())  # as of an earlier search of this process
    search(objectives.parabola, study, trials=3, alone=False)
    assert states(study) == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE"]


def test_threads_of_an_objective_get_their_own_values() -> None:
    study = search(objectives.four_threads, open_study("a", sampler="random"), trials=1)
    assert [trial.value for trial in study.trials] == [0.0]


def test_an_objective_has_attributes_of_its_own() -> None:
    study = searched(objectives.own_attributes, 2)
    assert states(study) == ["COMPLETE", "COMPLETE"]
    assert {"owner": 0, "again_of": 0}.items() <= study.trials[1].user_attrs.items()


def test_a_trial_of_another_machine_is_known_to_be_lost_only_if_alone() -> None:
    study = open_study("a")
    trial = study.ask()
    trial.set_user_attr("synkhronos:owner", {"host": "another", "boot": "", "pid": 1, "started": 1})
    search(objectives.parabola, study, trials=1, alone=False)
    assert states(study) == ["RUNNING"]
    search(objectives.parabola, study, trials=1)
    assert states(study) == ["FAIL", "COMPLETE"]


def test_death_between_the_two_writes_of_a_loss() -> None:
    """The trial that asks again was made, and the lost one was not failed yet: no second one."""
    study = open_study("a")
    study.ask()
    study.enqueue_trial({"x": 1.0}, user_attrs={"synkhronos:again_of": 0})
    search(objectives.parabola, study, trials=1)
    assert states(study) == ["FAIL", "COMPLETE"]


WRONG: Sequence[tuple[dict[str, Any], str]] = [
    ({"objective": 3}, "objective=3: give a function of a trial"),
    ({"study": "a"}, "study='a': give a study"),
    ({"trials": 0}, "trials=0: give an integer of at least 1"),
    ({"slots": 0}, "slots=0: give an integer of at least 1"),
    ({"slots": "two"}, "slots='two': give a number, or lists of cores"),
    ({"slots": []}, "slots=\\[\\]: give the cores"),
    ({"slots": [[9999]]}, "this process may only use cores"),
    ({"members": 0}, "members=0: give an integer of at least 1"),
    ({"folds": True}, "folds=True: give an integer of at least 1"),
    ({"limit": -1}, "limit=-1: give a number of more than 0, in seconds, or None"),
    ({"limit": "5"}, "limit='5': give a number"),
    ({"limit": math.nan}, "limit=nan: give a number"),
    ({"target": "0.9"}, "target='0.9': give a number"),
    ({"target": math.nan}, "target=nan: give a number"),
    ({"callbacks": None}, "callbacks=None: give a list of functions"),
    ({"callbacks": print}, "callbacks=<built-in function print>: give a list"),
    ({"callbacks": [3]}, "callbacks=\\[3\\]: give a list"),
    ({"log_dir": "/dev/null/a"}, "log_dir='/dev/null/a': Not a directory"),
    ({"trails": 3}, "no option 'trails'; .*did you mean trials="),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_wrong_arguments(given: dict[str, Any], message: str) -> None:
    study = open_study("a")
    options = {"objective": objectives.parabola, "study": study, "trials": 1, **given}
    with pytest.raises(synk.InputError, match=message):
        search(options.pop("objective"), options.pop("study"), **options)
    assert not study.trials


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": ""}, "name='': give a text"),
        ({"direction": "down"}, "direction='down': "),
        ({"sampler": "gp"}, "sampler='gp': tpe, nsga2, random, or a sampler of Optuna"),
        ({"pruner": "all"}, "pruner='all': median, hyperband, None"),
        ({"seed": -1}, "seed=-1: give an integer of at least 0"),
        ({"storage": "a.txt"}, "storage='a.txt': a file for SQLite"),
        ({"storage": "no/such/a.db"}, "there is no folder .*no/such"),
    ],
)
def test_wrong_studies(given: dict[str, Any], message: str) -> None:
    with pytest.raises(synk.InputError, match=message):
        open_study(**{"name": "a", **given})


@pytest.mark.parametrize(("slots", "count"), [(1, 1), (PAIR, 2)])
def test_a_callback_stops_the_study(slots: Any, count: int) -> None:
    """As with a target: no new trial starts, those that run go on to their end."""
    stop = optuna.study.MaxTrialsCallback(1)
    study = searched(objectives.parabola, 5, slots=slots, callbacks=[stop])
    assert states(study) == ["COMPLETE"] * count
    search(objectives.parabola, study, trials=3)
    assert states(study) == ["COMPLETE"] * 3
    with pytest.raises(RuntimeError, match="inside an objective function or a callback"):
        study.stop()


def test_samplers_that_end_the_study() -> None:
    study = open_study("a", sampler=optuna.samplers.GridSampler({"x": [0.0]}))
    with pytest.raises(synk.InputError, match="GridSampler ends a study by itself"):
        search(objectives.parabola, study, trials=1)


def test_values_can_be_enqueued() -> None:
    study = open_study("a")
    study.enqueue_trial({"x": 2.0})
    search(objectives.parabola, study, trials=1)
    assert study.best_value == 0.0


def test_a_study_keeps_its_directions(tmp_path: Path) -> None:
    open_study("a", tmp_path / "a.db")
    with pytest.raises(synk.InputError, match="has minimize: give these, or another name"):
        open_study("a", tmp_path / "a.db", direction="maximize")


def test_without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(synk.BackendMissing, match=r'pip install "synkhronos\[search\]"'):
        open_study("a")


def test_a_trial_imports_neither_optuna_nor_pytensor(tmp_path: Path) -> None:
    """Unless the objective does; so it starts quickly."""
    text = """
    import sys
    from synkhronos.search import _entry
    print(sorted({"optuna", "pytensor", "jax", "sqlalchemy"} & set(sys.modules)))
    """
    assert run_script(tmp_path, text) == "[]\n"


def test_an_objective_that_cannot_travel() -> None:
    lock = threading.Lock()
    with pytest.raises(synk.InputError, match="Make that inside"):
        searched(functools.partial(objectives.rendezvous, lock), 1)


def test_infinite_values_can_be_told() -> None:
    study = open_study("a")
    search(infinite, study, trials=1)
    assert study.best_value == math.inf


def infinite(trial: Trial) -> float:
    return float("inf")


infinite.__module__ = "__main__"
