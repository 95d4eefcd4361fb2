"""The trials of a search on a pool: the study is asked here, and workers read and write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synkhronos._errors import InputError
from synkhronos._transport.pools.batches import TRIES, Batches
from synkhronos._transport.pools.chosen import pool_of
from synkhronos._transport.pools.pool import Pool
from synkhronos._transport.pools.stations import versions_here
from synkhronos._transport.processes.worker import signals_blocked
from synkhronos._transport.serialization import pack_or_refuse
from synkhronos.search._outcomes import Outcomes
from synkhronos.search._ownership import claim
from synkhronos.search._station import run_trial
from synkhronos.search._storages import place_of, sent

# What decides whether a worker can read an objective and a study
_PACKAGES = ("synkhronos", "optuna", "pytensor", "numpy", "numba", "cloudpickle")
_AHEAD = 1  # a trial that waits for its worker would know less of the others


class PooledTrials(Batches[Any]):
    """Runs the trials of a study on a pool; each is a batch.

    A trial whose worker ends runs once again, with the same values. Then it has failed. If `run`
    ends too soon, trials that run are given back.
    """

    goes_on = "The study has the trials so far: the same call goes on"

    def __init__(
        self,
        study: Any,
        pool: Pool,
        objective: bytes,  # its pickle
        owner: Mapping[str, object],  # this search, as its trials name it
        outcomes: Outcomes,
        settings: Mapping[str, object],  # of a trial: members, folds, and the limit or None
    ) -> None:
        common = {
            "versions": versions_here(_PACKAGES),
            "owner": dict(owner),
            "file": place_of(study).file,
            **settings,
        }
        super().__init__("search", pool, run_trial, common, _AHEAD)
        self._study = study
        self._objective = objective
        self._owner = owner
        self._outcomes = outcomes
        self._open: list[Any] = []  # trials without an end
        self._again: list[Any] = []  # those that run once again
        self._tries: dict[int, int] = {}

    def run(self) -> None:
        """See `Batches`, and `Outcomes.note`."""
        try:
            super().run()
        finally:
            for trial in self._open:
                self._outcomes.give_back(trial)

    def head(self) -> bytes:
        """See `Batches`."""
        return self._objective

    def wants_more(self) -> bool:
        """See `Batches`."""
        return bool(self._again) or self._outcomes.wants_more()

    def next(self, slots: int) -> Any:
        """See `Batches`: one that was lost, or the next one of the study."""
        del slots
        if self._again:
            return self._again.pop()
        with signals_blocked():  # an interrupt would lose a trial that nobody knows yet
            trial = self._study.ask()
            self._open.append(trial)
        claim(trial, self._owner)
        return trial

    def given(self, batch: Any) -> dict[str, object]:
        """See `Batches`: the trial with its study."""
        return {"trial": packed(sent(batch))}

    def take(self, batch: Any, found: Mapping[str, Any]) -> None:
        """See `Batches`; for exceptions see `Outcomes.note`."""
        told = self._outcomes.tell(batch, found)
        self._open.remove(batch)
        self._outcomes.note(told)

    def lost(self, batch: Any, exc: Exception) -> None:
        """See `Batches`; for exceptions see `Outcomes.note`."""
        self._tries[batch.number] = tries = self._tries.get(batch.number, 0) + 1
        if tries < TRIES:
            self._again.append(batch)
        else:
            self.take(batch, {"raised": f"its worker has ended {tries} times: {exc}"})


def pool_for(study: Any, on: object, members: int) -> Pool:
    """The pool for ``on=``, whose workers can see a study as far as that is known.

    Raises
    ------
    InputError, InputTypeError, BackendMissing
        It is no pool, its workers certainly cannot see the study, or a sampler cannot be sent.
    """
    pool = pool_of("search", on, members)
    place = place_of(study)
    if place.in_memory:
        raise InputError(
            f"search: on=: the study {study.study_name!r} is in the memory of this process, where "
            'no worker sees it: give open_study a storage, such as "search.journal" in a folder '
            "that all of them see, or the URL of a database"
        )
    if place.one_machine and (other := pool.elsewhere()):
        raise InputError(
            f"search: on=: {pool.name} has workers on another machine ({other}), and SQLite's "
            f"{place.file!r} is for one: give open_study the URL of a database, or a file .journal "
            "in a folder that all machines see"
        )
    packed(study)
    return pool


def packed(thing: Any) -> bytes:
    """The pickle of a study, or of a trial with its study."""
    return pack_or_refuse(thing, "search: the study", "Give another sampler or pruner")
