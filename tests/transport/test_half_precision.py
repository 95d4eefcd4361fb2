"""Floats in 16 bits: nearest values, special ones, both ways."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from synkhronos._transport.communicators.half_precision import (
    FORMATS,
    Rounding,
    compressed,
    decompressed,
)

FLOATS = of_numpy.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32))
BITS = {"fp16": 11, "bf16": 8}  # of precision, the hidden one counted


@pytest.mark.parametrize("how", FORMATS)
@given(values=FLOATS)
def test_the_nearest_of_16_bits(how: str, values: np.ndarray) -> None:
    bits = compressed(values, how)
    assert bits.dtype == np.uint16
    back = decompressed(bits, how, np.dtype(np.float32))
    np.testing.assert_array_equal(np.isnan(back), np.isnan(values))
    largest, smallest = (65504.0, 6.2e-5) if how == "fp16" else (3.3e38, 1.2e-38)
    common = np.isfinite(values) & (np.abs(values) <= largest) & (np.abs(values) >= smallest)
    np.testing.assert_allclose(back[common], values[common], rtol=2.0 ** -BITS[how])
    infinite = np.isinf(values)
    np.testing.assert_array_equal(back[infinite], values[infinite])


@pytest.mark.parametrize("how", FORMATS)
def test_all_bit_patterns_come_back(how: str) -> None:
    """What has 16 bits already is not changed."""
    every = np.arange(1 << 16, dtype=np.uint16)
    values = decompressed(every, how, np.dtype(np.float32))
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(compressed(values, how)[numbers], every[numbers])


def test_ties_go_to_the_even_one() -> None:
    """1 + 2**-8 lies in the middle of two bf16 values, 1 + 3 * 2**-8 as well."""
    back = decompressed(
        compressed(np.array([1 + 2**-8, 1 + 3 * 2**-8]), "bf16"), "bf16", np.dtype(float)
    )
    assert back.tolist() == [1.0, 1 + 4 * 2**-8]


@pytest.mark.parametrize("how", FORMATS)
def test_chance_leaves_the_mean(how: str) -> None:
    """A value becomes one of its two neighbours; the mean of many is the value."""
    for value in (1.001, -0.3, 3e-6, 40_000.3, -1e-40 if how == "bf16" else -7e-8):
        values = np.full(20_000, value, np.float32)
        chance = Rounding(how, (1, 2)).generator()
        back = decompressed(compressed(values, how, chance), how, np.dtype(float))
        low, high = np.unique(back)
        assert low < values[0] < high
        error = (high - low) / 2 / np.sqrt(values.size)  # at most, of the mean
        assert abs(back.mean() - values[0]) < 5 * error
        nearest = decompressed(compressed(values[:1], how), how, np.dtype(float))
        assert nearest[0] in (low, high)


@pytest.mark.parametrize("how", FORMATS)
def test_chance_keeps_what_has_16_bits(how: str) -> None:
    """Infinite values too; and NaN stays NaN."""
    every = np.arange(1 << 16, dtype=np.uint16)
    values = decompressed(every, how, np.dtype(np.float32))
    found = compressed(values, how, Rounding(how, (3,)).generator())
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(found[numbers], every[numbers])
    assert np.isnan(decompressed(found[~numbers], how, np.dtype(np.float32))).all()
    if how == "fp16":
        large = np.array([7e4, -1e30, 65504.0], np.float32)
        bits = compressed(large, how, np.random.default_rng(0))
        assert decompressed(bits, how, large.dtype).tolist() == [np.inf, -np.inf, 65504.0]


def test_chance_follows_from_the_seeds() -> None:
    values = np.random.default_rng(0).standard_normal(500)

    def rounded(*seeds: int) -> list[int]:
        rounding = Rounding("bf16", seeds[:1]).part(seeds[1])
        return list(compressed(values, "bf16", rounding.generator()))

    assert rounded(1, 2) == rounded(1, 2)
    assert rounded(1, 2) != rounded(1, 3)
    assert rounded(1, 2) != rounded(2, 2)
    assert Rounding("bf16").part(3).generator() is None
