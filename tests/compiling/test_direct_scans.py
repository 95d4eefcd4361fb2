"""Machine code of loops over time, written without numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import clone_replace
from scan_graphs import GRAPHS, LENGTH, VALUES, M, V, X, autoregression, scanned, with_slopes
from selection import thorough
from written_code import Made

from synkhronos._compiling.direct.unfit import UnfitError
from synkhronos._compiling.kept.machine_code import ANOTHER_LENGTH
from synkhronos._compiling.lean.c_functions import FAILED, SUCCESS

POINT = np.concatenate([VALUES[v].ravel() for v in (X, V, M)])
POINTS = POINT, POINT * 0.7, -POINT


def made(build: Callable[[], list[Any]], *data: np.ndarray, of: Any = LENGTH) -> Made:
    def on(point: Any, *given: Any) -> list[Any]:
        pairs = [(X, point[0]), (V, point[1:4]), (M, point[4:8].reshape((2, 2)))]
        return clone_replace(build(), [*pairs, (of, given[0])], rebuild_strict=False)

    return Made(on, *data, length=len(POINT), rewrites=True)


@pytest.mark.parametrize("graph", GRAPHS)
def test_values_and_slopes(graph: Callable[[], Any]) -> None:
    function = made(lambda: with_slopes(graph), np.array(7))
    for point in POINTS:
        status, found = function.at(point)
        assert status == SUCCESS
        expected = function.plain(point, *function.data)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 2, *thorough(3, 50)])
def test_other_numbers_of_steps(steps: int) -> None:
    """Buffers that are circular have more rows than steps, or fewer."""
    function = made(lambda: [autoregression()[-1], *with_slopes(autoregression)], np.array(steps))
    for point in POINTS:
        _, found = function.at(point)
        expected = function.plain(point, *function.data)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    assert function.at(POINT, np.array(steps + 1))[0] == ANOTHER_LENGTH


def _last_of_few(index: Any) -> Any:
    def step(i: Any, before: Any, last: Any) -> Any:
        return X * before + V[i] * last

    initial = {"initial": V[:2], "taps": [-2, -1]}
    return scanned(step, sequences=[index], outputs_info=[initial])[-1]


def _set(index: Any) -> Any:
    def step(i: Any, z: Any) -> Any:
        return pt.set_subtensor(z[i], X)

    return scanned(step, sequences=[index], outputs_info=[V])


@pytest.mark.parametrize("graph", [_last_of_few, _set])
def test_an_index_that_is_out_of_bounds_is_an_error(graph: Callable[[Any], Any]) -> None:
    index = pt.lvector("index")
    function = made(lambda: [graph(index)], np.array([0, 2, 1, -3, -1]), of=index)
    for point in POINTS:
        status, found = function.at(point)
        assert status == SUCCESS
        expected = function.plain(point, *function.data)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    for wrong in (3, -4, 2**62):
        assert function.at(POINT, np.array([0, wrong, 1, 1, 1]))[0] == FAILED


def test_other_scans_are_left_to_numba() -> None:
    def build() -> list[Any]:
        return [scanned(lambda z: pt.sort(z) * X, outputs_info=[V], n_steps=3)]

    with pytest.raises(UnfitError, match="Scan"):
        made(build, np.array(7))
