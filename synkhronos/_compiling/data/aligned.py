"""Arrays in private memory that begin at a cache line.

numpy's begin anywhere at a multiple of 16 bytes. Where rows of a matrix are whole cache lines,
BLAS then reads two of them for each vector register: 35 us for a product of 54 x 1,536, and 25 so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

BORDER = 64  # bytes, a cache line: XLA reads arrays aligned to it in place, and copies others
# Smaller arrays gain nothing. Larger ones lie in main memory, which takes longer than a border.
_FEWEST_BYTES, _MOST_BYTES = 1 << 10, 1 << 25


def aligned_empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """A fresh array in private memory, aligned to 64 bytes."""
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + BORDER, np.uint8)
    start = -raw.ctypes.data % BORDER
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """A copy in the order of C, aligned to 64 bytes."""
    made = aligned_empty(array.shape, array.dtype)
    made[...] = array
    return made


def aligned(array: np.ndarray) -> np.ndarray:
    """The array, or a copy in its own order if it gains by that."""
    is_far = array.ctypes.data % BORDER != 0
    if is_far and _FEWEST_BYTES <= array.nbytes <= _MOST_BYTES:
        if array.flags.c_contiguous:
            return aligned_copy(array)
        if array.flags.f_contiguous:
            return aligned_copy(array.T).T
    return array
