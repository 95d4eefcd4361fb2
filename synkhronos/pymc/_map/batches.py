"""Batches of items in a worker of a pool: it gives them to processes of its own.

A worker fits nothing itself. Its process may have threads, other numbers of threads in its
libraries, and its pool's own handlers of signals. So it starts the process of a slot, which lasts
from batch to batch, and which alone ends if an item crashes or is late.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from synkhronos._errors import SynkhronosError
from synkhronos._transport.pools.stations import Station, here, why_not
from synkhronos._transport.processes.interpreter import lifeline
from synkhronos._transport.processes.slots import in_memory, read_held, write_held
from synkhronos.pymc._map.parent import Ends, Fitter, Fleet, Item, Settings


def run_batch(head: bytes, batch: Mapping[str, Any], cores: int) -> dict[str, Any]:
    """Fit the items of a batch, in a worker whose process has `cores` for all its batches.

    Returns
    -------
    dict
        ``"ends"``: of each item, in order, the contents of the file of its result or None, why
        there is none, a traceback, and seconds. Or ``"wrong"``: why this worker fits no item.
    """
    if why := why_not(batch, cores):
        return {"wrong": why}
    with here.station(lambda: FittingStation(head, batch), batch, cores) as station:
        return {"ends": station.fit(batch["items"])}


class _Noted(Ends):
    """The ends of a batch's items."""

    def __init__(self, results: int) -> None:
        self._results = results  # the file in memory in which a process leaves a result
        self.began = 0.0
        self.found: dict[Item, tuple[bytes | None, str, str, float]] = {}

    def done(self, item: Item) -> None:
        """See `Ends`."""
        self.found[item] = read_held(self._results), "", "", time.monotonic() - self.began

    def fail(self, item: Item, why: str, text: str = "") -> None:
        """See `Ends`."""
        self.found[item] = None, why, text, time.monotonic() - self.began


class _LastingFleet(Fleet):
    """One slot, whose process waits for the next batch when it has fitted one."""

    def __init__(self, settings: Settings, ends: _Noted, limit: float) -> None:
        super().__init__([()], settings, ends, limit)
        self._noted = ends
        self._resting: list[Fitter] = []
        self._stopped = False

    def fit_batch(self, items: Sequence[Item]) -> None:
        """Fit items; the process is left, unless it has ended with its item."""
        self._left = list(items)[::-1]
        resting, self._resting = self._resting, []
        for process in resting:
            self.give(process)
        self.go_on()

    def give(self, process: Fitter) -> None:
        """Give the next item, or let the process rest."""
        self._noted.began = time.monotonic()
        if self._left:
            super().give(process)
        else:
            process.limit(math.inf)
            self._resting.append(process)

    def wants_more(self) -> bool:
        """As `Fleet`, until it is stopped."""
        return not self._stopped and super().wants_more()

    def is_waited_for(self) -> bool:
        """Whether an item has not ended."""
        if self._stopped:
            raise SynkhronosError("map: the call has ended")
        return bool(self._left) or any(process.item is not None for process in self._running)

    def stop(self) -> None:
        """From another thread: end the process; `fit_batch` raises."""
        self._stopped = True
        for process in list(self._running):
            process.kill()


class FittingStation(Station):
    """One slot of a worker, for the batches of one call."""

    def __init__(self, head: bytes, batch: Mapping[str, Any]) -> None:
        self._length = len(head)
        with contextlib.ExitStack() as made:
            self._held = made.enter_context(in_memory(head, "synk-items"))
            results = made.enter_context(in_memory(b"", "synk-result"))
            end = made.enter_context(lifeline())
            entropy, members = int(batch["entropy"]), batch["members"]
            settings = Settings(self._held, self._length, end, members, entropy, results)
            self._noted = _Noted(results)
            self._fleet = _LastingFleet(settings, self._noted, batch["limit"] or math.inf)
            self._open = made.pop_all()

    def fit(
        self, given: list[tuple[str, str, bytes]]
    ) -> list[tuple[bytes | None, str, str, float]]:
        """How each item ends, which is given by its name, its digest and its pickle."""
        begin, items = self._length, []
        for name, digest, packed in given:
            items.append(Item(name, (begin, begin + len(packed)), digest))
            begin += len(packed)
        write_held(self._held, b"".join(packed for *_, packed in given), self._length)
        self._fleet.fit_batch(items)
        found, self._noted.found = self._noted.found, {}
        return [found[item] for item in items]

    def stop(self) -> None:
        """See `Station`."""
        self._fleet.stop()

    def close(self) -> None:
        """See `Station`."""
        self._fleet.give_up()
        self._open.close()
