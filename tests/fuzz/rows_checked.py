"""Rows that are read from files which are nearly right, and bytes that become very many."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

import synkhronos as synk
from synkhronos.training.sources import FileSource

ERRORS = (synk.SourceError, synk.InputError)
SMALL = 1 << 20  # bytes of rows that are read whole
ROWS = np.arange(24.0).reshape(6, 4)
CONFUSED = 64 << 20  # bytes that a bomb becomes


def checked(source: FileSource, oracle: Callable[[], Any] | None = None) -> np.ndarray:
    """Some rows, or all where they are few: as the file's own library reads them, in any order."""
    n = len(source)
    each = int(np.prod(source.shape[1:], dtype=object)) * source.dtype.itemsize
    if n * each <= SMALL and n <= SMALL:
        found = source[np.arange(n)]
        again = source[np.arange(n)[::-1]][::-1]
        np.testing.assert_array_equal(again, found)
        if oracle is not None:
            wanted = np.asarray(oracle())
            assert wanted.dtype.newbyteorder("=") == source.dtype, (wanted.dtype, source.dtype)
            np.testing.assert_array_equal(found, wanted)
    elif each <= SMALL:
        found = source[[n - 1, 0]]
    else:
        found = np.empty((0, 0))
    assert source.dtype.kind in "biufc"
    return found


@functools.cache
def confused() -> bytes:
    """Few bytes that become very many."""
    return zlib.compress(bytes(CONFUSED))


@functools.cache
def zeros(n: int) -> bytes:
    made = io.BytesIO()
    np.save(made, np.zeros(n, "u1"))
    return made.getvalue()


@functools.cache
def packed(codec: str, confused: bool) -> bytes:
    """The first chunk, or very many zeros instead, as a codec packs it."""
    data = bytes(CONFUSED) if confused else ROWS[:3].tobytes()
    if codec in ("zlib", "gzip", "bz2", "lzma"):
        by = {"zlib": zlib.compress, "gzip": gzip.compress, "bz2": bz2.compress}
        return by.get(codec, lzma.compress)(data)
    import numcodecs

    return bytes(numcodecs.get_codec({"id": codec}).encode(data))
