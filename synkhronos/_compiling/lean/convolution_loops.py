"""The numba code of a `Convolution`."""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.link.numba.dispatch.basic import numba_njit

from synkhronos._libraries.pytensor import compile_numba_function_src

VERSION = 2  # part of the key of cached machine code: change it whenever the code changes


@numba_njit
def _valid(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    """The outputs of which all of y meets x; y is reversed and not longer."""
    if out.size < y.size:
        for i in range(out.size):
            part = x[i : i + y.size]
            total = part[0] * y[0]
            for j in range(1, y.size):
                total += part[j] * y[j]
            out[i] = total
        return
    out[:] = 0
    for j in range(y.size):
        part, factor = x[j : j + out.size], y[j]
        for i in range(out.size):
            out[i] += part[i] * factor


@numba_njit
def _full(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    """All outputs; y is reversed and not longer."""
    out[:] = 0
    for j in range(y.size):
        part, factor = out[j : j + x.size], y[y.size - 1 - j]
        for i in range(x.size):
            part[i] += x[i] * factor


def convolution(ndim: int, dtype: np.dtype) -> Any:
    """A function of numba: (x, y, full) -> the rows of both, convolved along the last axis.

    Parameters
    ----------
    ndim : int
        Of both operands.
    dtype : dtype
        Of both, and of the result.
    """
    last = ndim - 1
    lines = ["def convolved(x, y, full):"]
    for axis in range(last):
        lines += [
            f"    a{axis}, b{axis} = x.shape[{axis}], y.shape[{axis}]",
            f"    if a{axis} != b{axis} and a{axis} != 1 and b{axis} != 1:",
            f"        raise ValueError('convolve1d: axis {axis} of the operands does not fit')",
            f"    n{axis} = b{axis} if a{axis} == 1 else a{axis}",
        ]
    lengths = "".join(f"n{axis}, " for axis in range(last))
    lines += [
        f"    row, kernel = np.empty(x.shape[{last}], dtype), np.empty(y.shape[{last}], dtype)",
        "    if kernel.size == 0:",
        "        raise ValueError('convolve1d: an operand has no elements')",
        "    more = kernel.size - 1",
        f"    out = np.empty(({lengths}row.size + (more if full else -more),), dtype)",
    ]
    for axis in range(last):
        tab = "    " * (1 + axis)
        lines += [
            f"{tab}for i{axis} in range(n{axis}):",
            f"{tab}    p{axis} = 0 if a{axis} == 1 else i{axis}",
            f"{tab}    q{axis} = 0 if b{axis} == 1 else i{axis}",
        ]
    tab = "    " * ndim
    places = ["".join(f"{name}{axis}, " for axis in range(last)) for name in ("p", "q", "i")]
    lines += [
        f"{tab}for i in range(row.size):",
        f"{tab}    row[i] = x[{places[0]}i]",
        f"{tab}for i in range(kernel.size):",
        f"{tab}    kernel[i] = y[{places[1]}kernel.size - 1 - i]",
        f"{tab}if full:",
        f"{tab}    all_outputs(row, kernel, out[{places[2]}:])",
        f"{tab}else:",
        f"{tab}    valid_outputs(row, kernel, out[{places[2]}:])",
        "    return out",
    ]
    names = {"np": np, "dtype": dtype, "all_outputs": _full, "valid_outputs": _valid}
    convolved = numba_njit(compile_numba_function_src("\n".join(lines), "convolved", names))

    @numba_njit
    def convolve(x: np.ndarray, y: np.ndarray, full: np.ndarray) -> np.ndarray:
        if x.shape[last] < y.shape[last]:
            return convolved(y, x, full.item())
        return convolved(x, y, full.item())

    return convolve
