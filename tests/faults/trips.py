"""Places in a run of a free rule at which a member fails: when it writes one of its words.

A word is written in between any two things that others can see, so the places are exact, and the
code under test is as it is. Trips are set before the group is forked.
"""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synkhronos.extensions._apart.free import allocation, pages, turns
from synkhronos.extensions._apart.free.centre import Centre
from synkhronos.extensions._apart.free.claims import Claims
from synkhronos.extensions._apart.free.turn_taker import TurnTaker

VICTIM = 1
BEGIN = 10.0  # seconds that the others wait for the victim
PATIENCE = 0.1  # seconds, instead of those of `turns`


@dataclass(frozen=True)
class Place:
    """Before or after the `number`-th time that the victim writes a word, of such a value."""

    word: int | str
    before: bool = True
    number: int = 6
    value: Callable[[int], bool] = bool


PLACES = {
    "step": Place(pages.STEPS),
    "claiming": Place(pages.AT_WORK, before=False),
    "claimed": Place(pages.CLAIMED, before=False),
    "asking": Place(pages.ASK, before=False),
    "spare half written": Place("spare"),
    "before DONE": Place(pages.DONE),
    "after DONE": Place(pages.DONE, before=False),
    "slot written": Place(pages.SENT, number=3),
    "sent": Place(pages.SENT, before=False, number=3),
    "before the acknowledgement": Place("merged", number=3),
    "ending": Place(pages.PRESENT, number=1, value=lambda v: v == 0),
    "ended": Place(pages.ENDED, before=False, number=1),
}
IN_TURNS = ("asking", "spare half written", "before DONE", "after DONE")
IN_GOSSIP = ("slot written", "sent", "before the acknowledgement")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def fail() -> None:
    raise ZeroDivisionError("at the place")


ACTS = {"SIGKILL": kill, "SIGSTOP": stop, "exception": fail}


class Trip:
    """What the members of a run have in common with the test: when something happened."""

    def __init__(self, place: Place, act: Callable[[], None]) -> None:
        self.place, self.act = place, act
        self.times = np.frombuffer(mmap.mmap(-1, 8 * 4096), np.int64)
        self.times[:] = 0

    @property
    def tripped(self) -> float:
        """When the victim came to the place; 0: it did not."""
        return float(self.times[0]) / 1e9

    @property
    def begun(self) -> bool:
        """Whether the victim has begun: a late one would find that others have used all rows."""
        return bool(self.times[-2])

    @begun.setter
    def begun(self, value: bool) -> None:
        self.times[-2] = value

    def committed(self) -> list[float]:
        """When versions of the centre were committed, after that."""
        times = self.times[1:-2] / 1e9
        return sorted(t for t in times if t > self.tripped)

    def write(self, word: int | str, value: int, store: Callable[[], None]) -> None:
        """Store a word, and act at the place."""
        here = word == self.place.word and self.place.value(value) and self._counted()
        if here and self.place.before:
            self.fire()
        store()
        if here and not self.place.before:
            self.fire()

    def _counted(self) -> bool:
        self.times[-1] += 1
        return bool(self.times[-1] == self.place.number)

    def fire(self) -> None:
        self.times[0] = time.monotonic_ns()
        self.act()


class Words:
    """The words of the victim's page."""

    def __init__(self, words: Any, trip: Trip, name: str = "") -> None:
        self._words, self._trip, self._name = words, trip, name

    def __getitem__(self, key: Any) -> Any:
        return self._words[key]

    def __setitem__(self, key: int, value: int) -> None:
        def store() -> None:
            self._words[key] = value

        self._trip.write(self._name or key, value, store)

    def __len__(self) -> int:
        return len(self._words)


def set_trip(patch: pytest.MonkeyPatch, place: str, act: str) -> Trip:
    """Let the victim of groups that are forked from now on come to grief at a place."""
    trip = Trip(PLACES[place], ACTS[act])
    patch.setattr(turns, "PATIENCE", PATIENCE)
    made: list[Any] = []

    class Tripped(pages.Page):
        def __init__(self, words: Any, reals: Any, members: int) -> None:
            super().__init__(words, reals, members)
            if len(made) % members == VICTIM:
                self.words: Any = Words(self.words, trip)
                self.merged: Any = Words(self.merged, trip, "merged")
            made.append(self)

    patch.setattr(allocation, "Page", Tripped)
    claim, pass_over, commit = Claims.next, TurnTaker._pass_over, Centre.commit

    def with_victim(claims: Any, stopped: Callable[[], bool]) -> int | None:
        if claims._peers.rank == VICTIM:
            trip.begun = True
        deadline = time.monotonic() + BEGIN
        while not trip.begun and time.monotonic() < deadline:
            time.sleep(0.001)
        return claim(claims, stopped)

    def half_written(self: Any, turn: Any, old: Any, new: Any) -> None:
        if trip.place.word == "spare" and self.peers.rank == VICTIM and new is not old:
            for spare in new.vectors[0]:
                spare[: spare.size // 2] = np.nan
            new.scalars[...] = np.nan
            trip.write("spare", 1, lambda: None)
        pass_over(self, turn, old, new)

    def timed(self: Any, number: int) -> None:
        commit(self, number)
        trip.times[1 + number % 4000] = time.monotonic_ns()

    patch.setattr(Claims, "next", with_victim)
    patch.setattr(TurnTaker, "_pass_over", half_written)
    patch.setattr(Centre, "commit", timed)
    return trip


@contextmanager
def continued(pid: int, after: float) -> Iterator[None]:
    """Send SIGCONT to a process, some time after it has stopped."""
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                time.sleep(after)
                os.kill(pid, signal.SIGCONT)
                return
            time.sleep(0.01)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
