"""One trial's process, as the parent sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synkhronos._transport.processes.slot_process import SlotProcess


@dataclass(frozen=True)
class Settings:
    """The settings that all trials of a search have in common.

    `objective` and `lifeline` are descriptors: a file in memory with the pickled function, and the
    read end of a pipe whose write end only the parent holds. `log_dir` is a folder for what trials
    print; None: they print where the parent does.
    """

    objective: int
    lifeline: int
    members: int | None
    folds: int
    log_dir: Path | None


class TrialProcess(SlotProcess):
    """A trial in a fresh interpreter, bound to the cores of its slot."""

    def __init__(self, trial: Any, cores: Sequence[int], settings: Settings, limit: float) -> None:
        self.trial = trial
        folder = settings.log_dir
        super().__init__(
            "synkhronos.search._entry",
            {
                "number": trial.number,
                "cores": list(cores),
                "members": settings.members,
                "folds": settings.folds,
                "objective": settings.objective,
            },
            cores,
            descriptors=(settings.objective,),
            lifeline=settings.lifeline,
            members=settings.members,
            log=None if folder is None else folder / f"trial-{trial.number}.log",
        )
        self.limit(limit)
