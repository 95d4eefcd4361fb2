"""Batches mean what they mean to numpy, and every split covers every row once.

The numbers S20, S21, ... are the defects of the system of 2017 that a test holds.
"""

from __future__ import annotations

import pickle
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

import synkhronos as synk
from synkhronos._plan.rows import Picks, Selection, Span, edges, per_member, select, slices

INT_DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
LENGTHS = st.integers(0, 60)


def rows_of(selection: Selection) -> list[int]:
    if isinstance(selection, Span):
        return list(range(selection.start, selection.stop))
    assert selection.rows.dtype == np.int64
    return selection.rows.tolist()


@st.composite
def bounds(draw: DrawFn) -> Any:
    return draw(st.none() | st.integers(-80, 80))


@st.composite
def any_slice(draw: DrawFn) -> slice:
    step = draw(st.none() | st.integers(-7, 7).filter(bool))
    return slice(draw(bounds()), draw(bounds()), step)


@st.composite
def length_and_rows(draw: DrawFn) -> tuple[int, list[int]]:
    length = draw(LENGTHS)
    if not length:
        return 0, []
    return length, draw(st.lists(st.integers(-length, length - 1), max_size=20))


@given(length=LENGTHS, batch=any_slice())
def test_slices_mean_what_they_mean_to_numpy(length: int, batch: slice) -> None:
    """S22, S26: any start, stop and step, negative or none."""
    assert rows_of(select(batch, length)) == np.arange(length)[batch].tolist()


@given(length=LENGTHS, n=st.integers(0, 60), dtype=st.sampled_from((int, *INT_DTYPES)))
def test_an_int_means_the_first_rows(length: int, n: int, dtype: Any) -> None:
    """S20: numpy integers too; never more than there are."""
    number = n if dtype is int else np.dtype(dtype).type(n)
    if n <= length:
        assert rows_of(select(number, length)) == list(range(n))
    else:
        with pytest.raises(synk.BatchError):
            select(number, length)


@given(case=length_and_rows(), kind=st.sampled_from(("list", "tuple", *INT_DTYPES)))
def test_lists_of_rows(case: tuple[int, list[int]], kind: str) -> None:
    """S20, S21: lists, tuples and arrays of every integer dtype; negative from the end."""
    length, rows = case
    if kind.startswith("u"):
        rows = [r % length for r in rows]
    batch: Any = (
        rows if kind == "list" else tuple(rows) if kind == "tuple" else np.array(rows, kind)
    )
    wanted = np.arange(length)[np.array(rows, "int64")].tolist()
    assert rows_of(select(batch, length)) == wanted
    if kind == "list":
        assert batch == rows  # S25: not changed


@given(mask=st.lists(st.booleans(), max_size=40), as_array=st.booleans())
def test_masks(mask: list[bool], as_array: bool) -> None:
    batch = np.array(mask, bool) if as_array else mask
    assert rows_of(select(batch, len(mask))) == [i for i, m in enumerate(mask) if m]


@given(case=length_and_rows(), beyond=st.integers(0, 5), below=st.booleans())
def test_rows_that_do_not_exist(case: tuple[int, list[int]], beyond: int, below: bool) -> None:
    """S21: the length itself is no row, nor is what lies before the first."""
    length, rows = case
    bad = -length - 1 - beyond if below else length + beyond
    for batch in ([*rows, bad], np.array([bad, *rows], "int64")):
        with pytest.raises(synk.BatchError) as caught:
            select(batch, length)
        assert str(bad) in str(caught.value)


@pytest.mark.parametrize(
    ("batch", "length"),
    [
        (-1, 3),
        (4, 3),
        ([3], 3),
        ([-4], 3),
        (np.array([255], "uint8"), 255),
        (np.array([2**63], "uint64"), 3),
        ([True, False], 3),
        (np.ones(4, bool), 3),
        ([0], 0),
        (slice(None), None),
        (slice(-3, None), None),
        (slice(-3, 5), None),
        (slice(5, 0, -1), None),
        ([-1], None),
        (-1, None),
    ],
)
def test_errors_of_range(batch: Any, length: int | None) -> None:
    """S21, S22: an IndexError, a ValueError and ours; it says what was asked."""
    with pytest.raises(synk.BatchError) as caught:
        select(batch, length, "batch_s")
    assert isinstance(caught.value, IndexError)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, synk.InputError)
    assert "batch_s" in str(caught.value)


@pytest.mark.parametrize(
    "batch",
    [
        True,
        np.bool_(False),
        1.0,
        np.float64(2),
        [0.0, 1.0],
        np.zeros(2),
        [[0, 1]],
        np.zeros((1, 2), int),
        np.array(3),
        [[0], [1, 2]],
        "all",
        b"01",
        ["0"],
        {0, 1},
        {"start": 0},
        pytest.param(object(), id="object"),
        1 + 2j,
        [None],
    ],
    ids=repr,
)
def test_what_is_no_batch(batch: Any) -> None:
    """S20: a bool is no int, a float no row; a TypeError and ours."""
    with pytest.raises(synk.InputTypeError) as caught:
        select(batch, 5)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value)


@pytest.mark.parametrize("step", [0, 1.5, "a"])
def test_slices_that_are_none(step: Any) -> None:
    """S26: what numpy refuses is refused as an error of ours."""
    with pytest.raises(synk.InputError):
        select(slice(0, 3, step), 5)
    with pytest.raises(synk.InputError):
        select(slice("a", None), 5)


def test_no_batch_means_all() -> None:
    assert rows_of(select(None, 4)) == [0, 1, 2, 3]
    with pytest.raises(synk.InputError, match="minibatch"):
        select(None, None)


@given(rows=st.lists(st.integers(0, 500), max_size=20))
def test_without_a_length(rows: list[int]) -> None:
    """S27: minibatch Data alone: rows have no upper bound."""
    assert rows_of(select(rows, None)) == rows
    n = max(rows, default=0)
    assert rows_of(select(n, None)) == list(range(n))
    assert rows_of(select(slice(n // 2, n, 2), None)) == list(range(n // 2, n, 2))
    assert rows_of(select(slice(None, n), None)) == list(range(n))
    assert rows_of(select(np.arange(n) % 2 == 1, None)) == list(range(1, n, 2))


@given(
    length=LENGTHS,
    batch=any_slice() | st.lists(st.integers(0, 0), max_size=3),
    ends=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    by=st.integers(0, 30),
)
def test_selections_are_cut_and_shifted(
    length: int, batch: Any, ends: tuple[int, int], by: int
) -> None:
    """S27: cut as a list of rows is; the lowest and highest row; shifted for minibatches."""
    if isinstance(batch, list) and not length:
        batch = []
    selection = select(batch, length)
    rows = rows_of(selection)
    lo, hi = sorted(min(e, len(rows)) for e in ends)
    assert len(selection) == len(rows)
    assert rows_of(selection.cut(lo, hi)) == rows[lo:hi]
    assert len(selection.cut(lo, hi)) == hi - lo
    assert rows_of(selection.shifted(by)) == [r - by for r in rows]
    assert selection.highest() == max(rows, default=-1)
    if rows:
        assert selection.lowest() == min(rows)
        assert min(rows_of(selection.shifted(selection.lowest()))) == 0


@given(rows=st.integers(0, 10_000), parts=st.integers(1, 40))
def test_edges(rows: int, parts: int) -> None:
    """S58: contiguous, complete, sizes that differ by one at most, larger ones first."""
    at = edges(rows, parts)
    sizes = np.diff(at)
    assert (at[0], at[-1], len(at)) == (0, rows, parts + 1)
    assert sizes.max() - sizes.min() <= 1
    assert (np.diff(sizes) <= 0).all()


@given(rows=st.integers(0, 200), num_slices=st.integers(1, 300))
def test_slices_of_a_part(rows: int, num_slices: int) -> None:
    """S10: never empty where there are rows, never more than rows, never none."""
    found = slices(rows, num_slices)
    assert [i for lo, hi in found for i in range(lo, hi)] == list(range(rows))
    assert len(found) == max(1, min(rows, num_slices))
    assert all(hi > lo for lo, hi in found) or rows == 0


@settings(max_examples=50)
@given(
    length=st.integers(0, 40),
    batch=any_slice(),
    size=st.integers(1, 5),
    num_slices=st.integers(1, 6),
)
def test_every_row_once(length: int, batch: slice, size: int, num_slices: int) -> None:
    """S8: parts and slices together are the batch, in order."""
    selection = select(batch, length)
    at = edges(len(selection), size)
    found: list[int] = []
    for lo, hi in pairwise(at):
        part = selection.cut(lo, hi)
        for a, b in slices(len(part), num_slices):
            found += rows_of(part.cut(a, b))
    assert found == np.arange(length)[batch].tolist()


ARRAY = np.array([1, 0])


@pytest.mark.parametrize(
    ("batch_s", "wanted"),
    [
        (None, [None, None]),
        (3, [3, 3]),
        (slice(1, 2), [slice(1, 2), slice(1, 2)]),
        ([4, 7], [[4, 7], [4, 7]]),
        ((4, 7), [(4, 7), (4, 7)]),
        ([4, 7, 8], [[4, 7, 8], [4, 7, 8]]),
        ([], [[], []]),
        ([np.int32(1), np.uint8(2)], [[1, 2], [1, 2]]),
        ([True, False], [[True, False], [True, False]]),
        (ARRAY, [ARRAY, ARRAY]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([[], [2]], [[], [2]]),
        ([[1], []], [[1], []]),
        ((slice(0, 1), [2]), [slice(0, 1), [2]]),
        ([None, ARRAY], [None, ARRAY]),
        ([3, [1]], [3, [1]]),
    ],
)
def test_one_for_each_member(batch_s: Any, wanted: list[Any]) -> None:
    """S24, S25: a list is one for each where an element of it is no integer."""
    found = per_member(batch_s, 2)
    assert len(found) == 2
    for a, b in zip(found, wanted, strict=True):
        assert a is b or a == b


@pytest.mark.parametrize("batch_s", [[[1]], [[1], [2], [3]], [None] * 3, [slice(1)]])
def test_not_one_for_each_member(batch_s: Any) -> None:
    with pytest.raises(synk.InputError, match=f"{len(batch_s)} entries"):
        per_member(batch_s, 2)


def test_long_lists_are_checked_fast() -> None:
    """S29: a million rows in compiled code: hundreds of times faster than Python's max."""
    rows = np.arange(1_000_000)[::-1]
    start = time.process_time()
    for _ in range(5):
        select(rows, 1_000_000)
    ours = time.process_time() - start
    start = time.process_time()
    max(rows)
    assert ours < time.process_time() - start


def test_selections_do_not_follow_the_user() -> None:
    """A list of the user's that changes after the call was made changes nothing."""
    rows = [2, 1]
    found = select(rows, 3)
    rows[0] = 0
    assert rows_of(found) == [2, 1]


@pytest.mark.parametrize("selection", [Span(2, 5), Picks(np.array([3, 1]))])
def test_selections_travel(selection: Selection) -> None:
    assert rows_of(pickle.loads(pickle.dumps(selection))) == rows_of(selection)
