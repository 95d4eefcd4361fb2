"""The parent of a fleet: it gives items to processes in slots, and hears how they end.

Workers of pools import this before they start a process, so it imports no PyTensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synkhronos._errors import SynkhronosError
from synkhronos._transport.processes.slot_process import SlotProcess
from synkhronos._transport.processes.slots import Slots
from synkhronos._warnings import log

_STARTS = 3  # processes, one after another, that end before they ask: then none would start


@dataclass(frozen=True)
class Item:
    """An item, as its process gets it: its place in the file in memory, and its digest."""

    name: Hashable
    at: tuple[int, int]
    digest: str


class Ends(ABC):
    """Takes note of how items end."""

    @abstractmethod
    def done(self, item: Item) -> None:
        """An item has a result, where its process was to put it."""

    @abstractmethod
    def fail(self, item: Item, why: str, text: str = "") -> None:
        """An item has none; `text` is a traceback."""


@dataclass(frozen=True)
class Settings:
    """The settings that all processes of a fleet have in common.

    `held` and `lifeline` are descriptors: a file in memory with `fit` and the items, and see
    `interpreter.lifeline`. `length` is that of `fit` in the file. Results go to `place`: a folder,
    or a file in memory, by its descriptor.
    """

    held: int
    length: int
    lifeline: int
    members: int
    entropy: int
    place: str | int
    log_dir: Path | None = None


class Fitter(SlotProcess):
    """A process that fits items, one after another."""

    def __init__(self, number: int, cores: Sequence[int], settings: Settings) -> None:
        self.item: Item | None = None  # that it fits now
        self.asked = False  # whether it has asked for an item, so that it has started
        log_dir, place = settings.log_dir, settings.place
        super().__init__(
            "synkhronos.pymc._map.entry",
            {
                "held": settings.held,
                "length": settings.length,
                "members": settings.members,
                "entropy": str(settings.entropy),
                "place": place,
            },
            cores,
            descriptors=(settings.held, *([place] if isinstance(place, int) else [])),
            lifeline=settings.lifeline,
            members=settings.members,
            log=None if log_dir is None else log_dir / f"slot-{number}.log",
        )


class Fleet(Slots[Fitter]):
    """Fits items, each in the next slot that is free.

    Parameters
    ----------
    slots : sequence of sequences of int
        The cores of each.
    settings : Settings
    ends : Ends
    limit : float
        Seconds for an item.
    """

    def __init__(
        self, slots: Sequence[Sequence[int]], settings: Settings, ends: Ends, limit: float
    ) -> None:
        super().__init__(slots, "map")
        self._left: list[Item] = []
        self._settings = settings
        self._ends = ends
        self._limit = limit
        self._processes = 0
        self._starting = 0  # processes that have not asked yet
        self._lost_starts = 0  # processes that have ended so, since one has asked

    def fit(self, items: Iterable[Item]) -> None:
        """Fit items, until each has ended; for exceptions see `Slots.run`."""
        self._left = list(items)[::-1]
        self.run()

    def wants_more(self) -> bool:
        """Whether there are items that no process asks for."""
        return len(self._left) > self._starting

    def started(self, cores: Sequence[int]) -> Fitter:
        """A process, which will ask for items."""
        process = Fitter(self._processes, cores, self._settings)
        self._processes += 1
        self._starting += 1
        return process

    def take(self, process: Fitter, message: Mapping[str, Any]) -> None:
        """Give the next item, or note how the last one has ended."""
        if "next" in message:
            self._starting -= not process.asked
            process.asked, self._lost_starts = True, 0
            self.give(process)
        elif "done" in message:
            process.limit(self._limit)  # until it asks for the next item
            item, process.item = process.item, None
            assert item is not None
            self._ends.done(item)
        elif "raised" in message:
            process.limit(self._limit)
            self._fail(process, message["raised"], message.get("traceback", ""))

    def give(self, process: Fitter) -> None:
        """Give the next item to a process that asks; without one, the process ends.

        One that has ended since it asked gets none: the item would fail without having run.
        """
        if process.dead:
            return
        if not self._left:
            process.reply({})
            process.ends_soon()
            return
        process.item = item = self._left.pop()
        process.limit(self._limit)
        process.reply({"name": str(item.name), "at": item.at, "item": item.digest})

    def _fail(self, process: Fitter, why: str, text: str = "") -> None:
        item, process.item = process.item, None
        if item is not None:
            self._ends.fail(item, why, text)

    def lost(self, process: Fitter, why: str) -> None:
        """The item has failed; another process goes on with the others."""
        if process.asked:
            self._fail(process, why)
            return
        self._starting -= 1
        self._lost_starts += 1
        if self._lost_starts >= _STARTS:
            raise SynkhronosError(f"map: {_STARTS} processes did not start: {why}")
        log.warning("map: a process did not start, another one does: %s", why)

    def given_up(self, process: Fitter) -> None:
        """Nothing: its item has no result."""
