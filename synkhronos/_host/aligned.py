"""Arrays in private memory that begin at a cache line."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

BORDER = 64  # bytes, a cache line: XLA reads arrays aligned to it in place, and copies others


def aligned_empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """A fresh array in private memory, aligned to 64 bytes."""
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + BORDER, np.uint8)
    start = -raw.ctypes.data % BORDER
    return raw[start : start + nbytes].view(dtype).reshape(shape)
