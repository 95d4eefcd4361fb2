"""How trials end: what the study is told, and when a search has enough of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import synkhronos.search._studies as studies
from synkhronos._errors import SynkhronosError
from synkhronos._warnings import log

_ENDS = frozenset({"values", "pruned", "raised"})


def is_end(message: Mapping[str, Any]) -> bool:
    """Whether a message of a trial's process says how it has ended, and is no request."""
    return not _ENDS.isdisjoint(message)


class Told(NamedTuple):
    """The end of a trial, as the study was told it.

    `trial` is the one that has ended; None: another parent had given it back. `why` is the reason
    of a failure, else empty, and `text` its traceback.
    """

    trial: object
    number: int
    why: str = ""
    text: str = ""


class Outcomes:
    """Takes note of how the trials of a search end."""

    def __init__(
        self,
        study: Any,
        *,
        trials: int,
        failures: int,
        target: float | None,
        callbacks: Sequence[studies.Callback],  # called with the study and a trial that has ended
    ) -> None:
        self._study = study
        self._trials = trials  # in all, with those that the study has
        self._failures = failures  # raise after this number of failed trials in a row
        self._target = target  # ask for no trial after this value
        self._callbacks = list(callbacks)
        self._failed = 0  # trials in a row
        self._stopped = False  # by a callback

    def wants_more(self) -> bool:
        """Whether the study has too few trials."""
        if self._stopped:
            return False
        if self._target is not None and studies.reached(self._study, self._target):
            return False
        return studies.counted(self._study) < self._trials

    def tell(self, trial: Any, message: Mapping[str, Any]) -> Told:
        """Tell the study how a trial has ended, see `is_end`."""
        if "values" in message:
            values, why = studies.values_or_why(self._study, message["values"])
            if not why:
                return Told(studies.tell(self._study, trial, values), trial.number)
            message = {"raised": why}
        if "pruned" in message:
            return Told(studies.tell_pruned(self._study, trial), trial.number)
        why = message["raised"]
        found = studies.tell_failed(self._study, trial, why)
        return Told(found, trial.number, why, message.get("traceback", ""))

    def note(self, told: Told) -> None:
        """Count the trial, and call the callbacks.

        Raises
        ------
        SynkhronosError
            Too many trials in a row have failed.
        Exception
            Of a callback.
        """
        if told.why:
            log.warning("trial %d failed: %s", told.number, told.why)
        self._failed = self._failed + 1 if told.why else 0
        if told.trial is not None and studies.call_back(self._study, told.trial, self._callbacks):
            self._stopped = True
        if self._failed >= self._failures:
            last = f"\n{told.text}" if told.text else ""
            raise SynkhronosError(
                f"search: {self._failed} trials in a row have failed, the last one: {told.why}. "
                f"Mend the objective, or give a larger failures={last}"
            )

    def give_back(self, trial: Any) -> None:
        """The values of a trial without an end are asked again in the next search."""
        trials = self._study.get_trials(deepcopy=False)
        studies.give_back(self._study, trials[trial.number])
