"""Floats in 16 bits for transfers: IEEE half precision, or bfloat16 (the upper bits of float32)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

FORMATS = ("fp16", "bf16")


@dataclass(frozen=True)
class Rounding:
    """How floats become 16 bits.

    Attributes
    ----------
    format : {"fp16", "bf16"}
    seeds : tuple of int, or None
        Of the chance by which values are rounded up or down. None: to the nearest.
    """

    format: str
    seeds: tuple[int, ...] | None = None

    def part(self, number: int) -> Rounding:
        """The same for a part that has a number, with a chance of its own."""
        return self if self.seeds is None else replace(self, seeds=(*self.seeds, number))

    def generator(self) -> np.random.Generator | None:
        """The source of chance; None for rounding to the nearest."""
        if self.seeds is None:
            return None
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence(self.seeds)))


def compressed(
    array: np.ndarray, how: str, chance: np.random.Generator | None = None
) -> np.ndarray:
    """Floats as 16 bits each, to the nearest or by chance; "fp16" above 65,504 becomes infinite.

    By chance, a value becomes one of its two neighbours, each the likelier the nearer it is, so
    that the expected value is the float32 that is nearest to it.

    >>> bits = compressed(np.array([1.0, -0.3, 7e4]), "bf16")
    >>> decompressed(bits, "bf16", np.dtype(float)).tolist()
    [1.0, -0.30078125, 70144.0]
    """
    with np.errstate(all="ignore"):
        if how == "fp16":
            nearest = array.astype(np.float16)
            return nearest.view(np.uint16) if chance is None else _by_chance(array, nearest, chance)
        bits = array.astype(np.float32).view(np.uint32)
    if chance is not None:
        more = chance.integers(0, 1 << 16, bits.shape, np.uint32)
    else:  # to the nearest, ties to even
        more = 0x7FFF + ((bits >> 16) & 1)
    rounded = (bits + more) >> 16  # infinity stays, since its lower bits are zero
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16)


def _by_chance(array: np.ndarray, nearest: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """One of the two neighbours in half precision, given the nearest."""
    size, found = np.abs(array.astype(np.float32)), np.abs(nearest)
    # bits without the sign count up with the magnitude
    low = found.view(np.uint16) - (found > size)
    below = low.view(np.float16).astype(np.float32)
    gap = (low + np.uint16(1)).view(np.float16).astype(np.float32) - below
    up = (size - below) / gap > chance.random(array.shape, np.float32)
    bits = (low + up) | (nearest.view(np.uint16) & 0x8000)
    return np.where(np.isfinite(nearest), bits, nearest.view(np.uint16)).astype(np.uint16)


def decompressed(bits: np.ndarray, how: str, dtype: np.dtype) -> np.ndarray:
    """The inverse of `compressed`, in a dtype."""
    if how == "fp16":
        return bits.view(np.float16).astype(dtype)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(dtype)
