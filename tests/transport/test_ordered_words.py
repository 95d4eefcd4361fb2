"""Words of shared memory keep the order of the program on processors that do not keep it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST

import synkhronos as synk
from synkhronos._transport.communicators import shared_memory
from synkhronos._transport.communicators.board import Board
from synkhronos._transport.shared_state import ordered_words, waiting
from synkhronos._transport.shared_state.ordered_words import FencedWords, fence, ordered
from synkhronos.extensions._apart.free.pages import REALS, Page, length


class Memory(list[int]):
    """Words that note each access."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__([7, 0])
        self.seen = seen

    def __getitem__(self, at: Any) -> Any:
        self.seen.append("load")
        return super().__getitem__(at)

    def __setitem__(self, at: Any, word: Any) -> None:
        self.seen.append("store")
        super().__setitem__(at, word)


@pytest.fixture
def fences(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As on another processor: the fences so far."""
    seen: list[str] = []

    def noted() -> None:
        seen.append("fence")
        fence()

    for module in (ordered_words, waiting, shared_memory):
        monkeypatch.setattr(module, "IS_ORDERED", False)
    monkeypatch.setattr(ordered_words, "fence", noted)
    return seen


def test_each_access_has_fences(fences: list[str]) -> None:
    words = FencedWords(Memory(fences))  # type: ignore[arg-type]
    assert words[0] == 7
    assert fences == ["fence", "load", "fence"]
    fences.clear()
    words[1] = 5
    assert fences == ["fence", "store", "fence"]
    assert words[1] == 5


def test_words_are_plain_where_the_processor_keeps_the_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ordered_words, "IS_ORDERED", True)
    words = memoryview(bytearray(16)).cast("q")
    assert ordered(words) is words


def test_a_group_where_words_have_fences(fences: list[str]) -> None:
    x, s = pt.dvector("x"), pytensor.shared(np.ones(3), "s")
    with synk.Group(2, start="fork") as group:
        f = synk.function([x], x.sum(), mode=FAST)
        for _ in range(3):
            assert f(np.arange(5.0)) == 10
            synk.all_reduce(s, "sum")
        assert all(type(words) is FencedWords for words in group.channel.node.words.of)
    assert s.get_value().tolist() == [8.0] * 3
    assert fences


def test_words_of_training_have_fences_too(fences: list[str]) -> None:
    page = Page(np.ones(length(2), np.int64), np.ones(REALS), 2)
    page.clear()
    for words in (page.words, page.merged, page.taken_over):
        fences.clear()
        assert words[0] == 0
        assert fences == ["fence", "fence"]
    memory = np.zeros(Board.words(2), np.int64)
    board = Board(memory.data, 0, 2)  # type: ignore[arg-type]
    fences.clear()
    board.begin(3, [0.5, 0.5], 1)
    assert fences
    assert board.step == 3
