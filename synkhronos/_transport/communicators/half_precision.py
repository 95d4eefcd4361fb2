"""Floats in half the bytes on the wire: IEEE's half precision, or the upper half of float32."""

from __future__ import annotations

import numpy as np

FORMATS = ("fp16", "bf16")


def halved(array: np.ndarray, how: str) -> np.ndarray:
    """In 16 bits each, rounded to the nearest; "fp16" above 65,504 is infinite.

    >>> restored(halved(np.array([1.0, -0.3, 7e4]), "bf16"), "bf16", np.dtype(float)).tolist()
    [1.0, -0.30078125, 70144.0]
    """
    with np.errstate(over="ignore"):
        if how == "fp16":
            return array.astype(np.float16).view(np.uint16)
        bits = array.astype(np.float32).view(np.uint32)
    # to the nearest, of two as near the even one; what is no number stays so
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16)


def restored(halves: np.ndarray, how: str, dtype: np.dtype) -> np.ndarray:
    """The values back."""
    if how == "fp16":
        return halves.view(np.float16).astype(dtype)
    return (halves.astype(np.uint32) << 16).view(np.float32).astype(dtype)
