"""Floats in 16 bits for transfers: IEEE half precision, or bfloat16 (the upper bits of float32)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

FORMATS = ("fp16", "bf16")


@dataclass(frozen=True)
class Rounding:
    """How floats become 16 bits."""

    format: str  # "fp16" or "bf16"
    # of the chance by which values are rounded up or down. None: to the nearest
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
            if chance is not None:
                array = _neighbours(array.astype(np.float32), chance)
            return array.astype(np.float16).view(np.uint16)
        bits = array.astype(np.float32).view(np.uint32)
    bits += _ties_to_even(bits) if chance is None else _sixteen(chance, bits.shape)
    bits >>= 16  # infinity stays, since its lower bits are zero
    found = bits.astype(np.uint16)
    undefined = np.isnan(array)
    if undefined.any():
        found[undefined] = 0x7FC0
    return found


def _ties_to_even(bits: np.ndarray) -> np.ndarray:
    """The amount by which floats, as integers, round to the nearest of 16 bits."""
    more = bits >> 16
    more &= 1
    more += 0x7FFF
    return more


def _neighbours(array: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """For each float32, by chance, one of its two neighbours in half precision."""
    bits = array.view(np.uint32) + (_sixteen(chance, array.shape) >> 3)
    found = (bits & 0xFFFFE000).view(np.float32)  # half precision has 13 bits fewer
    small = np.abs(array) < 2.0**-14  # where half precision has equal distances, of 2**-24
    if small.any():
        count = np.floor(np.abs(array[small]) * 2.0**24 + chance.random(int(small.sum())))
        found[small] = np.copysign(count * 2.0**-24, array[small])
    undefined = np.isnan(array)
    if undefined.any():
        found[undefined] = np.nan
    return found


def _sixteen(chance: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Random numbers of 16 bits, four from each draw."""
    count = math.prod(shape)
    drawn = np.asarray(chance.bit_generator.random_raw(-(-count // 4)), np.uint64)
    return drawn.view(np.uint16)[:count].reshape(shape)


def decompressed(bits: np.ndarray, how: str, dtype: np.dtype) -> np.ndarray:
    """The inverse of `compressed`, in a dtype."""
    if how == "fp16":
        return bits.view(np.float16).astype(dtype)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(dtype)
