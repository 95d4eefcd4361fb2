"""The numba code of products of chosen rows, with a line for each column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.link.numba.dispatch.basic import numba_njit

from synkhronos._libraries.pytensor import compile_numba_function_src

VERSION = 1  # part of the key of cached machine code: change it whenever the code changes


def chosen_row_products(columns: int, dtype: np.dtype) -> Any:
    """A function of numba: (table, rows, index) -> the product of each row with a chosen one."""
    terms = [f"table[r, {k}] * rows[i, {k}]" for k in range(columns)]
    lines = [
        "def chosen_row_products(table, rows, index):",
        f"    if table.shape[1] != {columns} or rows.shape[1] != {columns}:",
        "        raise ValueError('the rows of two arrays have other lengths than expected')",
        "    if rows.shape[0] != index.size:",
        "        raise ValueError('there are other rows than indices')",
        "    out = np.empty(index.size, dtype)",
        "    for i in range(index.size):",
        "        r = np.intp(index[i])",
        "        r = r + table.shape[0] if r < 0 else r",
        f"        out[i] = {' + '.join(terms)}",
        "    return out",
    ]
    return _compiled(lines, dtype)


def sums_of_rows_by_index(columns: int, dtype: np.dtype) -> Any:
    """A function of numba: (factors, rows, index, length) -> sums of factor times row by index."""
    lines = [
        "def sums_of_rows_by_index(factors, rows, index, length):",
        f"    if rows.shape[1] != {columns}:",
        "        raise ValueError('rows have another length than expected')",
        "    if rows.shape[0] != index.size or factors.size != index.size:",
        "        raise ValueError('there are other rows than indices')",
        f"    out = np.zeros((length.item(), {columns}), dtype)",
        "    for i in range(index.size):",
        "        r = np.intp(index[i])",
        "        r = r + out.shape[0] if r < 0 else r",
        "        factor = factors[i]",
        *[f"        out[r, {k}] += factor * rows[i, {k}]" for k in range(columns)],
        "    return out",
    ]
    return _compiled(lines, dtype)


def _compiled(lines: Sequence[str], dtype: np.dtype) -> Any:
    name = lines[0].removeprefix("def ").partition("(")[0]
    names = {"np": np, "dtype": dtype}
    return numba_njit(compile_numba_function_src("\n".join(lines), name, names))
