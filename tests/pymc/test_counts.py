"""Which lengths are the number of rows, whatever data are set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from synkhronos.pymc._reading.counts import Counts

ROWS = 12

# a rule that multiplies is not read, and may be refused though it is right
LENGTHS: dict[str, tuple[bool, Callable[[Any, Any, Any], Any]]] = {
    "of rows": (True, lambda x, y, n: x.shape[0]),
    "of two, the shortest": (True, lambda x, y, n: pt.minimum(x.shape[0], y.shape[0])),
    "of two, added": (True, lambda x, y, n: (x + y).shape[0]),
    "one less and one more": (True, lambda x, y, n: pt.concatenate([[0.0], x[:-1]]).shape[0]),
    "at least one": (True, lambda x, y, n: pt.maximum(x.shape[0], 1)),
    "of a part": (False, lambda x, y, n: x[1:].shape[0]),
    "of two thirds": (False, lambda x, y, n: x.shape[0] - 4),
    "at most as many as now": (False, lambda x, y, n: pt.minimum(x.shape[0], ROWS)),
    "at most more": (False, lambda x, y, n: pt.minimum(x.shape[0], 3 * ROWS)),
    "at least as many as now": (False, lambda x, y, n: pt.maximum(x.shape[0], ROWS)),
    "where they are few": (False, lambda x, y, n: pt.switch(x.shape[0] < 40, x.shape[0], 7)),
    "another number once": (False, lambda x, y, n: pt.switch(pt.eq(x.shape[0], 40), 5, x.shape[0])),
    "a number of the user's": (False, lambda x, y, n: n),
    "cut to a number of the user's": (False, lambda x, y, n: pt.minimum(x.shape[0], n)),
    "a number": (False, lambda x, y, n: pt.constant(ROWS)),
    "of every second": (False, lambda x, y, n: x[::2].shape[0]),
    "of rows by a product": (False, lambda x, y, n: (x.shape[0] * 5) // 5),
    "of chosen rows": (False, lambda x, y, n: x[x > -1].shape[0]),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_that_are_the_number_of_rows(name: str) -> None:
    """A length that is another number for some data is not taken for it."""
    wanted, make = LENGTHS[name]
    x, y = (pytensor.shared(np.zeros(ROWS)) for _ in range(2))
    number = pytensor.shared(ROWS)
    shapes = {x: (ROWS,), y: (ROWS,), number: ()}
    assert Counts(ROWS, shapes).is_count(make(x, y, number)) is wanted


def test_a_length_of_another_axis() -> None:
    x = pytensor.shared(np.zeros((ROWS, 30)))
    counts = Counts(ROWS, {x: (ROWS, 30)})
    assert counts.is_count(x.shape[0])
    assert not counts.is_count(x.shape[1])
    assert not counts.is_count(pt.minimum(x.shape[0], x.shape[1]))
