"""A trial in a worker of a pool: it reads and writes the study, and the trial's process computes.

A worker computes nothing itself, as in a fleet (``pymc._map.batches``): an objective that dies
would end it.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import synkhronos.search._studies as studies
from synkhronos._errors import SynkhronosError
from synkhronos._transport.pools.stations import Station, here, why_not
from synkhronos._transport.processes.interpreter import lifeline
from synkhronos._transport.processes.slots import Slots, in_memory
from synkhronos._transport.serialization import unpack_graph
from synkhronos.search._outcomes import is_end
from synkhronos.search._ownership import is_claimed
from synkhronos.search._storages import connected, received
from synkhronos.search._trial_process import Settings, TrialProcess


def run_trial(head: bytes, batch: Mapping[str, Any], cores: int) -> dict[str, Any]:
    """Run a trial, in a worker whose process has `cores` for all its batches.

    Returns
    -------
    dict
        How it has ended, see `is_end`; or ``"wrong"``: why this worker runs no trial.
    """
    why = why_not(batch, cores)
    file = batch["file"]
    if not why and file and not os.path.exists(file):
        why = (
            f"the worker on {platform.node()} has no {file!r}, the storage of the study: put it "
            "into a folder that all machines see, or give open_study the URL of a database"
        )
    if why:
        return {"wrong": why}
    with here.station(lambda: TrialStation(head, batch), batch, cores) as station:
        return station.end()


class TrialStation(Station, Slots[TrialProcess]):
    """One slot of a worker, for one trial."""

    rests = False

    def __init__(self, head: bytes, batch: Mapping[str, Any]) -> None:
        Slots.__init__(self, [()], "search")
        self._batch = batch
        self._found: dict[str, Any] = {}
        self._begun = self._stopped = False
        self._trial: Any = None
        with contextlib.ExitStack() as made:
            held = made.enter_context(in_memory(head, "synk-objective"))
            end = made.enter_context(lifeline())
            self._settings = Settings(held, end, batch["members"], batch["folds"], None)
            self._open = made.pop_all()

    def end(self) -> dict[str, Any]:
        """Run the trial; how it has ended."""
        given = unpack_graph(self._batch["trial"])
        with connected(given[0]):
            self._trial = trial = received(given)
            if trial is None or not is_claimed(trial, self._batch["owner"]):
                return {
                    "wrong": f"the worker on {platform.node()} sees another study in the storage, "
                    "which does not have this trial: give open_study one storage that all "
                    "machines see"
                }
            self.run()
        return self._found

    def wants_more(self) -> bool:
        """Whether the trial has not begun."""
        return not self._begun

    def is_waited_for(self) -> bool:
        """Whether the trial has not ended."""
        if self._stopped:
            raise SynkhronosError("search: the call has ended")
        return bool(self._running)

    def started(self, cores: Sequence[int]) -> TrialProcess:
        """The trial's process."""
        self._begun = True
        limit = self._batch["limit"]
        return TrialProcess(
            self._trial, cores, self._settings, math.inf if limit is None else limit
        )

    def take(self, process: TrialProcess, message: Mapping[str, Any]) -> None:
        """Answer what the trial asks, or note how it has ended."""
        if process.told:
            return
        if is_end(message):
            self._found = dict(message)
            process.ends_soon()
        else:
            process.reply(studies.answer(self._trial.study, self._trial, message))

    def lost(self, process: TrialProcess, why: str) -> None:
        """The trial has failed."""
        self.take(process, {"raised": why})

    def given_up(self, process: TrialProcess) -> None:
        """Nothing: the call gives the trial back."""

    def stop(self) -> None:
        """See `Station`."""
        self._stopped = True
        for process in list(self._running):
            process.kill()

    def close(self) -> None:
        """See `Station`."""
        self.give_up()
        self._open.close()
