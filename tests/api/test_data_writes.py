"""What the other nodes are told of a write to Data: all that has changed, and little else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from selection import examples

import synkhronos as synk

MASK = np.zeros((1000, 100), bool)
MASK[[4, 6], 50] = True


@pytest.fixture
def telling() -> Iterator[synk.Group]:
    """A group of one whose master notes what it writes, as on several nodes."""
    with synk.Group(1) as group:
        group.arena.track_changes()
        yield group


def told(group: synk.Group, data: synk.Data, key: Any, value: Any) -> list[tuple[int, int]]:
    """The ranges (start, stop) of the data's bytes that a write notes."""
    group.arena.changes()
    group.arena.acknowledge_changes()
    data[key] = value
    first = group.arena.offset(data.writable)
    return [(at - first, at - first + n) for at, n in group.arena.changes()[0]]


@pytest.mark.parametrize(
    ("key", "start", "stop"),
    [
        (5, 500, 600),
        (-1, 99_900, 100_000),
        (np.int8(127), 12_700, 12_800),
        (np.array(7), 700, 800),
        ((3, 4), 304, 305),
        ((np.uint8(3), -1), 399, 400),
        ((..., 999, 99), 99_999, 100_000),
        ((None, 3, None, 4), 304, 305),
        ((5, ...), 500, 600),
        ([3, 7], 300, 800),
        ([-1, 990], 99_000, 100_000),
        (np.array([9, 2], "int8"), 200, 1000),
        (np.array([[9], [3]], "uint64"), 300, 1000),
        (range(3, 5), 300, 500),
        ((3, [5, 6]), 305, 307),
        (([3, 7], 2), 300, 800),
        ((slice(2, 5), [1, 2]), 201, 403),
        (MASK[:, 50], 400, 700),
        (MASK, 400, 700),
        (MASK[:, 50].tolist(), 400, 700),
        ([], 0, 0),
        (np.zeros(1000, bool), 0, 0),
        (slice(5, 5), 0, 0),
        (False, 0, 100_000),
        ((..., [3, 7]), 0, 100_000),
        (..., 0, 100_000),
    ],
)
def test_only_what_changed(telling: synk.Group, key: Any, start: int, stop: int) -> None:
    """Elements, rows by number and masks as well as slices."""
    d = synk.data(np.zeros((1000, 100)))
    wanted = [(8 * start, 8 * stop)] if start < stop else []
    assert told(telling, d, key, 1.0) == wanted


@pytest.mark.parametrize("key", [(), ..., None, True, np.array(True), (None, ...)])
def test_data_of_no_dimension(telling: synk.Group, key: Any) -> None:
    d = synk.data(np.zeros(()))
    assert told(telling, d, key, 1.0) == [(0, 8)]
    assert d[()] == 1.0


@pytest.mark.parametrize(
    "key", [..., slice(3), [], np.zeros(0, bool), (slice(None), 2), (None, [])]
)
def test_data_of_no_rows(telling: synk.Group, key: Any) -> None:
    assert told(telling, synk.data(np.zeros((0, 3))), key, 1.0) == []


def test_a_file_is_not_written(telling: synk.Group, tmp_path: Path) -> None:
    """Through Data of it: its other readers may be on other machines. A copy is."""
    mapped = np.memmap(tmp_path / "rows", "float64", "w+", shape=(4, 5))
    d = synk.data(mapped)
    with pytest.raises(synk.InputError, match="is a file that each node opens for itself"):
        d[2] = 1.0
    assert not mapped.any()
    d.set_value(np.array(mapped))
    assert told(telling, d, 2, 1.0) == [(80, 120)]
    del d, mapped


def test_views_are_read_only(telling: synk.Group) -> None:
    """A write through one would not reach the other nodes."""
    d = synk.data(np.arange(12.0).reshape(4, 3))
    for view in (d.data, d[1], d[1:3], d[..., 0], *d):
        with pytest.raises(synk.InputError, match=r"read-only .* Write d\[...\] = value"):
            view[0] = 9.0
    for array in (np.asarray(d), np.array(d, copy=False)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 9.0
    np.testing.assert_array_equal(d, np.arange(12.0).reshape(4, 3))


def test_copies_can_be_written(telling: synk.Group) -> None:
    d = synk.data(np.arange(12.0).reshape(4, 3))
    for copy in (d[[1, 2]], d[d[:] > 5], np.array(d), np.asarray(d, "float32")):
        assert type(copy) is np.ndarray
        copy[0] = -1.0
    assert d.data.min() == 0


def test_functions_get_arrays_that_numba_knows(
    telling: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a read-only array numba would compile the function anew."""
    x = pt.vector("x", dtype="float64")
    f = synk.function([x], x.sum(), mode="FAST_COMPILE")
    assert f.as_pytensor(np.ones(2)) == 2
    seen: list[Any] = []
    monkeypatch.setattr(f, "_serial", lambda values: seen.extend(values) or [np.array(5.0)])
    f.as_pytensor(synk.data(np.arange(3.0)))
    assert seen[0].flags.writeable
    assert type(seen[0]) is np.ndarray


SHAPE = (5, 4, 3)
KEYS = st.one_of(
    hnp.basic_indices(SHAPE, allow_newaxis=True),
    hnp.integer_array_indices(SHAPE, dtype="int8"),
    st.tuples(st.integers(-5, 4), st.lists(st.integers(-4, 3), max_size=3)),
    st.tuples(st.just(...), st.lists(st.integers(-3, 2), min_size=1, max_size=2), st.just(1)),
    st.tuples(st.none(), st.lists(st.integers(-5, 4), max_size=3), st.slices(4)),
    hnp.arrays(bool, SHAPE),
    hnp.arrays(bool, SHAPE[:2]),
    st.tuples(st.slices(5), hnp.arrays(bool, SHAPE[1:])),
    st.tuples(st.booleans(), st.integers(-5, 4)),
)


@settings(
    max_examples=examples(400),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(key=KEYS)
def test_all_that_changed(telling: synk.Group, key: Any) -> None:
    """By whatever numpy takes as an index."""
    d, plain = synk.data(np.zeros(SHAPE)), np.zeros(SHAPE)
    try:
        plain[key] = 1.0
    except IndexError:
        return
    noted = np.zeros(plain.size, bool)
    for start, stop in told(telling, d, key, 1.0):
        noted[start // 8 : stop // 8] = True
    np.testing.assert_array_equal(d.data, plain)
    assert noted[plain.ravel() != 0].all()
