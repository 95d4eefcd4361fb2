"""How many files of the package a warm call crosses in the master, from the call to its result."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synkhronos as synk
from synkhronos._transport.shared_state import waiting
from synkhronos.extensions import make_train_function, updates

PACKAGE = Path(synk.__file__).parent


@pytest.fixture
def group2(group2: synk.Group, monkeypatch: pytest.MonkeyPatch) -> synk.Group:
    """However long the worker takes: the master does not sleep, and its clock stands still.

    Else a slow machine adds files: those of a sleep, and of the look at descriptors every 100 ms.
    """

    def wait(waiter: waiting.Waiter, ready: Callable[[], bool], idle: bool = False) -> None:
        while not ready():
            os.sched_yield()

    now = waiting.clock()
    monkeypatch.setattr(waiting, "clock", lambda: now)
    monkeypatch.setattr(waiting.Waiter, "wait", wait)
    return group2


def files_of(call: Callable[[], Any]) -> list[str]:
    """The files whose functions run in a warm call; the fewest of ten: garbage may be collected."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, arg: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            found.add(str(path.relative_to(PACKAGE)))

    for _ in range(3):
        call()
    calls = []
    before = sys.gettrace()
    for _ in range(10):
        found.clear()
        sys.settrace(note)
        try:
            call()
        finally:
            sys.settrace(before)
        calls.append(sorted(found))
    return min(calls, key=len)


def test_a_call_with_listed_rows(group2: synk.Group) -> None:
    x = pt.matrix("x", dtype="float64")
    f = synk.function([x], (x.sum(), "sum"), mode="FAST_COMPILE")
    d, rows = synk.data(np.ones((10, 3))), [1, 2, 5, 7]
    files = files_of(lambda: f(d, batch=rows))
    assert len(files) <= 15, files


def test_a_training_step(group2: synk.Group) -> None:
    x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
    w = pytensor.shared(np.zeros(3), name="w")
    loss = ((x @ w - y) ** 2).mean()
    train = make_train_function(loss, [w], x, y, updates.sgd, 0.1, mode="FAST_COMPILE")
    d, e = synk.data(np.ones((10, 3))), synk.data(np.ones(10))
    files = files_of(lambda: train(d, e))
    assert len(files) <= 18, files
    files = files_of(lambda: train(d, e, batch=[1, 2, 5, 7]))
    assert len(files) <= 21, files  # and those that select and post rows


def test_all_reduce(group2: synk.Group) -> None:
    s = pytensor.shared(np.zeros(3), name="s")
    files = files_of(lambda: synk.all_reduce(s, "sum"))
    assert len(files) <= 13, files
    files = files_of(lambda: synk.all_reduce(s))
    assert len(files) <= 15, files  # and those that weight the values of an average


def test_functions_of_a_repeated_call() -> None:
    """In a group of one it takes 4 us, so each Python function of more counts."""
    x = pt.vector("x", dtype="float64")
    entered: list[str] = []

    def note(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            entered.append(frame.f_code.co_qualname)

    with synk.Group(1):
        f = synk.function([x], x.sum(), mode="FAST_COMPILE")
        d = synk.data(np.ones(10))
        for _ in range(3):
            f(d)
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            f(d)
        finally:
            sys.setprofile(before)
    own = [name for name in entered if "perform" not in name]
    assert len(own) <= 15, own
