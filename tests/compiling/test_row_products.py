"""Products of rows chosen from a table, and their gradients: the same values, in one step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from rewritten import compiled, in_python
from selection import thorough

from synkhronos._compiling.lean.mode import without_c
from synkhronos._compiling.lean.row_products import ChosenRowProducts, SumsOfRowsByIndex

R = np.random.default_rng(0)
ROWS, GROUPS = 50, 7
GROUP = R.integers(0, GROUPS, ROWS)
GROUP[:3] = -1, -GROUPS, 0


def slopes(x: Any, table: Any, index: Any) -> list[Any]:
    """A value, and its gradient by the table."""
    value = pt.exp((table[index] * x).sum(axis=1)).sum()
    return [value, pt.grad(value, table)]


def counted(function: Any) -> tuple[int, ...]:
    nodes = function.maker.fgraph.apply_nodes
    return tuple(
        sum(isinstance(node.op, kind) for node in nodes)
        for kind in (ChosenRowProducts, SumsOfRowsByIndex)
    )


@in_python
@pytest.mark.parametrize("dtype", ["float64", *thorough("float32")])
def test_slopes_of_features_by_group(made: Any, dtype: str) -> None:
    rows = R.normal(size=(ROWS, 5)).astype(dtype)
    table = pt.tensor("table", dtype=dtype, shape=(None, 5))
    wide = pt.tensor("wide", dtype=dtype, shape=(None, 40))
    loose = pt.matrix("loose", dtype=dtype)
    i = pt.lvector("i")
    factors = pt.exp(pt.cast(i, dtype) / 10)
    x, many = pt.constant(rows), pt.constant(np.tile(rows, 8))
    cases: dict[str, tuple[list[Any], tuple[int, int]]] = {
        "of data": (slopes(x, table, GROUP), (1, 1)),
        "by an index": (slopes(x, table, i), (1, 1)),
        "the other way": (slopes(table[i], loose, i), (1, 1)),
        "many columns": (slopes(many, wide, GROUP), (0, 0)),
        "columns that are not known": (slopes(loose[i], loose, i), (0, 0)),
        "over rows": ([(table[i] * x).sum(axis=0)], (0, 0)),
        "read twice": ([(products := table[i] * x).sum(axis=1), products], (0, 0)),
        "set": ([table[i].set(table[i] * 2.0)], (0, 0)),
        "added to": ([table[i].inc(factors[:, None] * x)], (0, 1)),
    }
    given = [table, wide, loose, i]
    values = [R.normal(size=(GROUPS, n)).astype(dtype) for n in (5, 40, 5)]
    values[1] /= 10
    for name, (outputs, expected) in cases.items():
        with without_c("NUMBA"):
            fast = made(given, outputs)
            plain = pytensor.function(given, outputs, mode="FAST_COMPILE", on_unused_input="ignore")
        rtol = 1e-12 if dtype == "float64" else 1e-4
        for one, other in zip(fast(*values, GROUP), plain(*values, GROUP), strict=True):
            np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol, err_msg=name)
            assert one.dtype == other.dtype
        assert counted(fast) == expected, name


def test_rows_that_do_not_fit() -> None:
    table, x = (pt.tensor(n, dtype="float64", shape=(None, 3)) for n in ("table", "x"))
    i = pt.lvector("i")
    fast = compiled([table, x, i], slopes(x, table, i))
    assert counted(fast) == (1, 1)
    a, b = R.normal(size=(4, 3)), R.normal(size=(6, 3))
    index = np.array([0, 3, -1, 2, 2, -4])
    expected = np.exp((a[index] * b).sum(axis=1))
    by_table = np.zeros_like(a)
    np.add.at(by_table, index, expected[:, None] * b)
    value, gradient = fast(a, b, index)
    np.testing.assert_allclose(value, expected.sum(), rtol=1e-13)
    np.testing.assert_allclose(gradient, by_table, rtol=1e-12)
    with pytest.raises(ValueError, match="there are other rows than indices"):
        fast(a, b[:5], index)
