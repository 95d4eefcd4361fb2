"""Reductions: however values are grouped, the serial answer comes out."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from hypothesis.strategies import DrawFn

import synkhronos as synk
from synkhronos._plan.rows import edges
from synkhronos._proofs.reductions import (
    Accumulator,
    Reduction,
    accumulator,
    combine,
    normalized,
    parse,
    result_dtype,
    rounded,
)
from synkhronos.testing.conformance import DTYPES

OPS = [op for op in Reduction if op is not Reduction.GATHER]
OVER_ROWS: dict[Reduction, Any] = {
    Reduction.AVG: lambda a: a.mean(0),
    Reduction.SUM: lambda a: a.sum(0),
    Reduction.PROD: lambda a: a.prod(0),
    Reduction.MIN: lambda a: a.min(0),
    Reduction.MAX: lambda a: a.max(0),
    Reduction.GATHER: lambda a: a,
}


@st.composite
def grouped(draw: DrawFn) -> tuple[np.ndarray, list[list[np.ndarray]]]:
    """Rows, divided over members, and each part into slices; parts without rows left out."""
    rows = draw(
        npst.arrays(
            np.float64,
            st.tuples(st.integers(1, 30), st.integers(0, 3)),
            elements=st.floats(-2, 2, width=32),
        )
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    parts = [p for p in np.split(rows, cuts) if len(p)]
    return rows, [np.array_split(p, draw(st.integers(1, len(p)))) for p in parts]


@pytest.mark.parametrize("op", list(Reduction))
@given(case=grouped())
def test_any_grouping_gives_the_serial_answer(
    op: Reduction, case: tuple[np.ndarray, list[list[np.ndarray]]]
) -> None:
    """S8: slices into parts, parts into the whole, of any sizes: the value over all rows."""
    rows, parts = case
    partial, weights = [], []
    for part in parts:
        total = Accumulator(op)
        for piece in part:
            total.add(OVER_ROWS[op](piece), len(piece))
        partial.append(total.result())
        weights.append(float(sum(map(len, part))))
    found = combine(partial, op, weights)
    np.testing.assert_allclose(found, OVER_ROWS[op](rows), rtol=1e-9, atol=1e-9)
    assert found.dtype == np.float64


@st.composite
def weighted(draw: DrawFn) -> tuple[list[np.ndarray], list[float]]:
    n = draw(st.integers(1, 6))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.sampled_from([(), (3,), (2, 2), (0, 2)]))
    seed = draw(st.integers(0, 1000))
    values = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 5, (n, *shape))
    weights = draw(st.lists(st.integers(1, 50), min_size=n, max_size=n))
    return list(values.astype(dtype)), [float(w) for w in weights]


@pytest.mark.parametrize("op", list(Reduction))
@given(case=weighted())
def test_accumulating_equals_combining(
    op: Reduction, case: tuple[list[np.ndarray], list[float]]
) -> None:
    """One value after the other, or all at once: the same value, dtype and shape."""
    values, weights = case
    if op is Reduction.GATHER:
        values = [np.atleast_1d(v) for v in values]
    total = Accumulator(op)
    for value, weight in zip(values, weights, strict=True):
        total.add(value, weight)
    found, wanted = total.result(), combine(values, op, weights)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    loose = {"float16": 2e-3, "float32": 1e-5, "complex64": 1e-5}.get(found.dtype.name, 1e-12)
    np.testing.assert_allclose(found, wanted, rtol=loose)


@given(case=weighted())
def test_weighted_means(case: tuple[list[np.ndarray], list[float]]) -> None:
    """S8, S11: numpy's weighted average; integers and bools give float64."""
    values, weights = case
    dtype = values[0].dtype
    found = combine(values, Reduction.AVG, weights)
    assert found.dtype == (np.float64 if dtype.kind in "biu" else dtype)
    wide = np.array(values, np.complex128 if dtype.kind == "c" else np.float64)
    wanted = np.tensordot(np.array(weights) / sum(weights), wide, 1)
    loose = {"float16": 2e-3, "float32": 1e-5, "complex64": 1e-5}.get(dtype.name, 1e-12)
    np.testing.assert_allclose(found, wanted, rtol=loose)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", list(Reduction))
def test_results_are_fresh_and_typed(dtype: str, op: Reduction) -> None:
    """S62: no part is changed or returned, one part alone included; S44: every dtype."""
    for count in (1, 3):
        values = [np.ones((2, 2), dtype) for _ in range(count)]
        found = combine(values, op)
        assert found.dtype == result_dtype(np.dtype(dtype), op)
        assert found.dtype == (
            np.float64
            if op == "avg" and found.dtype.kind == "f" and np.dtype(dtype).kind in "biu"
            else np.dtype(dtype)
        )
        assert found.flags.writeable
        for value in values:
            assert not np.shares_memory(found, value)
        found[...] = 0
        assert all((v == 1).all() for v in values)
        total = Accumulator(op)
        for value in values:
            total.add(value, 1)
        result = total.result()
        assert result.dtype == result_dtype(np.dtype(dtype), op)
        result[...] = 0
        assert all((v == 1).all() for v in values)


