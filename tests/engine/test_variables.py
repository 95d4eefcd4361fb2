"""What a member remembers of shared variables."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synkhronos as synk
from synkhronos._engine.commands.call import Call
from synkhronos._engine.transactions import Transactions
from synkhronos._engine.variables import Registry, check_whole, is_torn, mark_torn
from synkhronos._transport.channels.one_node import OneNodeChannel

pytestmark = pytest.mark.usefixtures("lasting_groups")


def test_a_half_written_value_goes_with_its_variable() -> None:
    """Nothing keeps its memory, and no other variable is taken for it."""
    w = pytensor.shared(np.ones(3))
    entry = Registry(True).add(w)
    mark_torn(entry)
    assert is_torn(entry)
    with pytest.raises(synk.StateTorn):
        check_whole(w)
    with pytest.raises(synk.StateTorn):
        check_whole(w.clone())
    value = weakref.ref(w.get_value(borrow=True))
    del w
    entry.storage.clear()
    gc.collect()
    assert value() is None
    assert not is_torn(entry)


def test_a_value_that_is_set_anew_is_whole() -> None:
    w = pytensor.shared(np.ones(3))
    entry = Registry(True).add(w)
    mark_torn(entry)
    w.set_value(np.zeros(3))
    check_whole(w)
    assert not is_torn(entry)


def _set_before(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, s: Any, value: object
) -> None:
    """Set a variable once, as another thread may, just before a method of the master is called."""
    master, original, left = os.getpid(), getattr(where, name), [value]

    def act(*args: Any) -> Any:
        if os.getpid() == master and left:
            s.set_value(left.pop())
        return original(*args)

    monkeypatch.setattr(where, name, act)


def _everywhere(s: Any) -> list[float]:
    return [float(synk.get_value(rank, s)) for rank in range(2)]


def test_a_value_set_while_a_call_sends_another(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call sends it; one that fails leaves it."""
    x, s = pt.dvector("x"), pytensor.shared(1.0, name="s")
    f = synk.function([x], (x * s).sum(), mode="FAST_COMPILE")
    rows = np.ones(4)
    _set_before(monkeypatch, Transactions, "commit", s, 2.0)
    synk.distribute()  # the variable and the function
    assert f(rows) == 8.0
    s.set_value(3.0)
    _set_before(monkeypatch, Transactions, "commit", s, 4.0)
    assert f(rows) == 12.0
    assert f(rows) == 16.0
    assert _everywhere(s) == [4.0, 4.0]
    s.set_value(5.0)
    _set_before(monkeypatch, OneNodeChannel, "collect", s, 6.0)
    _refused(monkeypatch, lambda: f(rows))
    assert f(rows) == 24.0
    assert _everywhere(s) == [6.0, 6.0]


@pytest.mark.parametrize("fails", [False, True])
def test_a_value_set_while_a_call_updates_it(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    s = pytensor.shared(1.0, name="s")
    f = synk.function([], updates=[(s, s + 1.0)], mode="FAST_COMPILE")
    f()
    assert _everywhere(s) == [2.0, 2.0]
    _set_before(monkeypatch, OneNodeChannel, "collect", s, 10.0)
    if fails:
        _refused(monkeypatch, f)
    else:
        f()
    assert s.get_value() == 10.0
    f()
    assert _everywhere(s) == [11.0, 11.0]


def test_a_generator_set_while_a_call_sends_another(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = pytensor.shared(np.random.default_rng(1), name="rng")
    _, drawn = pt.random.normal(0.0, 1.0, size=(2,), rng=rng, return_next_rng=True)
    x = pt.dvector("x")
    f = synk.function([x], (x * drawn[0], "gather"), mode="FAST_COMPILE")
    wanted = []
    for seed in (2, 3):
        rng.set_value(np.random.default_rng(seed))
        wanted.append(f(np.ones(2)))
    rng.set_value(np.random.default_rng(2))
    _set_before(monkeypatch, OneNodeChannel, "collect", rng, np.random.default_rng(3))
    np.testing.assert_array_equal(f(np.ones(2)), wanted[0])
    np.testing.assert_array_equal(f(np.ones(2)), wanted[1])


def _refused(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Make a call whose values the master cannot combine."""

    def refuse(*_: object) -> None:
        raise synk.InputError("they cannot be combined")

    with monkeypatch.context() as patch:
        patch.setattr(Call, "answer", refuse)
        with pytest.raises(synk.InputError, match="cannot be combined"):
            call()
