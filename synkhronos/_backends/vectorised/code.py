"""Functions on numbers as numba code, inlined into the loops that call them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
from numba.extending import intrinsic

from synkhronos._backends.vectorised.real import Real


@functools.cache
def inlined(function: Callable[..., Real]) -> Any:
    """A function of one float64 or float32 for numba's loops.

    It is a function of its own: a caller may allow changes of sums, which would change instructions
    that are part of it.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def write(typingctx: Any, x: Any) -> Any:
        del typingctx

        def generate(_: Any, builder: Any, __: Any, given: Any) -> Any:
            return function(Real(builder, given[0])).value

        return x(x), generate

    def code(x: Any) -> Any:
        return write(x)

    # without the option a function has that of its first caller
    return numba.njit(
        code, fastmath=False, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )
