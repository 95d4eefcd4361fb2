"""The parent of a search: it asks for trials, runs them in slots, and tells how they ended."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import synkhronos.search._studies as studies
from synkhronos._errors import InputError, SynkhronosError
from synkhronos._transport.processes.interpreter import lifeline
from synkhronos._transport.processes.slots import Slots, in_memory
from synkhronos._transport.serialization import pack_graph
from synkhronos.search._ownership import claim
from synkhronos.search._trial_process import Settings, TrialProcess

log = logging.getLogger("synkhronos")


class Parent(Slots[TrialProcess]):
    """Runs the trials of a study: one thread, which asks, answers and tells.

    `run` ends when there are enough trials, or a callback has stopped the study. It raises a
    SynkhronosError after too many failed trials in a row, and exceptions of the storage or of a
    callback. Trials that run then are killed, and given back.
    """

    def __init__(
        self,
        study: Any,
        slots: Sequence[Sequence[int]],  # the cores of each
        settings: Settings,
        owner: Mapping[str, object],
        *,
        trials: int,
        limit: float,
        failures: int,
        target: float | None,
        callbacks: Sequence[studies.Callback],  # called with the study and a trial that has ended
    ) -> None:
        super().__init__(slots, "search")
        self._study = study
        self._settings = settings
        self._owner = owner  # this search, as its trials name it
        self._trials = trials  # in all, with those that the study has
        self._limit = limit  # seconds for a trial
        self._failures = failures  # raise after this number of failed trials in a row
        self._target = target  # ask for no trial after this value
        self._callbacks = list(callbacks)
        self._failed = 0  # trials in a row
        self._stopped = False  # by a callback

    def started(self, cores: Sequence[int]) -> TrialProcess:
        """The process of the next trial, which the study is asked for."""
        trial = self._study.ask()
        process = None
        try:
            claim(trial, self._owner)
            process = TrialProcess(trial, cores, self._settings, self._limit)
        finally:
            if process is None:
                self._give_back(trial)
        return process

    def wants_more(self) -> bool:
        """Whether the study has too few trials."""
        if self._stopped:
            return False
        if self._target is not None and studies.reached(self._study, self._target):
            return False
        return studies.counted(self._study) < self._trials

    def take(self, process: TrialProcess, message: dict[str, Any]) -> None:
        """Answer what a trial asks, and tell the study how it has ended."""
        if process.told:
            return
        if "values" in message:
            values, why = studies.values_or_why(self._study, message["values"])
            if why:
                self._fail(process, why)
            else:
                self._tell(process, studies.tell(self._study, process.trial, values))
        elif "pruned" in message:
            self._tell(process, studies.tell_pruned(self._study, process.trial))
        elif "raised" in message:
            self._fail(process, message["raised"], message.get("traceback", ""))
        else:
            process.reply(studies.answer(self._study, process.trial, message))

    def _tell(self, process: TrialProcess, found: object) -> None:
        process.ends_soon()
        self._failed = 0
        self._call_back(found)

    def _fail(self, process: TrialProcess, why: str, text: str = "") -> None:
        found = studies.tell_failed(self._study, process.trial, why)
        process.ends_soon()
        log.warning("trial %d failed: %s", process.trial.number, why)
        self._failed += 1
        if found is not None:
            self._call_back(found)
        if self._failed >= self._failures:
            last = f"\n{text}" if text else ""
            raise SynkhronosError(
                f"search: {self._failed} trials in a row have failed, the last one: {why}. Mend "
                f"the objective, or give a larger failures={last}"
            )

    def _call_back(self, found: object) -> None:
        if studies.call_back(self._study, found, self._callbacks):
            self._stopped = True

    def lost(self, process: TrialProcess, why: str) -> None:
        """The trial has failed."""
        self._fail(process, why)

    def given_up(self, process: TrialProcess) -> None:
        """Its values are asked again in the next search."""
        self._give_back(process.trial)

    def _give_back(self, trial: Any) -> None:
        trials = self._study.get_trials(deepcopy=False)
        studies.give_back(self._study, trials[trial.number])


@contextlib.contextmanager
def inherited(objective: object) -> Iterator[tuple[int, int]]:
    """Descriptors of the pickled objective, and of the lifeline's end that trials hold.

    Raises
    ------
    InputError
        The objective cannot be pickled.
    """
    try:
        packed = pack_graph(objective)
    except Exception as exc:  # of any object that the function refers to
        raise InputError(
            f"search: the objective refers to what cannot be sent to a process: {exc}. Make that "
            "inside of the objective"
        ) from exc
    with in_memory(packed, "synk-objective") as held, lifeline() as end:
        yield held, end