def test_float16_is_summed_in_float32() -> None:
    """S44: a thousand small terms are not lost, and small products not flushed to zero."""
    ones = [np.ones(1, "float16")] * 3000
    assert combine(ones, Reduction.SUM).tolist() == [3000]
    total = Accumulator(Reduction.SUM)
    for one in ones:
        total.add(one, 1)
    assert total.result().tolist() == [3000]
    assert total.result().dtype == np.float16
    large = [np.full(2, 60_000, "float16")] * 4
    assert combine(large, Reduction.AVG).tolist() == [60_000] * 2
    average = Accumulator(Reduction.AVG)
    for value in large:
        average.add(value, 1000)
    assert average.result().tolist() == [60_000] * 2
    tiny = [np.full(1, v, "float16") for v in (2**-14, 2**-14, 2**14, 2**14)]
    assert combine(tiny, Reduction.PROD).tolist() == [1.0]
    assert accumulator(np.dtype("float16"), Reduction.MAX) == np.float16


def test_integers_keep_their_precision() -> None:
    """S51: sums of int64 and uint64 do not pass through floats."""
    big = np.array([2**53 + 1, 2**62 - 1], "int64")
    assert combine([big, big], Reduction.SUM).tolist() == [2**54 + 2, 2**63 - 2]
    assert combine([big, big - 1], Reduction.MAX).tolist() == big.tolist()
    unsigned = np.array([2**63], "uint64")
    assert combine([unsigned, unsigned - 1], Reduction.SUM).tolist() == [2**64 - 1]


def test_nan_and_infinity_pass() -> None:
    values = [np.array([1.0, np.nan, np.inf]), np.array([np.nan, 1.0, 1.0])]
    for op in OPS:
        found = combine(values, op)
        assert np.isnan(found[:2]).all()
        assert found[2] == (1.0 if op is Reduction.MIN else np.inf)


@given(rows=st.integers(1, 50), parts=st.integers(1, 8))
def test_gather_keeps_row_order(rows: int, parts: int) -> None:
    """S13: of parts of unequal length, none, or 0-d."""
    at = edges(rows, parts)
    values = np.arange(rows)
    pieces = [values[a:b] for a, b in pairwise(at)]
    assert combine(pieces, Reduction.GATHER).tolist() == values.tolist()
    assert combine(list(values), Reduction.GATHER).tolist() == values.tolist()


def test_shapes_that_differ_are_not_broadcast() -> None:
    """S67: parts of different shapes are an error, also where numpy would broadcast them."""
    for op in OPS:
        for shapes in [((2,), (3,)), ((3,), (1,)), ((2, 2), (2,)), ((2,), ())]:
            with pytest.raises(ValueError, match="shape"):
                combine([np.ones(s) for s in shapes], op)


def test_one_value_for_no_reduction() -> None:
    total = Accumulator(None)
    total.add(np.array([1.0]), 1)
    assert total.result().tolist() == [1.0]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("avg", "avg"),
        ("mean", "avg"),
        ("sum", "sum"),
        ("prod", "prod"),
        ("min", "min"),
        ("max", "max"),
        ("gather", "gather"),
        ("c_avg", "avg"),
        ("c_sum", "sum"),
        ("c_prod", "prod"),
        ("c_min", "min"),
        ("c_max", "max"),
        ("c_gather", "gather"),
        (Reduction.MAX, "max"),
    ],
)
def test_names(name: str, wanted: str) -> None:
    """S1: prefixes are read whole."""
    assert parse(name) is Reduction(wanted)
    assert str(parse(name)) == wanted


@pytest.mark.parametrize("name", ["", "c_", "_sum", "csum", "c_mean", "SUM", "cumsum", 3, True, []])
def test_names_of_nothing(name: Any) -> None:
    """S1: what 2017 made of a stripped set of characters is an error now."""
    with pytest.raises(synk.InputError, match="'avg', 'sum', 'prod', 'min', 'max', 'gather'"):
        parse(name)


def test_no_name() -> None:
    assert parse(None) is None


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=10))
def test_shares_sum_to_one(weights: list[float]) -> None:
    found = normalized(weights)
    assert sum(found) == pytest.approx(1.0)
    assert found[0] * sum(weights) == pytest.approx(weights[0])


@pytest.mark.parametrize("op", list(Reduction))
def test_reductions_travel(op: Reduction) -> None:
    assert pickle.loads(pickle.dumps(op)) is op


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float16", "float32", "bool"])
def test_averages_are_rounded_to_the_dtype_of_their_parts(dtype: str) -> None:
    """Integers and bools to the nearest, ties to even; all else is cast."""
    values = np.array([0.5, 1.5, 2.4999, 2.5001, 0.0])
    found = rounded(values, np.dtype(dtype))
    wanted = np.rint(values) if np.dtype(dtype).kind in "biu" else values
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, wanted.astype(dtype))
    assert rounded(found, np.dtype(dtype)) is found
