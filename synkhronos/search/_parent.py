"""The parent of a search: it asks for trials, runs them in slots, and tells how they ended."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import synkhronos.search._studies as studies
from synkhronos._errors import InputError, SynkhronosError
from synkhronos._transport.processes.interpreter import lifeline
from synkhronos._transport.processes.worker import signals_blocked
from synkhronos._transport.serialization import pack_graph
from synkhronos.search._ownership import claim
from synkhronos.search._trial_process import Settings, TrialProcess

log = logging.getLogger("synkhronos")

_GONE_SECONDS = 30.0  # for a killed process to be gone
_LOOK_SECONDS = 5.0  # between two looks at limits, and at trials of other parents


class Parent:
    """Runs the trials of a study: one thread, which asks, answers and tells.

    Parameters
    ----------
    study : optuna.Study
    slots : sequence of sequences of int
        The cores of each.
    settings : Settings
    owner : mapping
        This search, as its trials name it.
    trials : int
        In all, with those that the study has.
    limit : float
        Seconds for a trial.
    failures : int
        Raise after this number of failed trials in a row.
    target : float or None
        Ask for no trial after this value.
    callbacks : sequence of callables
        Called with the study and a trial that has ended.
    """

    def __init__(
        self,
        study: Any,
        slots: Sequence[Sequence[int]],
        settings: Settings,
        owner: Mapping[str, object],
        *,
        trials: int,
        limit: float,
        failures: int,
        target: float | None,
        callbacks: Sequence[studies.Callback],
    ) -> None:
        self._study = study
        self._free = list(slots)
        self._settings = settings
        self._owner = owner
        self._trials = trials
        self._limit = limit
        self._failures = failures
        self._target = target
        self._callbacks = list(callbacks)
        self._running: list[TrialProcess] = []
        self._failed = 0  # trials in a row
        self._stopped = False  # by a callback
        self._poller = select.poll()

    def run(self) -> None:
        """Run trials until there are enough; at an exception, kill and give back what runs.

        There are also enough when a callback has stopped the study.

        Raises
        ------
        SynkhronosError
            Too many trials in a row have failed.
        Exception
            Of the storage, or of a callback.
        """
        try:
            while True:
                self._fill_slots()
                if not self._running:
                    return
                self._wait()
        finally:
            self._give_up()

    def _fill_slots(self) -> None:
        while self._free and self._wants_more():
            with signals_blocked():  # an interrupt would lose a trial that nobody knows yet
                self._start()

    def _start(self) -> None:
        trial = self._study.ask()
        process = None
        try:
            claim(trial, self._owner)
            process = TrialProcess(trial, self._free[-1], self._settings, self._limit)
        finally:
            if process is None:
                self._give_back(trial)
        self._free.pop()
        self._running.append(process)
        for descriptor in process.descriptors:
            self._poller.register(descriptor, select.POLLIN)

    def _wants_more(self) -> bool:
        if self._stopped:
            return False
        if self._target is not None and studies.reached(self._study, self._target):
            return False
        return studies.counted(self._study) < self._trials

    def _wait(self) -> None:
        """Wait for messages, ends and limits."""
        until = min(process.until for process in self._running)
        seconds = min(max(0.0, until - time.monotonic()), _LOOK_SECONDS)
        ready = {descriptor for descriptor, _ in self._poller.poll(math.ceil(1000 * seconds))}
        for process in list(self._running):
            if ready.intersection(process.descriptors):
                self._serve(process)
            if process in self._running and time.monotonic() > process.until:
                self._stop(process)

    def _serve(self, process: TrialProcess) -> None:
        """Answer what a trial asks; the order makes sure that no message of a dead one is lost."""
        dead = process.dead
        messages = process.messages()
        while True:
            try:
                message = next(messages, None)
            except ValueError as exc:  # as for JSON
                process.late = f"its process has sent something else than messages: {exc}"
                self._stop(process)
                return
            if message is None:
                break
            try:
                self._take(process, message)
            except BlockingIOError:
                process.late = "its process asks, and does not read the replies"
                self._stop(process)
                return
        if dead:
            self._end(process)
        elif process.silent:
            with contextlib.suppress(KeyError):  # it has been left out before
                self._poller.unregister(process.descriptors[0])

    def _take(self, process: TrialProcess, message: dict[str, Any]) -> None:
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

    def _stop(self, process: TrialProcess) -> None:
        """Kill a process that is late or wrong."""
        process.kill()
        if not _gone(process, _GONE_SECONDS):
            raise SynkhronosError(f"search: process {process.pid} does not end after SIGKILL")
        told, why = process.told, process.late
        self._free_slot(process)
        if not told:
            self._fail(process, why)

    def _end(self, process: TrialProcess) -> None:
        """The process has ended, with or without a last message."""
        how = self._free_slot(process)
        if not process.told:
            self._fail(process, f"its process has ended without a value: {how}")

    def _free_slot(self, process: TrialProcess) -> str:
        self._running.remove(process)
        self._free.append(process.cores)
        for descriptor in process.descriptors:
            with contextlib.suppress(KeyError):  # of a silent process
                self._poller.unregister(descriptor)
        return process.close()

    def _give_up(self) -> None:
        """End what still runs: the search has ended by an exception."""
        left = list(self._running)
        for process in left:
            process.kill()
        for process in left:
            if _gone(process, _GONE_SECONDS):
                self._free_slot(process)
        for process in left:
            if not process.told:
                self._give_back(process.trial)

    def _give_back(self, trial: Any) -> None:
        trials = self._study.get_trials(deepcopy=False)
        studies.give_back(self._study, trials[trial.number])


def _gone(process: TrialProcess, seconds: float) -> bool:
    poller = select.poll()
    poller.register(process.descriptors[1], select.POLLIN)
    return bool(poller.poll(1000 * seconds))


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
    with contextlib.ExitStack() as stack:
        held = os.memfd_create("synk-objective")
        stack.callback(os.close, held)
        with os.fdopen(os.dup(held), "wb") as file:
            file.write(packed)
        yield held, stack.enter_context(lifeline())
