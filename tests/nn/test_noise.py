"""Random numbers of words: their distribution, equal in all modes and for any members."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from selection import thorough

import synkhronos as synk
from synkhronos.nn import noise

WORDS = np.random.default_rng(0).integers(0, 2**63, 20_000, dtype="uint64")


def hashed(x: int) -> int:
    """The hash of a number with 32 bits, by Python's integers."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        x = (x ^ (x >> shift)) * factor % 2**32
    return x


def expected(word: int, columns: int) -> list[float]:
    """The definition, in plain Python."""
    bits = [hashed(hashed(word % 2**32) ^ hashed(c + 1)) >> 8 for c in range(2 * columns)]
    u = [(b + 0.5) / 2**24 for b in bits]
    return [
        float(np.sqrt(-2 * np.log(u[c])) * np.cos(2 * np.pi * u[columns + c]))
        for c in range(columns)
    ]


def drawn(*args: Any, mode: Any = FAST, rows: Any = WORDS, **options: Any) -> np.ndarray:
    words = pt.vector("words", dtype="uint64")
    return np.asarray(pytensor.function([words], noise(words, *args, **options), mode=mode)(rows))


def test_numbers_are_those_of_the_definition() -> None:
    rows = np.array([0, 1, 2**32 - 1, 2**63 + 5, 12_345_678_901_234], "uint64")
    found = drawn(3, rows=rows, dtype="float64")
    np.testing.assert_allclose(found, [expected(int(w), 3) for w in rows], rtol=1e-9, atol=1e-12)


def test_numbers_are_normal_or_uniform() -> None:
    found = drawn(4, dtype="float64")
    assert abs(found.mean(axis=0)).max() < 0.03
    np.testing.assert_allclose(np.cov(found.T), np.eye(4), atol=0.04)
    assert (found**4).mean() == pytest.approx(3, abs=0.15)
    flat = drawn(2, "uniform", dtype="float64")
    counts, _ = np.histogram(flat, bins=10, range=(-1, 1))
    np.testing.assert_allclose(counts, 4000, atol=300)
    assert abs(flat).max() <= 1


@pytest.mark.thorough  # in Python: the tests above; in JAX: the test below
@pytest.mark.parametrize("dtype", ["float32", *thorough("float64")])
def test_modes_agree(dtype: str) -> None:
    rows = WORDS[:50]
    found = drawn(3, dtype=dtype, mode="NUMBA", rows=rows)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, drawn(3, dtype="float64", rows=rows), atol=1e-5)


def test_jax_agrees() -> None:
    pytest.importorskip("jax")
    rows = WORDS[:50]
    found = drawn(3, dtype="float32", mode="JAX", rows=rows)
    np.testing.assert_allclose(found, drawn(3, dtype="float64", rows=rows), atol=1e-5)


def test_members_have_the_numbers_of_their_rows(group: synk.Group) -> None:
    """A mean over them is proved, and their rows are gathered in order."""
    words = pt.vector("words", dtype="uint64")
    z = noise(words, 2, dtype="float64")
    f = synk.function([words], [z, (z**2).mean()], mode=FAST)
    assert f.output_modes == ["gather", "avg"]
    rows, mean = f(WORDS[:7])
    whole = drawn(2, dtype="float64", rows=WORDS[:7])
    np.testing.assert_array_equal(rows, whole)
    np.testing.assert_allclose(mean, (whole**2).mean(), rtol=1e-12)


W = pt.vector("w", dtype="uint64")
BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "kind": (lambda: noise(W, 2, "cauchy"), synk.InputError, "kind='cauchy': use"),
    "columns": (lambda: noise(W, 0), synk.InputError, "columns=0: give an integer"),
    "dtype": (lambda: noise(W, 2, dtype="int8"), synk.InputError, "dtype='int8'"),
    "words": (lambda: noise(pt.dvector("w"), 2), synk.InputTypeError, "give pt.vector"),
    "array": (lambda: noise(np.ones(3), 2), synk.InputTypeError, "give pt.vector"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused(case: str) -> None:
    call, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        call()
