"""The parent of a search: it asks for trials, runs them in slots, and tells how they ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import synkhronos.search._studies as studies
from synkhronos._transport.processes.slots import Slots
from synkhronos.search._outcomes import Outcomes, is_end
from synkhronos.search._ownership import claim
from synkhronos.search._trial_process import Settings, TrialProcess


class Parent(Slots[TrialProcess]):
    """Runs the trials of a study: one thread, which asks, answers and tells.

    `run` ends when there are enough trials, or a callback has stopped the study. It raises what
    `Outcomes.note` does, and exceptions of the storage. Trials that run then are killed, and given
    back.
    """

    def __init__(
        self,
        study: Any,
        slots: Sequence[Sequence[int]],  # the cores of each
        settings: Settings,
        owner: Mapping[str, object],
        outcomes: Outcomes,
        limit: float,
    ) -> None:
        super().__init__(slots, "search")
        self._study = study
        self._settings = settings
        self._owner = owner  # this search, as its trials name it
        self._outcomes = outcomes
        self._limit = limit  # seconds for a trial

    def started(self, cores: Sequence[int]) -> TrialProcess:
        """The process of the next trial, which the study is asked for."""
        trial = self._study.ask()
        process = None
        try:
            claim(trial, self._owner)
            process = TrialProcess(trial, cores, self._settings, self._limit)
        finally:
            if process is None:
                self._outcomes.give_back(trial)
        return process

    def wants_more(self) -> bool:
        """Whether the study has too few trials."""
        return self._outcomes.wants_more()

    def take(self, process: TrialProcess, message: Mapping[str, Any]) -> None:
        """Answer what a trial asks, and tell the study how it has ended."""
        if process.told:
            return
        if not is_end(message):
            process.reply(studies.answer(self._study, process.trial, message))
            return
        told = self._outcomes.tell(process.trial, message)
        process.ends_soon()
        self._outcomes.note(told)

    def lost(self, process: TrialProcess, why: str) -> None:
        """The trial has failed."""
        self.take(process, {"raised": why})

    def given_up(self, process: TrialProcess) -> None:
        """Its values are asked again in the next search."""
        self._outcomes.give_back(process.trial)
