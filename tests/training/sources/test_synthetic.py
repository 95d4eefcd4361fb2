"""Synthetic rows: a function of the seed and the row's number, the same for ever."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import synkhronos as synk
from synkhronos.training import sources


@settings(max_examples=30)
@given(st.lists(st.integers(0, 99), max_size=20), st.integers(0, 2**64), st.integers(1, 5))
def test_a_row_does_not_depend_on_the_others(rows: list[int], seed: int, classes: int) -> None:
    source = sources.synthetic((2, 3), classes, 100, seed)
    assert isinstance(source, sources.SyntheticSource)
    wanted, labels = source[:], source.labels[:]
    numbers = np.array(rows, int)
    np.testing.assert_array_equal(source[numbers], wanted[numbers])
    np.testing.assert_array_equal(source.labels[numbers], labels[numbers])
    assert source[numbers].shape == (len(rows), 2, 3)
    assert wanted.dtype == np.float32
    assert 0 <= wanted.min() <= wanted.max() < 1
    assert 0 <= labels.min() <= labels.max() < classes


def test_the_numbers_of_a_seed_are_for_ever() -> None:
    """And those of longer sources begin with those of shorter ones."""
    source = sources.synthetic((2,), 10, 1000, 3)
    np.testing.assert_allclose(
        source[[0, 999]], [[0.31456438, 0.59566468], [0.30284071, 0.45930558]], rtol=1e-6
    )
    assert source.labels[[0, 1, 2, 999]].tolist() == [0, 3, 0, 6]
    np.testing.assert_array_equal(sources.synthetic((2,), 10, 5, 3)[:], source[:5])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source))[[7]], source[[7]])


def test_it_can_be_learned() -> None:
    """The nearest centre gives most labels, all classes occur, and rows of a class differ."""
    source = sources.synthetic((20,), 4, 2000)
    x, y = source[:], source.labels[:]
    assert np.bincount(y).min() > 400
    centres = np.stack([x[y == c].mean(0) for c in range(4)])
    nearest = ((x[:, None] - centres) ** 2).sum(2).argmin(1)
    assert (nearest == y).mean() > 0.95
    assert len(np.unique(x[:, 0])) > 1990
    assert abs(np.corrcoef(x[y == 0].T)[0, 1]) < 0.15


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n": 0}, "n=0: give an integer of at least 1"),
        ({"classes": 0}, "classes=0"),
        ({"seed": -1}, "seed=-1"),
        ({"n": 2.0}, "n=2.0: give an integer of at least 1"),
        ({"n": True}, "n=True"),
        ({"shape": (2, 0)}, "shape=.2, 0."),
    ],
)
def test_bad_arguments(change: dict[str, Any], said: str) -> None:
    with pytest.raises(synk.InputError, match=said):
        sources.synthetic(**{"shape": (2,), "classes": 2, "n": 5, **change})


def test_rows_that_do_not_exist() -> None:
    source = sources.synthetic((2,), 2, 5)
    for wrong in ([5], [-1]):
        with pytest.raises(IndexError, match="rows 0 to 4"):
            source[wrong]
    with pytest.raises(TypeError, match="array of row numbers"):
        source[[0.5]]
    np.testing.assert_array_equal(source[3], source[[3]][0])
