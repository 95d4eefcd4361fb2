"""Repeated calls without PyTensor's storage are those of the function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.raise_op import Assert

from synkhronos._backends.machine_code import repeated


def made(mode: str, profile: bool = False) -> tuple[Any, Any]:
    """Elements of an input, named by a shared variable; that variable."""
    x, at = pt.dvector("x"), pytensor.shared(np.array([0, 1]), name="at")
    inside = Assert("beyond the end")(at, pt.lt(at.max(), x.shape[0]))
    function = pytensor.function([x], [x[inside], x.sum()], mode=mode, profile=profile)
    function.trust_input = True
    return function, at


@pytest.mark.parametrize("mode", ["NUMBA", "FAST_COMPILE"])
def test_new_values_of_shared_variables_are_used(mode: str) -> None:
    function, at = made(mode)
    rows = np.arange(1.0, 5.0)
    again = repeated(function, (rows,))
    for places in ([0, 1], [3, 3]):
        at.set_value(np.array(places))
        found = again()
        for mine, its in zip(found, function(rows), strict=True):
            np.testing.assert_array_equal(mine, its)
    rows[0] = 7  # the array, and no copy of it
    assert float(again()[1]) == 16
    assert function(np.ones(4))[1] == 4  # another call does not change what is repeated
    assert float(again()[1]) == 16


@pytest.mark.parametrize("mode", ["NUMBA", "FAST_COMPILE"])
def test_errors_name_the_operation_as_pytensors_do(mode: str) -> None:
    function, at = made(mode)
    rows = np.arange(4.0)
    again = repeated(function, (rows,))
    again()
    at.set_value(np.array([0, 9]))
    said = []
    for call in (again, lambda: function(rows)):
        with (
            pytensor.config.change_flags(exception_verbosity="medium"),
            pytest.raises(AssertionError, match="beyond the end") as caught,
        ):
            call()
        said.append((str(caught.value), getattr(caught.value, "__notes__", [])))
    assert said[0] == said[1]
    assert "Apply node that caused the error" in "\n".join([said[0][0], *said[0][1]])
    at.set_value(np.array([2, 3]))
    assert np.asarray(again()[0]).tolist() == [2, 3]


def test_a_function_that_is_profiled_is_called_as_ever() -> None:
    function, _ = made("NUMBA", profile=True)
    again = repeated(function, (np.ones(3),))
    before = function.profile.fct_callcount
    again()
    assert function.profile.fct_callcount == before + 1
