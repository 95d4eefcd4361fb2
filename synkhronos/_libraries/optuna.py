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
    },
)
