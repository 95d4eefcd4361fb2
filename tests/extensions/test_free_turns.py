"""Turns at the centre are given in order, and messages are acknowledged when they are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from free_runs import batches_of, equal

import synkhronos as synk
from synkhronos import rules
from synkhronos.extensions._apart.free.gossiper import Gossiper
from synkhronos.extensions._apart.free.pages import ASK, REALS, SENT, Page, length
from synkhronos.extensions._apart.free.turns import Turns

SIZE = 3


class Others:
    """In the place of `Peers`: waits look once; what happens meanwhile is up to the test."""

    def __init__(self, rank: int, held: list[int]) -> None:
        self.rank, self.size, self.held = rank, SIZE, held
        self.dead: set[int] = set()
        self.rung: list[int] = []
        self.tries = 0

    def others(self) -> list[int]:
        return [r for r in range(SIZE) if r != self.rank and r not in self.dead]

    def ring(self, ranks: Iterable[int]) -> None:
        self.rung += ranks

    def wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        return ready()

    def try_lock(self, number: int) -> bool:
        self.tries += 1
        if self.held:
            return False
        self.held.append(self.rank)
        return True

    def unlock(self, number: int) -> None:
        self.held.remove(self.rank)


def made() -> tuple[list[Page], list[Others], list[Turns]]:
    pages = [Page(np.zeros(length(SIZE), np.int64), np.zeros(REALS), SIZE) for _ in range(SIZE)]
    held: list[int] = []
    others: Any = [Others(rank, held) for rank in range(SIZE)]
    return pages, others, [Turns(pages, each) for each in others]


def never() -> bool:
    return False


def test_who_has_asked_first_comes_first() -> None:
    pages, others, turns = made()
    pages[2].words[ASK] = 4  # it waits, and may take the turn at any moment
    assert not turns[1].take(never)
    assert others[1].tries == 0
    assert pages[1].words[ASK] == 0
    others[1].dead.add(2)
    assert turns[1].take(never)
    turns[1].give()
    assert not others[1].held


def test_of_those_who_ask_at_once_the_lowest_rank_comes_first() -> None:
    pages, _, turns = made()
    pages[0].words[ASK], pages[2].words[ASK] = 1, 2
    turns[1]._mine[ASK] = 1
    assert dict(turns[1]._before()) == {0: 1}
    assert dict(turns[0]._before()) == {}
    assert dict(turns[2]._before()) == {0: 1, 1: 1}


def test_the_next_one_is_rung() -> None:
    """Also by who gives up waiting, since the next may wait for this one only."""
    pages, others, turns = made()
    assert turns[0].take(never)
    pages[2].words[ASK] = 2
    pages[1].words[ASK] = 3
    turns[0].give()
    assert others[0].rung == [2]
    assert not turns[0].take(lambda: True)
    assert others[0].rung == [2, 2]


def test_who_does_not_take_the_turn_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After PATIENCE, and from then on at once, until it asks again."""
    monkeypatch.setattr("synkhronos.extensions._apart.free.turns.PATIENCE", 0.0)
    pages, others, turns = made()
    pages[2].words[ASK] = 1
    assert turns[1].take(never)
    turns[1].give()
    monkeypatch.setattr("synkhronos.extensions._apart.free.turns.PATIENCE", 60.0)
    assert turns[1].take(never)
    turns[1].give()
    pages[2].words[ASK] = 2
    pages[0].words[ASK] = 3  # so that this one asks later
    assert not turns[1].take(never)
    assert not others[1].held


def test_messages_are_acknowledged_after_the_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the sender keeps its slot as it is."""
    merge = Gossiper._merge_from

    def checked(self: Any, sent: Any, weight: float) -> None:
        rank, size, pages = self.peers.rank, self.peers.size, self.shared.pages
        sender = next(r for r, slot in enumerate(self.shared.slots) if slot.sent is sent)
        number = pages[sender].words[SENT]
        if sender != rank and (self._page.merged[sender] >= number or number % size != rank):
            raise AssertionError("the slot is free before it has been merged")
        merge(self, sent, weight)

    monkeypatch.setattr(Gossiper, "_merge_from", checked)
    with synk.Group(2):
        train, _, data = equal(rules.GoSGD(1.0), 60)
        with train.start(data, batches_of(60, 1), record=True) as run:
            run.wait()
    assert any(entry[0] == "merge" for log in run.log.values() for entry in log)
