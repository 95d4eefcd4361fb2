"""Which rows of columns are equal, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

_MULTIPLIER = 0x9E3779B97F4A7C15  # odd; 2**64 divided by the golden ratio
_TRIES = 8  # of other starts, where two different rows have the same hash
_SAMPLES = 6  # square roots of the number of rows: at a half of them distinct, 18 pairs meet


@dataclass(frozen=True)
class Kinds:
    """The kinds of equal rows, in the order of first appearance."""

    first: np.ndarray  # the first row of each kind
    of: np.ndarray  # the kind of each row
    counts: np.ndarray  # the number of rows of each kind

    def __len__(self) -> int:
        return len(self.first)


def kinds_of(columns: Sequence[np.ndarray], rows: int) -> Kinds:
    """Find the rows that are equal in all columns.

    Parameters
    ----------
    columns : sequence of array, (rows, ...)
        Of any dtype of numbers. Rows are equal if their bits are: -0.0 is not 0.0. A row with NaN
        is equal to no other.
    rows : int

    Returns
    -------
    Kinds

    Notes
    -----
    Rows get a hash of 64 bits. Rows with the same hash meet in a table, whose size is four times
    their number. Each row is compared with the first of its kind, so that the result is exact.

    Cost: 0.1 s for 1,000,000 rows of 6 columns, and 40 bytes a row.

    Examples
    --------
    >>> import numpy as np
    >>> found = kinds_of([np.array([3, 1, 3, 1]), np.array([0.0, 1.0, -0.0, 1.0])], 4)
    >>> found.first.tolist(), found.of.tolist(), found.counts.tolist()
    ([0, 1, 2], [0, 1, 2, 1], [1, 2, 1])
    """
    for start in range(1, _TRIES + 1):
        first = _first_with_hash(_hashes(columns, rows, start))
        if all(np.array_equal(words[first], words) for words in _words(columns)):
            break
    else:
        first = np.arange(rows)
    for column in columns:
        if column.dtype.kind in "fc" and np.isnan(np.sum(column)):
            alone = np.isnan(column.reshape(rows, -1)).any(axis=1)
            first[alone] = np.flatnonzero(alone)
    own = first == np.arange(rows)
    of = (np.cumsum(own) - 1)[first]
    leaders = np.flatnonzero(own)
    return Kinds(leaders, of, np.bincount(of, minlength=len(leaders)))


def may_repeat(columns: Sequence[np.ndarray], rows: int) -> bool:
    """Whether rows may be at most half as many as they are: a sample of them has equal ones.

    If half of the rows are distinct, the sample has none with a probability of 1e-7.
    """
    size = int(_SAMPLES * rows**0.5)
    if 2 * size >= rows:
        return True
    chosen = np.random.default_rng(0).choice(rows, size, replace=False, shuffle=False)
    return len(kinds_of([column[chosen] for column in columns], size)) < size


def _words(columns: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """The bits of each number of a row, as vectors of unsigned integers."""
    for column in columns:
        table = column.reshape(len(column), int(np.prod(column.shape[1:])))
        if table.dtype.kind == "c":
            table = np.concatenate([table.real, table.imag], axis=1)
        for k in range(table.shape[1]):
            yield np.ascontiguousarray(table[:, k]).view(f"u{table.itemsize}")


def _hashes(columns: Sequence[np.ndarray], rows: int, start: int) -> np.ndarray:
    found = np.full(rows, start, np.uint64)
    for words in _words(columns):
        found ^= words
        found *= np.uint64(_MULTIPLIER)
        found ^= found >> np.uint64(32)
    found *= np.uint64(_MULTIPLIER)
    return found


def _first_with_hash(hashes: np.ndarray) -> np.ndarray:
    """For each row, the first row that has its hash.

    Rows are written to the places of a table that their hash names, from the last to the first.
    Rows that read one of another hash there try again with other bits of the hash, and so on.
    """
    rows = len(hashes)
    found = np.empty(rows, np.intp)
    bits = max(4, (4 * rows).bit_length())
    left = np.arange(rows)
    while len(left):
        places = (hashes[left] >> np.uint64(64 - bits)).astype(np.intp)
        table = np.empty(1 << bits, np.intp)
        table[places[::-1]] = left[::-1]
        met = table[places]
        same = hashes[met] == hashes[left]
        found[left[same]] = met[same]
        left = left[~same]
        hashes = hashes * np.uint64(_MULTIPLIER) if len(left) else hashes
        bits = max(4, (4 * len(left)).bit_length())
    return found
