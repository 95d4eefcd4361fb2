"""C functions around numba's: values, codes, memory, and their machine code in another process."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core.runtime import _nrt_python, rtsys
from user_scripts import run_script

from synkhronos._compiling.kept.machine_code import CFunction
from synkhronos._compiling.kept.pickles import pickled
from synkhronos._compiling.lean import c_functions

LENGTH = 2
DATA = (np.array([2, 3], np.int32), np.array([[True, False, True]]))
RECORD = np.array([DATA[0].ctypes.data, 2, DATA[1].ctypes.data, 1, 3], np.uintp)
PLACES = [c_functions.Place.of(DATA[0], 0, 1), c_functions.Place.of(DATA[1], 2, 3)]


def called(function: CFunction, *numbers: int, arrays: Sequence[np.ndarray]) -> int:
    """The code of a call with these numbers and arrays, and the record."""
    kinds = [ctypes.c_uint64] * len(numbers) + [ctypes.c_void_p] * (len(arrays) + 1)
    code = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(function.address)
    found: int = code(*numbers, *[a.ctypes.data for a in arrays], RECORD.ctypes.data)
    return found


def gradient_of(function: CFunction, *point: float) -> tuple[int, list[float]]:
    """The code, and the value and the gradient that are written."""
    x, gradient, value = np.array(point), np.full(LENGTH, 7.0), np.full(1, 7.0)
    code = called(function, len(x), arrays=[x, gradient, value])
    return code, [*value, *gradient]


@pytest.fixture(scope="module")
def density() -> CFunction:
    """Of a function that raises with a text, or with a number of the call, if so asked."""

    @numba.njit
    def of_point(x: Any, counts: Any, flags: Any) -> Any:
        if x[0] == 100.0:
            raise ValueError("a text")
        if x[0] == 200.0:
            raise ValueError(x[1])
        value, gradient = np.empty(()), np.empty(4, np.float32)[::2]
        value[()] = x[0] / counts[0] + flags.shape[1] + flags[0, 2]
        for i in range(len(x)):
            gradient[i] = x[i] * counts[i]
        return value, gradient

    return c_functions.log_density(of_point, LENGTH, PLACES)


@pytest.fixture
def counted() -> Iterator[None]:
    """With numba's counts of allocations."""
    _nrt_python.memsys_enable_stats()
    yield
    _nrt_python.memsys_disable_stats()


def test_values_and_codes(density: CFunction) -> None:
    """Numbers of any dtype and arrays with strides are written as doubles."""
    assert gradient_of(density, 1.5, 0.1) == (0, [4.75, 3.0, float(np.float32(0.1 * 3))])
    for point, code in (
        ((1.0,), -1),
        ((1.0, 2.0, 3.0), -1),
        ((100.0, 2.0), 1),
        ((200.0, 2.0), 1),
        ((1.0, np.nan), 3),
        ((np.inf, 0.0), 3),
        ((1e39, 0.0), 3),  # not as a number of 32 bits
    ):
        assert gradient_of(density, *point)[0] == code, point


def test_a_value_that_is_not_finite_has_its_own_code() -> None:
    """Where the gradient is finite."""

    @numba.njit(error_model="numpy")
    def unbounded(x: Any) -> Any:
        return np.log(x[0]), x

    found = c_functions.log_density(unbounded, LENGTH, [])
    assert gradient_of(found, 0.0, 2.0) == (4, [-np.inf, 0.0, 2.0])
    assert gradient_of(found, 1.0, 2.0) == (0, [0.0, 1.0, 2.0])


def test_an_expansion_writes_all_variables() -> None:
    @numba.njit
    def all_of(x: Any, counts: Any, flags: Any) -> Any:
        if x[0] < 0:
            raise ValueError("negative")
        return (counts,)

    found = c_functions.expansion(all_of, LENGTH, 2, PLACES)
    x, out = np.zeros(LENGTH), np.full(3, 7.0)
    assert called(found, LENGTH, 2, arrays=[x, out]) == 0
    assert list(out) == [2.0, 3.0, 7.0]
    assert called(found, LENGTH, 3, arrays=[x, out]) == -1
    assert called(found, 3, 2, arrays=[x, out]) == -1
    assert called(found, LENGTH, 2, arrays=[x - 1, out]) == -2


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("point", [(1.5, 0.1), (100.0, 0.0), (200.0, 5.0), (1.0, np.nan)])
def test_nothing_stays_allocated(density: CFunction, point: tuple[float, ...]) -> None:
    """Results are freed, and what numba allocates for an exception with a number."""
    before = rtsys.get_allocation_stats()
    for _ in range(50):
        gradient_of(density, *point)
    after = rtsys.get_allocation_stats()
    assert after.alloc - before.alloc == after.free - before.free
    assert after.mi_alloc - before.mi_alloc == after.mi_free - before.mi_free
    assert after.alloc > before.alloc or point[0] == 100.0


LOADED = """
    import ctypes, sys
    from pathlib import Path
    import numpy as np
    from synkhronos._compiling.kept.machine_code import CFunction
    from synkhronos._compiling.kept.pickles import unpickled
    for name in sys.argv[1:]:
        function = CFunction.of(unpickled(Path(name).read_bytes()))
        x, gradient, value = np.array([1.5, 0.1]), np.zeros(2), np.zeros(1)
        code = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, *[ctypes.c_void_p] * 4)
        code = code(function.address)(2, *[a.ctypes.data for a in (x, gradient, value)], None)
        print(code, *[number.hex() for number in [*value, *gradient]], "numba" in sys.modules)
"""


def test_another_process_loads_the_machine_code(tmp_path: Path) -> None:
    """It imports no numba, and computes the same bits; so does this process."""

    @numba.njit
    def of_point(x: Any) -> Any:
        return np.exp(x[0]), np.sin(x)

    found = c_functions.log_density(of_point, LENGTH, [])
    assert found.code is not None
    (tmp_path / "code").write_bytes(pickled(found.code))
    code, numbers = gradient_of(found, 1.5, 0.1)
    wanted = [str(code), *[float(number).hex() for number in numbers], "False"]
    assert run_script(tmp_path, LOADED, "code").split() == wanted
    assert gradient_of(CFunction.of(found.code), 1.5, 0.1) == (code, numbers)


def test_code_with_addresses_of_this_process_is_not_kept() -> None:
    """numba writes the address of a function of C into the code."""
    double = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(lambda number: 2 * number)

    @numba.njit
    def of_point(x: Any) -> Any:
        return double(x[0]), x

    found = c_functions.log_density(of_point, LENGTH, [])
    assert found.code is None
    assert gradient_of(found, 1.5, 0.1) == (0, [3.0, 1.5, 0.1])
