"""Fills, splits and checks of shapes, with messages that need no formatting.

Numba compiles the conversion of numbers to text, and the concatenation, for 2 s for each operation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.link.numba.dispatch.basic import numba_njit

from synkhronos._compiling.lean.reductions import flat
from synkhronos._libraries.pytensor import compile_numba_function_src

VERSION = 1  # part of the key of cached machine code: change it whenever the code changes


def fill(ndim: int, value_ndim: int, dtype: np.dtype) -> Any:
    """A function of numba: (value, *lengths) -> a new array that holds the value everywhere."""
    lengths = [f"n{i}" for i in range(ndim)]
    item = "value.item()" if value_ndim == 0 else f"value[{', '.join('0' * value_ndim)}]"
    source = "\n".join(
        [
            f"def alloc({', '.join(['value', *lengths])}):",
            f"    out = np.empty(({''.join(f'{n}.item(), ' for n in lengths)}), dtype)",
            "    o = flat(out)",
            f"    item = {item}",
            "    for i in range(o.size):",
            "        o[i] = item",
            "    return out",
        ]
    )
    names = {"np": np, "flat": flat, "dtype": dtype}
    return numba_njit(compile_numba_function_src(source, "alloc", names))


def checked_shape(checked: Sequence[bool]) -> Any:
    """A function of numba: (x, *lengths) -> x, for the axes whose length is checked."""
    lengths = [f"n{i}" for i in range(len(checked))]
    lines = [f"def specify_shape({', '.join(['x', *lengths])}):"]
    for axis, is_checked in enumerate(checked):
        if is_checked:
            text = f"SpecifyShape: axis {axis} of the input has another length than expected"
            lines += [f"    if x.shape[{axis}] != n{axis}.item():"]
            lines += [f"        raise AssertionError({text!r})"]
    lines += ["    return x"]
    return numba_njit(compile_numba_function_src("\n".join(lines), "specify_shape", {}))


def split(axis: int, pieces: int) -> Any:
    """A function of numba: (x, sizes) -> views of x, one after the other along an axis."""
    ends = ["0", *[f"e{i}" for i in range(pieces)]]
    before = ":, " * axis
    source = "\n".join(
        [
            "def split(x, sizes):",
            f"    if len(sizes) != {pieces}:",
            f"        raise ValueError('Split: {pieces} sizes are needed')",
            *[f"    e{i} = {ends[i]} + int(sizes[{i}])" for i in range(pieces)],
            f"    if {' or '.join(f'{b} < {a}' for a, b in itertools.pairwise(ends))}:",
            "        raise ValueError('Split: a size is negative')",
            f"    if {ends[-1]} != x.shape[{axis}]:",
            "        raise ValueError('Split: the sizes do not add up to the length')",
            f"    return {', '.join(f'x[{before}{a}:{b}]' for a, b in itertools.pairwise(ends))}",
        ]
    )
    return numba_njit(compile_numba_function_src(source, "split", {}))
