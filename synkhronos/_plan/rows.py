"""The rows of each part and slice, from batch=, batch_s=, num_slices= and lengths. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._errors import BatchError, InputError, InputTypeError


@dataclass(frozen=True)
class Span:
    """The rows start, start+1, ..., stop-1."""

    start: int
    stop: int

    def __reduce__(self) -> Any:
        return Span, (self.start, self.stop)

    def __len__(self) -> int:
        return self.stop - self.start

    def cut(self, lo: int, hi: int) -> Span:
        """Entries lo to hi of these rows."""
        return Span(self.start + lo, self.start + hi)

    def shifted(self, by: int) -> Span:
        """The same rows, as numbers in an array that begins `by` rows later."""
        return Span(self.start - by, self.stop - by)

    def lowest(self) -> int:
        """The smallest row number."""
        return self.start

    def highest(self) -> int:
        """The largest row number, -1 for no rows."""
        return self.stop - 1 if self.stop > self.start else -1


@dataclass(frozen=True, eq=False)
class Picks:
    """A list of rows in any order, with or without repetitions (int64)."""

    rows: np.ndarray

    def __reduce__(self) -> Any:
        return Picks, (self.rows,)

    def __len__(self) -> int:
        return len(self.rows)

    def cut(self, lo: int, hi: int) -> Picks:
        """Entries lo to hi of these rows."""
        return Picks(self.rows[lo:hi])

    def shifted(self, by: int) -> Picks:
        """The same rows, as numbers in an array that begins `by` rows later."""
        return Picks(self.rows - by) if by else self

    def lowest(self) -> int:
        """The smallest row number."""
        return int(self.rows.min()) if len(self.rows) else 0

    def highest(self) -> int:
        """The largest row number, -1 for no rows."""
        return int(self.rows.max()) if len(self.rows) else -1


Selection = Span | Picks


def edges(rows: int, parts: int) -> tuple[int, ...]:
    """The borders of `parts` contiguous parts of `rows` rows, whose sizes differ by at most one.

    The first parts are the larger ones. The package splits rows in no other way.

    >>> edges(10, 4)
    (0, 3, 6, 8, 10)
    """
    small, extra = divmod(rows, parts)
    return tuple(p * small + min(p, extra) for p in range(parts + 1))


def where(selection: Selection, borders: Sequence[int]) -> tuple[int, ...]:
    """The positions in a selection where each part begins and ends, for parts with these borders.

    Raises
    ------
    InputError
        The rows are not in ascending order.

    >>> where(Span(2, 7), (0, 3, 6, 8)), where(Picks(np.array([1, 1, 6])), (0, 3, 6, 8))
    ((0, 1, 4, 5), (0, 2, 2, 3))
    """
    if isinstance(selection, Span):
        found = [min(max(b - selection.start, 0), len(selection)) for b in borders]
        return tuple(found)
    rows = selection.rows
    if np.any(rows[1:] < rows[:-1]):
        raise InputError(
            "a batch of Data that is scattered over the nodes needs rows in ascending order, since "
            "each node computes its own rows: sort it (numpy.sort)"
        )
    return tuple(np.searchsorted(rows, borders).tolist())


def select(batch: object, length: int | None, what: str = "batch") -> Selection:
    """Read a `batch` for an array of `length` rows.

    Parameters
    ----------
    batch : None, int, slice, index list or array of any integer dtype, or boolean mask
        None means all rows, an int n the first n; a slice has the meaning it has in numpy.
    length : int or None
        None where the length is not known, since all inputs are minibatch Data. Then the batch must
        not refer to the end.

    Raises
    ------
    BatchError
        Rows outside the array.
    InputTypeError
        The value is not a batch.

    >>> select(slice(None, None, -1), 3)
    Picks(rows=array([2, 1, 0]))
    """
    if batch is None:
        if length is None:
            raise InputError(f"{what}: a batch is needed where all inputs are minibatch Data")
        return Span(0, length)
    if isinstance(batch, bool | np.bool_):
        raise InputTypeError(f"{what}={batch} is a bool: give an int, a slice, a list or an array")
    if isinstance(batch, int | np.integer):
        return _first(int(batch), length, what)
    if isinstance(batch, slice):
        return _slice(batch, length, what)
    return _picks(batch, length, what)


def _first(n: int, length: int | None, what: str) -> Span:
    if n < 0 or (length is not None and n > length):
        raise BatchError(f"{what}={n} asks for the first {n} rows, but there are {length}")
    return Span(0, n)


def _slice(batch: slice, length: int | None, what: str) -> Selection:
    if length is None:
        bounds = (batch.start or 0, batch.stop)
        if batch.stop is None or min(bounds) < 0 or (batch.step or 1) < 1:
            raise BatchError(
                f"{what}={batch}: where all inputs are minibatch Data, give a slice with "
                "a stop, not negative, and a step of at least 1"
            )
        length = int(batch.stop)
    try:
        start, stop, step = batch.indices(length)
    except (TypeError, ValueError) as exc:
        raise InputTypeError(f"{what}={batch}: {exc}") from None
    if step == 1:
        return Span(start, max(start, stop))
    return Picks(np.arange(start, stop, step, dtype=np.int64))


def _picks(batch: object, length: int | None, what: str) -> Picks:
    try:
        rows = np.asarray(batch)
    except ValueError as exc:
        raise InputTypeError(f"{what}: a ragged list is not a list of rows ({exc})") from None
    if rows.ndim != 1:
        raise InputTypeError(
            f"{what} must be an int, a slice, or a 1-D list or array of rows; found "
            f"{type(batch).__name__} with {rows.ndim} dimensions"
        )
    if rows.dtype == bool:
        return Picks(_mask(rows, length, what))
    if rows.size == 0:
        return Picks(np.zeros(0, np.int64))
    if rows.dtype.kind not in "iu":
        raise InputTypeError(f"{what}: rows must be integers, found dtype {rows.dtype}")
    return Picks(_checked(rows, length, what))


def _mask(mask: np.ndarray, length: int | None, what: str) -> np.ndarray:
    if length is not None and len(mask) != length:
        raise BatchError(f"{what}: a boolean mask of {len(mask)} for an array of {length} rows")
    return np.flatnonzero(mask).astype(np.int64, copy=False)


def _checked(rows: np.ndarray, length: int | None, what: str) -> np.ndarray:
    low, high = int(rows.min()), int(rows.max())
    if length is None:
        if low < 0:
            raise BatchError(f"{what}: row {low} is negative, but minibatch Data has no end")
    elif low < -length or high >= length:
        raise BatchError(f"{what}: rows must lie in {-length}..{length - 1}, found {low}..{high}")
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    if low < 0 and length is not None:
        rows = np.where(rows < 0, rows + length, rows)
    return rows


def slices(rows: int, num_slices: int) -> list[tuple[int, int]]:
    """The (start, stop) of each slice of a part: at least one, and at most as many as rows.

    >>> slices(5, 2), slices(2, 5), slices(0, 3)
    ([(0, 3), (3, 5)], [(0, 1), (1, 2)], [(0, 0)])
    """
    at = edges(rows, max(1, min(num_slices, rows)))
    return list(itertools.pairwise(at))


def per_member(batch_s: Any, size: int) -> list[object]:
    """The `batch_s` of each member, from one for all or a list with one for each.

    A list has one for each if an element is not an integer (a slice, a list, an array, None).

    >>> per_member([slice(0, 2), [1, 0]], 2)
    [slice(0, 2, None), [1, 0]]
    >>> per_member([4, 7], 3)
    [[4, 7], [4, 7], [4, 7]]
    """
    single = not isinstance(batch_s, list | tuple) or all(
        isinstance(b, int | np.integer | np.bool_) for b in batch_s
    )
    if single:
        return [batch_s] * size
    if len(batch_s) != size:
        raise InputError(f"batch_s has {len(batch_s)} entries for a group of {size} members")
    return list(batch_s)
