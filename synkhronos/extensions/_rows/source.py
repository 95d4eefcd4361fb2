"""A source of rows, as the reading thread sees it."""

from __future__ import annotations

import contextlib
import mmap
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from synkhronos._errors import InputError, InputTypeError

_NO_SOURCES = (list, tuple, str, bytes, dict)
_LONG_ROW_BYTES = 1 << 16  # one row of this size is worth reading ahead


class Source:
    """A source of rows: an object to index, or a function of an index."""

    def __init__(self, given: Any, number: int, rows: int) -> None:
        self.label = f"source {number} ({type(given).__name__})"
        given = by_number(given)
        self.given: Any = given  # the user's
        self.ascending = wants_ascending(given)
        # the shape of a row and the dtype, where they can be told before anything is read
        self.kind: tuple[tuple[int, ...], np.dtype] | None = None
        self._file: mmap.mmap | None = None
        self._plain = False  # take() reads only these rows; of other types it copies all rows first
        indexed = hasattr(given, "__getitem__") and hasattr(given, "__len__")
        self._function = callable(given) and not indexed
        if self._function:
            return
        if not indexed or isinstance(given, _NO_SOURCES) or getattr(given, "shape", None) == ():
            raise InputTypeError(
                f"Loader: {self.label} does not take an array as index, and is not a function: "
                "give an array, numpy.memmap, an h5py dataset, or a function from rows to arrays"
            )
        if len(given) != rows:
            raise InputError(f"Loader: {self.label} has {len(given)} rows, the batches {rows}")
        shape, dtype = getattr(given, "shape", None), getattr(given, "dtype", None)
        if isinstance(shape, tuple) and isinstance(dtype, np.dtype):
            self.kind = shape[1:], dtype
        if type(given) in (np.ndarray, np.memmap):
            flags = given.flags
            self._plain = flags.c_contiguous and flags.aligned and given.dtype.isnative
            self._file = _mapping(given) if given[:1].nbytes < _LONG_ROW_BYTES else None

    def expect(self, random: bool) -> None:
        """Tell the kernel whether rows of a mapped file are read here and there.

        It reads (and for holes in the file, makes) many pages around each that is touched: for
        random rows of 8 kB that took 400 times as long as the rows alone.
        """
        if self._file is not None and not self._file.closed:
            self._file.madvise(mmap.MADV_RANDOM if random else mmap.MADV_NORMAL)

    def reading(self) -> AbstractContextManager[object]:
        """A context in which it may keep files open from one read to the next."""
        reading = None if self._function else getattr(self.given, "reading", None)
        return contextlib.nullcontext() if reading is None else reading()

    def read(self, rows: np.ndarray, out: np.ndarray | None) -> object:
        """Read these rows, into `out` if that is possible."""
        if self._function:
            return self.given(rows)
        if (
            out is not None
            and out.shape[:1] == rows.shape
            and self.kind == (out.shape[1:], out.dtype)
        ):
            into = getattr(self.given, "read_into", None)
            if into is not None:
                into(rows, out)
                return out
        if self._plain and out is not None and fits(out, len(rows), self.given):
            # the batches have no other rows than the source, so "clip" never clips; it spares
            # numpy a second pass
            return np.take(self.given, rows, axis=0, out=out, mode="clip")
        return self.given[rows]


def wants_ascending(given: Any) -> bool:
    """Whether rows must be asked for in ascending order, as h5py wants; it is not imported here."""
    own: bool = getattr(given, "ascending", False)
    return own or type(given).__module__.partition(".")[0] == "h5py"


def by_number(given: Any) -> Any:
    """Make an array of numpy of tables and tensors that other libraries hold in memory.

    The index of a table of pandas takes labels of rows, or names of columns. Tensors, which are
    those with dlpack, have dtypes of their own, and need not take an array as index.
    """
    if hasattr(given, "iloc") and hasattr(given, "to_numpy"):
        return given.to_numpy()
    tensor = hasattr(given, "__dlpack__") and hasattr(given, "__array__")
    return np.asarray(given) if tensor and not isinstance(given, np.ndarray) else given


def _mapping(array: object) -> mmap.mmap | None:
    """The mapped file that an array is a view of; None if it is not."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, mmap.mmap) else None


def fits(target: np.ndarray, rows: int, source: np.ndarray) -> bool:
    """Whether this many rows of the source can be written to the target without a cast."""
    return target.shape == (rows, *source.shape[1:]) and np.can_cast(
        source.dtype, target.dtype, "equiv"
    )
