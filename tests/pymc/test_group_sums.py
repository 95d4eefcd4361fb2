"""Sums by group: rounded once, in any order of the rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from synkhronos.pymc._repeated.distinct import kinds_of
from synkhronos.pymc._repeated.sums import GroupSums

R = np.random.default_rng(47)
N = 3000
OF = R.integers(0, 7, N)
HALF = R.normal(size=N // 2) * 1e10
VALUES = {
    "near zero": R.normal(size=N),
    "far from zero": 1e6 + R.normal(size=N),
    "small in a group": R.normal(size=N) * np.where(OF == 3, 1e-20, 1),
    "cancelling": np.concatenate([HALF, -HALF + R.normal(size=N // 2)]),
    "subnormal": R.normal(size=N) * 1e-310,
    "large": R.uniform(1, 2, N) * 1e304,
    "integers": R.integers(-9, 9, N),
    "booleans": R.integers(0, 2, N) > 0,
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_sum_is_rounded_once(kind: str) -> None:
    for order in (np.arange(N), R.permutation(N)):
        values, kinds = VALUES[kind][order], kinds_of([OF[order]], N)
        true = [math.fsum(values[kinds.of == k]) for k in range(len(kinds))]
        assert GroupSums(kinds).of(values).tolist() == true
        columns = np.column_stack([values, values])
        assert GroupSums(kinds).of(columns).tolist() == [[v, v] for v in true]


def test_an_infinite_row_makes_the_sum_of_its_group_infinite() -> None:
    values = np.where(np.arange(N) == 9, -np.inf, VALUES["near zero"])
    kinds = kinds_of([OF], N)
    found = GroupSums(kinds).of(values)
    finite = GroupSums(kinds).of(VALUES["near zero"])
    alone = np.arange(len(kinds)) == kinds.of[9]
    assert np.array_equal(found, np.where(alone, -np.inf, finite))


def test_means_and_squares_keep_the_digits_of_what_is_left() -> None:
    values, kinds = 1e9 + VALUES["near zero"], kinds_of([OF], N)
    mean, left, spread = GroupSums(kinds).centred(values)
    for k in range(len(kinds)):
        rows = values[kinds.of == k].astype(np.longdouble)
        true = math.fsum(rows - 1e9) / len(rows)
        assert (mean[k] - 1e9) + left[k] == pytest.approx(true, rel=1e-14)
        squares = math.fsum((rows - 1e9 - true) ** 2)
        assert spread[k] ** 2 == pytest.approx(squares, rel=1e-14)


def test_no_rows_have_no_groups() -> None:
    sums = GroupSums(kinds_of([np.zeros(0)], 0))
    for values in (np.zeros(0), np.zeros((0, 2))):
        assert sums.of(values).shape == values.shape
        assert [a.shape for a in sums.centred(values)] == [values.shape] * 3
