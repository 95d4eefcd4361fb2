"""Logarithms of sums of exponentials over rows, by groups: any rows, parts and slices."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest
from modes import FAST

import synkhronos as synk

pytestmark = pytest.mark.usefixtures("lasting_groups")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_exact_for_any_rows(group: synk.Group, dtype: str) -> None:
    x = pt.matrix("x", dtype=dtype)
    top = x.max(axis=0, keepdims=True)
    mean = pt.logsumexp(x) - pt.log(x.shape[0]).astype(dtype)
    by_maximum = pt.log(pt.exp(x - top).sum(axis=0)) + top[0]
    f = synk.function([x], [pt.logsumexp(x, axis=0), by_maximum, mean], mode=FAST)
    rows = np.random.default_rng(1).normal(size=(7, 3)).astype(dtype)
    rows[:, 0] += 1000  # whose exponentials overflow
    rows[4:] = -np.inf
    for some in (rows, rows[:1], rows[3:], rows[4:]):
        wanted = np.logaddexp.reduce(some, axis=0)
        total = np.logaddexp.reduce(some, axis=None) - np.log(len(some))
        for slices in (1, 2) if len(some) > 5 else (1,):
            found = f(some, num_slices=slices)
            assert {a.dtype for a in found} == {np.dtype(dtype)}
            np.testing.assert_allclose(found[0], wanted, rtol=1e-6)
            np.testing.assert_allclose(found[1], wanted, rtol=1e-6)
            np.testing.assert_allclose(found[2], total, rtol=1e-6)


def test_no_rows(group2: synk.Group) -> None:
    """As in one process."""
    x = pt.matrix("x", dtype="float64")
    f = synk.function([x], pt.logsumexp(x, axis=0), mode=FAST)
    nothing = np.ones((0, 3))
    np.testing.assert_array_equal(f(nothing), f.as_pytensor(nothing))


def test_a_named_average_is_another_value(group2: synk.Group) -> None:
    x = pt.matrix("x", dtype="float64")
    with pytest.warns(synk.ReductionWarning, match="a logarithm of a sum over rows"):
        synk.function([x], (pt.logsumexp(x, axis=0), "avg"), mode=FAST)
