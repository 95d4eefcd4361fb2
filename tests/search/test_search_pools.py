"""`search` on pools: one suite for all of them, and what becomes of trials whose workers end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import objectives
import optuna
import pool_programs
import pytest
import search_cases as cases
import search_kills
from recipes import run_recipe
from selection import thorough
from stand_pool import Loss, Stand
from user_scripts import ended

from synkhronos._errors import InputError, SynkhronosError
from synkhronos._transport.serialization import unpack_graph
from synkhronos.search import _pooled, open_study, search
from synkhronos.search._outcomes import Outcomes
from synkhronos.search._storages import received, sent

optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["values", "interrupt"])
def test_an_executor_is_as_slots(name: str, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        cases.CASES[name](pool, tmp_path)


@pytest.mark.thorough
@pytest.mark.timeout(120)
def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_recipe("recipe-cluster-search")
    assert cases.states(done["study"]) == ["COMPLETE"] * 4
    assert (tmp_path / "search.journal").exists()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", thorough("threads", "processes", "dask", "ray", "mpi"))
def test_pools_are_alike(kind: str, tmp_path: Path) -> None:
    """All cases hold for each of them."""
    command = pool_programs.command(kind, 2, cases.__file__, kind, str(tmp_path))
    done = ended(tmp_path, command, limit=850)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(" s\n") == len(cases.CASES), done.stdout
    assert "all cases" in done.stdout


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", thorough("dask", "ray"))
def test_a_worker_is_killed(kind: str, tmp_path: Path) -> None:
    """Its trial runs again in another worker, with the same values."""
    command = pool_programs.command(kind, 3, search_kills.__file__, kind, str(tmp_path))
    done = ended(tmp_path, command, 580)
    assert done.returncode == 0, done.stdout
    assert "as it must be" in done.stdout


@pytest.fixture
def study(tmp_path: Path) -> Any:
    return open_study("a", tmp_path / "a.journal", seed=0)


def run_on(
    pool: Stand, study: Any, trials: int, monkeypatch: pytest.MonkeyPatch, **given: Any
) -> None:
    monkeypatch.setattr(_pooled, "pool_of", lambda *_: pool)
    search(objectives.parabola, study, trials=trials, on=pool, **given)


def test_a_trial_of_a_lost_worker_runs_once_again(
    study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it has drawn; then it has failed."""
    calls: list[int] = []
    drawn: list[float] = []  # by trial 0

    def act(packed: bytes) -> dict[str, Any]:
        trial = received(unpack_graph(packed))
        assert trial is not None
        calls.append(trial.number)
        x = trial.suggest_float("x", -5.0, 5.0)
        drawn.extend([x] if trial.number == 0 else [])
        if trial.number == 2 or (trial.number == 0 and calls.count(0) == 1):
            raise Loss(f"worker of {trial.number}")
        return {"values": [x]}

    run_on(Stand(act, part="trial"), study, 4, monkeypatch)
    assert cases.states(study) == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE"]
    assert [calls.count(n) for n in range(4)] == [2, 1, 2, 1]
    assert study.trials[0].value == study.trials[0].params["x"]
    assert drawn[0] == drawn[1]
    assert len({trial.params["x"] for trial in study.trials}) == 4  # by copies of one sampler
    why = study.trials[2].user_attrs["failure"]
    assert why == "its worker has ended 2 times: worker of 2"


def test_no_trial_waits_for_a_worker(study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many are asked as run at once; a pool that is gone gives them back."""
    pool = Stand(lambda _: None, slots=3, part="trial")

    def never(packed: bytes) -> object:
        if len(pool.batches) == 3:
            pool.said = "it is gone"
        raise LookupError

    pool.act = never
    said = "search: Stand: it is gone. The study has the trials so far: the same call goes on"
    with pytest.raises(SynkhronosError, match=said):
        run_on(pool, study, 9, monkeypatch)
    assert cases.states(study) == ["FAIL"] * 3 + ["WAITING"] * 3
    assert pool.cancelled == 3


def test_an_interrupt_after_the_end_was_told(study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial is complete, and not asked again."""
    told = Outcomes.tell

    def interrupted(self: Outcomes, trial: Any, message: Any) -> None:
        told(self, trial, message)
        raise KeyboardInterrupt

    monkeypatch.setattr(Outcomes, "tell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_on(Stand(lambda _: {"values": [1.0]}, 1, "trial"), study, 1, monkeypatch)
    assert cases.states(study) == ["COMPLETE"]


def test_a_worker_that_sees_another_study(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the same name on another machine."""
    other = open_study("a", tmp_path / "b.journal")
    said = "sees another study in the storage, which does not have this trial"
    for trials in (0, 1):  # none of this number, or one of another search
        for _ in range(trials):
            other.ask()
        monkeypatch.setattr(_pooled, "sent", lambda trial: (other, sent(trial)[1]))
        with ThreadPoolExecutor(1) as pool, pytest.raises(SynkhronosError, match=said):
            search(objectives.parabola, study, trials=1, on=pool)
    assert cases.states(study) == ["FAIL", "FAIL", "WAITING"]


def test_storages_that_workers_cannot_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said before a trial is asked for."""
    pool = Stand(lambda _: None, part="trial")
    pool.other = "node7"
    memory = optuna.create_study(storage="sqlite://", study_name="b")
    for kept in (open_study("a"), memory):
        with pytest.raises(
            InputError, match=r"on=: the study '.' is in the memory of this process"
        ):
            run_on(pool, kept, 1, monkeypatch)
    sqlite = open_study("a", tmp_path / "a.db")
    said = r"Stand has workers on another machine \(node7\), and SQLite's '.*a.db' is for one"
    with pytest.raises(InputError, match=said):
        run_on(pool, sqlite, 1, monkeypatch)
    assert sqlite.trials == memory.trials == pool.batches == []


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"on": 3}, "on=3: give a Client of Dask, 'ray', an MPIPoolExecutor, or an Executor"),
        ({"on": ThreadPoolExecutor(1), "slots": 2}, "slots= is for this machine alone"),
        ({"on": ThreadPoolExecutor(1), "log_dir": "x"}, "log_dir= is for this machine alone"),
    ],
)
def test_what_does_not_go_with_a_pool(study: Any, given: dict[str, Any], error: str) -> None:
    with pytest.raises((InputError, TypeError), match=f"search: {error}"):
        search(objectives.parabola, study, trials=1, **given)
    assert study.trials == []


def test_a_sampler_that_cannot_be_sent(study: Any) -> None:
    study.sampler.lock = __import__("threading").Lock()
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(InputError, match="cannot be sent to a process"),
    ):
        search(objectives.parabola, study, trials=1, on=pool)
