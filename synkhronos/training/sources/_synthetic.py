"""Rows that are computed from their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from synkhronos._checks import check_integer, is_integer, options_checked, shown
from synkhronos._errors import BatchError, InputError, InputTypeError

# Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014); SplitMix64
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))


class SyntheticSource:
    """Rows around the centres of classes; `synthetic` makes it.

    Attributes
    ----------
    shape, dtype
        Of all rows together; float32.
    labels : Labels
        The source of the labels, int64.
    blocks : tuple of int
        One block: any row costs the same.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, n: int, seed: int) -> None:
        self.shape = (n, *shape)
        self.dtype = np.dtype(np.float32)
        self.blocks = (n,)
        self.labels = Labels(classes, n, seed)
        self._size = int(np.prod(shape, dtype=np.int64))
        centres = _words(_keys(seed ^ (1 << 63), np.arange(classes)), self._size)
        self._centres = _uniform(centres)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<synthetic {self.dtype} {self.shape}>"

    def __getitem__(self, rows: object) -> np.ndarray:
        """The rows of an index array, a slice or a number, as a new array."""
        if isinstance(rows, int | np.integer):
            return self[np.array([rows])][0]
        keys, labels = self.labels.keys(rows)
        found = (self._centres[labels] + _uniform(_words(keys, self._size))) / 2
        return found.astype(np.float32).reshape(len(keys), *self.shape[1:])


class Labels:
    """The labels of synthetic rows."""

    def __init__(self, classes: int, n: int, seed: int) -> None:
        self.shape = (n,)
        self.dtype = np.dtype(np.int64)
        self._classes = classes
        self._seed = seed

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: object) -> np.ndarray:
        """The labels of an index array or a slice."""
        return self.keys(rows)[1]

    def keys(self, rows: object) -> tuple[np.ndarray, np.ndarray]:
        """A random word for each row, and its label."""
        n = len(self)
        numbers = np.arange(*rows.indices(n)) if isinstance(rows, slice) else np.asarray(rows)
        if numbers.size and (numbers.dtype.kind not in "iu" or numbers.ndim != 1):
            raise InputTypeError(f"synthetic takes an array of row numbers, found {shown(rows)}")
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < n:
            raise BatchError(f"synthetic has rows 0 to {n - 1}, asked for {shown(rows)}")
        keys = _keys(self._seed, numbers)
        return keys, (_uniform(_mixed(keys)) * self._classes).astype(np.int64)


def _keys(seed: int, numbers: np.ndarray) -> np.ndarray:
    start = _mixed(np.array([seed % (1 << 64)], np.uint64))
    return _mixed(start + (numbers.astype(np.uint64) + np.uint64(1)) * _STEP)


def _words(keys: np.ndarray, count: int) -> np.ndarray:
    return _mixed(keys[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _STEP)


def _mixed(words: np.ndarray) -> np.ndarray:
    for shift, factor in _FACTORS:
        words = (words ^ (words >> np.uint64(shift))) * factor
    return words ^ (words >> np.uint64(31))


def _uniform(words: np.ndarray) -> np.ndarray:
    return (words >> np.uint64(11)) * 2.0**-53


@options_checked
def synthetic(shape: Sequence[int], classes: int, n: int, seed: int = 0) -> SyntheticSource:
    """Rows for trials and benchmarks: each is a function of `seed` and its number.

    Parameters
    ----------
    shape : sequence of int
        Of a row.
    classes, n : int, at least 1
        Numbers of classes and of rows.
    seed : int, not negative

    Returns
    -------
    SyntheticSource
        Rows are float32 from 0 to 1: half the centre of the row's class, half noise, both uniform.
        ``source.labels`` is the source of the labels, int64.

    Raises
    ------
    InputError, InputTypeError

    Notes
    -----
    Cost: about 30 ns for each element that is asked for; only the centres are kept. All
    members, processes and machines get the same numbers.

    Examples
    --------
    >>> from synkhronos.training import sources
    >>> x = sources.synthetic((28, 28), classes=10, n=1000)
    >>> x.shape, x.labels[:5].tolist(), bool((x[[7]] == x[[3, 7]][1:]).all())
    ((1000, 28, 28), [2, 8, 4, 2, 1], True)
    """
    row = tuple(shape)
    if not all(is_integer(s) and s > 0 for s in row):
        raise InputError(f"synthetic: shape={shown(shape)}: give the lengths of a row's axes")
    return SyntheticSource(
        tuple(int(s) for s in row),
        check_integer("synthetic: classes", classes, 1),
        check_integer("synthetic: n", n, 1),
        check_integer("synthetic: seed", seed, 0),
    )
