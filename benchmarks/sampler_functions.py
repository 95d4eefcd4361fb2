"""The C function of value and gradient that a sampler calls, called as it does: not by Python.

A call by ctypes takes 3 microseconds; the gradients of many models take less.
"""

from __future__ import annotations

import ctypes
import math
import time
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types
from numba.experimental import function_type

assert function_type  # its import makes numba know the protocol


class SamplerFunction(types.WrapperAddressProtocol):
    """A C function of value and gradient at a point.

    Parameters
    ----------
    address : int
    arguments : sequence of int
        Those of each call: pointers and sizes.
    kept : object
        Owns the memory of the function and of its arguments.
    """

    def __init__(self, address: int, arguments: tuple[int, ...], kept: object) -> None:
        self._address, self._arguments, self._kept = address, arguments, kept

    def __wrapper_address__(self) -> int:
        return self._address

    def signature(self) -> Any:
        return _signature(len(self._arguments))

    def seconds(self, times: int) -> float:
        """Of this many calls."""
        began = time.perf_counter()
        failed = _repeated(self, times, self._arguments)
        found = time.perf_counter() - began
        if failed:
            raise RuntimeError("the model has no density at the starting point")
        return found


def _signature(arguments: int) -> Any:
    return types.int32(*[types.intp] * arguments)


def _compiled_for(arguments: int) -> Any:
    given = types.FunctionType(_signature(arguments)), types.intp
    return types.intp(*given, types.UniTuple(types.intp, arguments))


@numba.njit([_compiled_for(arguments) for arguments in (4, 5)])  # when this module is imported
def _repeated(function: Any, times: int, arguments: Any) -> int:
    failed = 0
    for _ in range(times):
        failed |= function(*arguments)
    return failed


def of_nutpie(compiled: Any, x: np.ndarray) -> SamplerFunction:
    """That of a compiled model of nutpie, at a point."""
    gradient, value = np.empty_like(x), np.empty(1)
    arrays = x, gradient, value, compiled.user_data
    addresses = [array.ctypes.data for array in arrays]
    kept = compiled, arrays
    return SamplerFunction(compiled.compiled_logp_func.address, (len(x), *addresses), kept)


class Results(NamedTuple):
    """What the functions of a compiled model of nutpie give at a point.

    Attributes
    ----------
    value : float
        NaN where the function tells the sampler to refuse the point.
    gradient : array
    drawn : array
        All variables that a draw has, one after another.
    """

    value: float
    gradient: np.ndarray
    drawn: np.ndarray


def results_at(compiled: Any, x: np.ndarray) -> Results:
    """The results of both functions of a compiled model of nutpie at a point."""
    value, gradient = np.full(1, np.nan), np.full(x.size, np.nan)
    drawn = np.full(compiled.n_expanded, np.nan)

    def status(function: Any, *given: Any) -> int:
        arguments = [v.ctypes.data if isinstance(v, np.ndarray) else v for v in given]
        kinds = [ctypes.c_int64, *[ctypes.c_size_t] * len(arguments)]
        return ctypes.CFUNCTYPE(*kinds)(function.address)(*arguments)

    data = compiled.user_data
    refused = status(compiled.compiled_logp_func, x.size, x, gradient, value, data)
    status(compiled.compiled_expand_func, x.size, drawn.size, x, drawn, data)
    return Results(math.nan if refused else float(value[0]), gradient, drawn)


def of_stanli(text: str, data: Any) -> SamplerFunction:
    """That of stanli's fast mode, at a point where the program has a density."""
    import stanli

    model = stanli.Model(stan_code=text, data=data, fast_math=True)
    rng = np.random.default_rng(1)
    for width in (0.0, 0.1, *[2.0] * 20):
        x = rng.uniform(-width, width, model.n_unconstrained)
        try:
            model.log_prob_grad(x)
        except RuntimeError:
            continue
        break
    value, gradient = np.empty(1), np.empty_like(x)
    arrays = x, value, gradient
    addresses = [array.ctypes.data for array in arrays]
    function = _address(ctypes.cast(stanli._lib.stanli_grad, ctypes.c_void_p))
    return SamplerFunction(function, (_address(model._m), *addresses), (model, arrays))


def _address(pointer: Any) -> int:
    found = getattr(pointer, "value", pointer)
    assert isinstance(found, int)
    return found
