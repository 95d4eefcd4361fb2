"""Functions on numbers as numba code, inlined into the loops that call them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
from numba.extending import intrinsic

from synkhronos._compiling.vectorised.real import Real

VERSION = 30  # part of the key of cached machine code: change it whenever the code changes


@functools.cache
def inlined(function: Callable[..., Real], count: int = 1) -> Any:
    """A function of one or two float64 or float32 for numba's loops.

    It is a function of its own: a caller may allow changes of sums, which would change instructions
    that are part of it.
    """

    def write(typingctx: Any, *given: Any) -> Any:
        del typingctx

        def generate(_: Any, builder: Any, __: Any, values: Any) -> Any:
            return function(*[Real(builder, v) for v in values]).value

        return given[0](*given), generate

    @intrinsic  # type: ignore[untyped-decorator]
    def write_one(typingctx: Any, x: Any) -> Any:
        return write(typingctx, x)

    @intrinsic  # type: ignore[untyped-decorator]
    def write_two(typingctx: Any, x: Any, y: Any) -> Any:
        return write(typingctx, x, y)

    def of_one(x: Any) -> Any:
        return write_one(x)

    def of_two(x: Any, y: Any) -> Any:
        return write_two(x, y)

    # without the option for sums a function has that of its first caller
    return numba.njit(
        of_one if count == 1 else of_two,
        fastmath=False,
        forceinline=True,
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
    )
