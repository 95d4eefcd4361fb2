"""C functions of a standardised point, by numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")
from synkhronos._compiling.lean.standardised import AffineMap, StandardisedRecord, functions

LENGTH = 5
POINTER = ctypes.POINTER(ctypes.c_double)
DENSITY = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, *[POINTER] * 3, ctypes.c_void_p)
EXPANSION = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, POINTER, POINTER, ctypes.c_void_p
)
DATA, STATUS = 77, 3  # arbitrary


def pointer(array: np.ndarray) -> Any:
    return array.ctypes.data_as(POINTER)


def address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@pytest.fixture
def matrix(rng: np.random.Generator) -> np.ndarray:
    root = rng.normal(size=(LENGTH, LENGTH))
    return root @ root.T


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def a_map(rng: np.random.Generator, rank: int) -> AffineMap:
    directions = np.linalg.qr(rng.normal(size=(LENGTH, LENGTH)))[0].T[:rank]
    scales, factors = rng.uniform(0.1, 3, LENGTH), rng.uniform(-0.9, 4, rank)
    return AffineMap(rng.normal(size=LENGTH), scales, directions, factors)


@pytest.mark.parametrize("rank", [0, 2, LENGTH])
def test_value_gradient_and_variables_are_those_of_the_point(
    rng: np.random.Generator, matrix: np.ndarray, rank: int
) -> None:
    by, heard = a_map(rng, rank), []

    def normal(length: int, point: Any, gradient: Any, value: Any, data: int) -> int:
        heard.append(data)
        x = np.array(point[:length])
        value[0], gradient[:length] = -0.5 * x @ matrix @ x, -matrix @ x
        return STATUS

    def doubled(length: int, expanded: int, point: Any, variables: Any, data: int) -> int:
        heard.append(data)
        variables[:expanded] = 2 * np.array(point[:length])
        return STATUS

    inner = DENSITY(_listing(normal)), EXPANSION(_listing(doubled))
    record = StandardisedRecord(address(inner[0]), address(inner[1]), DATA, by)
    density, expansion = (f.address for f in functions())
    z, gradient, value = rng.normal(size=LENGTH), np.empty(LENGTH), np.empty(1)
    given = [LENGTH, pointer(z), pointer(gradient), pointer(value), record.words.ctypes.data]

    x = by.points(z)
    step = np.diag(by.scales) @ (np.eye(LENGTH) + (by.directions.T * by.factors) @ by.directions)
    np.testing.assert_allclose(x, by.centre + step @ z)
    assert DENSITY(density)(*given) == STATUS
    np.testing.assert_allclose(value, -0.5 * x @ matrix @ x)
    np.testing.assert_allclose(gradient, step.T @ -matrix @ x)
    np.testing.assert_allclose(by.gradients(gradient), -matrix @ x)

    record.begin()
    assert DENSITY(density)(*given) == STATUS
    np.testing.assert_array_equal(gradient, 1)  # once
    assert DENSITY(density)(*given) == STATUS
    np.testing.assert_allclose(by.gradients(gradient), -matrix @ x)

    variables = np.empty(LENGTH)
    asked = [pointer(z), pointer(variables), record.words.ctypes.data]
    assert EXPANSION(expansion)(LENGTH, LENGTH, *asked) == STATUS
    np.testing.assert_allclose(variables, 2 * x)
    assert set(heard) == {DATA}


def _listing(function: Callable[..., int]) -> Callable[..., int]:
    """ctypes assigns lists to slices of pointers item by item only."""

    def call(*given: Any) -> int:
        return function(*[_Slices(g) if isinstance(g, POINTER) else g for g in given])

    return call


class _Slices:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getitem__(self, key: Any) -> Any:
        return self.inner[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        for i, each in enumerate(np.atleast_1d(value)):
            self.inner[i] = each
