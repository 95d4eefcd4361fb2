"""Private names of Optuna."""

from __future__ import annotations

from synkhronos._libraries.library import Library

OPTUNA = Library(
    "optuna",
    tried="5.0.0",
    names={
        "study.stop() in a callback is an error": (
            "optuna.study:Study()._stop_flag Study()._thread_local",
        ),
        "search(on=) cannot send a trial to a worker": ("optuna.trial:Trial()._trial_id",),
        "search(on=) cannot see that workers lack the storage of a study": (
            "optuna.study:Study()._storage",
            "optuna.storages._cached_storage:_CachedStorage _CachedStorage()._backend",
            "optuna.storages.journal:JournalFileBackend()._file_path",
        ),
    },
)
