"""Where studies are kept, and how another process gets at a trial there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.optuna import OPTUNA
from synkhronos.search._studies import optuna


class Place(NamedTuple):
    """Where a study is kept: in memory, in a file, or elsewhere.

    `one_machine` says that processes of one machine alone can share it.
    """

    in_memory: bool = False
    file: str = ""
    one_machine: bool = False


def place_of(study: Any) -> Place:
    """Where a study is kept, as far as its storage shows it."""
    storages = optuna().storages
    with optional_gain():
        backend = _backend_of(study)
        if isinstance(backend, storages.InMemoryStorage):
            return Place(in_memory=True)
        if isinstance(backend, storages.journal.JournalFileBackend):
            return Place(file=OPTUNA.of(backend, "_file_path"))
        if isinstance(backend, storages.RDBStorage):
            url = backend.engine.url
            if url.get_backend_name() == "sqlite":
                file = url.database or ""
                return Place(file in ("", ":memory:"), file, one_machine=True)
    return Place()


def _backend_of(study: Any) -> Any:
    """Its storage, without a cache or what keeps a journal."""
    storage = OPTUNA.of(study, "_storage")
    kinds = OPTUNA.get("_CachedStorage"), optuna().storages.JournalStorage
    return OPTUNA.of(storage, "_backend") if isinstance(storage, kinds) else storage


def sent(trial: Any) -> tuple[Any, int]:
    """A trial that runs, as another process needs it, which can be pickled."""
    return trial.study, OPTUNA.of(trial, "_trial_id")


def received(given: tuple[Any, int]) -> Any:
    """The trial that was sent, with what it has drawn so far; None: its study has no such trial."""
    try:
        found = optuna().trial.Trial(*given)
    except KeyError:
        return None
    # else all trials would draw the same values, as the sampler that was sent
    found.study.sampler.reseed_rng()
    return found


@contextlib.contextmanager
def connected(study: Any) -> Iterator[None]:
    """A context at whose end a database, to which this copy of a study connects, has it no more."""
    try:
        yield
    finally:
        with optional_gain():
            backend = _backend_of(study)
            if isinstance(backend, optuna().storages.RDBStorage):
                backend.remove_session()
                backend.engine.dispose()
