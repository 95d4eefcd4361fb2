"""Floats in 16 bits for transfers: IEEE half precision, or bfloat16 (the upper bits of float32)."""

from __future__ import annotations

import numpy as np

FORMATS = ("fp16", "bf16")


def compressed(array: np.ndarray, how: str) -> np.ndarray:
    """Floats as 16 bits each, rounded to the nearest; "fp16" above 65,504 becomes infinite.

    >>> bits = compressed(np.array([1.0, -0.3, 7e4]), "bf16")
    >>> decompressed(bits, "bf16", np.dtype(float)).tolist()
    [1.0, -0.30078125, 70144.0]
    """
    with np.errstate(over="ignore"):
        if how == "fp16":
            return array.astype(np.float16).view(np.uint16)
        bits = array.astype(np.float32).view(np.uint32)
    # to the nearest, ties to even; NaN stays NaN
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16)


def decompressed(bits: np.ndarray, how: str, dtype: np.dtype) -> np.ndarray:
    """The inverse of `compressed`, in a dtype."""
    if how == "fp16":
        return bits.view(np.float16).astype(dtype)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(dtype)
