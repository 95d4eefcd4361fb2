"""Arrays as safetensors holds them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def storable(value: np.ndarray) -> np.ndarray:
    """In C order, which safetensors 0.8.0 assumes (its issue 825); complex numbers as pairs."""
    found = np.asarray(value, order="C")  # np.ascontiguousarray would make 0-d values 1-d
    if found.dtype.kind == "c":
        half = np.dtype(f"f{found.dtype.itemsize // 2}")
        found = found.reshape(-1).view(half).reshape(*found.shape, 2)
    return found


def original(stored: np.ndarray, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """The array that `storable` had, from its stored values."""
    if stored.dtype.name != dtype:
        stored = stored.reshape(-1).view(dtype)
    return stored.reshape(tuple(shape))
