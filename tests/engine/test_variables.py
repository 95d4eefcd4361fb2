"""What a member remembers of shared variables."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytensor
import pytest

import synkhronos as synk
from synkhronos._engine.variables import Registry, check_whole, is_torn, mark_torn


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
