"""Which rows of columns are equal."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from selection import thorough

from synkhronos.pymc._repeated import distinct as _distinct
from synkhronos.pymc._repeated.distinct import kinds_of, may_repeat

R = np.random.default_rng(5)
N = 500
NAN = np.array([1.0, np.nan, 1.0, np.nan])

COLUMNS: dict[str, list[np.ndarray]] = {
    "integers": [R.integers(0, 4, N), R.integers(0, 3, N).astype(np.int8)],
    "floats": [R.normal(size=N).round(0), R.normal(size=N).round(0).astype(np.float32)],
    "vectors": [R.integers(0, 2, (N, 3)), R.integers(0, 2, N).astype(bool)],
    "tables": [R.integers(0, 2, (N, 2, 2)).astype(np.float64)],
    "complex": [R.integers(0, 2, N) + 1j * R.integers(0, 2, N)],
    "strided": [R.integers(0, 4, (2 * N, 2))[::2, 1]],
    "all distinct": [np.arange(N)],
    "one": [np.zeros(N)],
    "single": [np.zeros(1)],
}


def words(columns: list[np.ndarray], rows: int) -> list[bytes]:
    """The bytes of each row."""
    return [b"|".join(column[i].tobytes() for column in columns) for i in range(rows)]


@pytest.mark.parametrize("kind", COLUMNS)
def test_rows_are_equal_if_their_bytes_are(kind: str) -> None:
    columns = COLUMNS[kind]
    rows = len(columns[0])
    first = dict(reversed([(word, i) for i, word in enumerate(words(columns, rows))]))
    found = kinds_of(columns, rows)
    assert found.first.tolist() == sorted(first.values())
    assert [first[word] for word in words(columns, rows)] == found.first[found.of].tolist()
    assert found.counts.tolist() == np.bincount(found.of).tolist()
    assert found.counts.sum() == rows


def test_zeros_of_both_signs_differ_and_nan_equals_nothing() -> None:
    assert kinds_of([np.array([0.0, -0.0, 0.0])], 3).of.tolist() == [0, 1, 0]
    assert kinds_of([NAN], 4).of.tolist() == [0, 1, 0, 2]
    assert kinds_of([np.array([np.inf, np.nan, -np.inf, np.inf])], 4).of.tolist() == [0, 1, 2, 0]
    assert kinds_of([np.zeros(4), NAN.reshape(2, 2).repeat(2, axis=0)], 4).of.tolist() == [
        *(0, 1, 2, 3)
    ]


def test_no_columns_and_no_rows() -> None:
    assert kinds_of([], 3).counts.tolist() == [3]
    assert len(kinds_of([np.zeros(0)], 0)) == 0


@pytest.mark.parametrize("bits", [1, 8])
def test_rows_with_the_same_hash_are_told_apart(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes of few bits: with all starts some are equal. Then no rows are."""
    column, hashes = R.integers(0, 40, N), _distinct._hashes

    def few(*given: Any) -> np.ndarray:
        return hashes(*given) << np.uint64(64 - bits)

    monkeypatch.setattr(_distinct, "_hashes", few)
    found = kinds_of([column], N)
    assert np.array_equal(column[found.first][found.of], column)


def test_a_sample_tells_whether_rows_may_repeat() -> None:
    rows = 100_000
    assert may_repeat([np.arange(rows) // 2], rows)
    assert not may_repeat([np.arange(rows)], rows)


@pytest.mark.parametrize("rows", [100_000, *thorough(1_000_000)])
def test_finding_rows_takes_half_a_microsecond_each(rows: int) -> None:
    columns = [R.integers(0, k, rows) for k in (51, 6, 5, 4, 2, 2)]
    kinds_of(columns, rows)
    began = time.thread_time()
    kinds_of(columns, rows)
    assert time.thread_time() - began < 0.5e-6 * rows
