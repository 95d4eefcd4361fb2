"""The divided likelihood in numba code: a call back into Python."""

from __future__ import annotations

import zlib
from typing import Any

import numba
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key

from synkhronos._compiling.lean.rewrite import register_where
from synkhronos._libraries.pytensor import get_numba_type
from synkhronos.pymc._density.op import DividedLogp, evaluate


@register_funcify_default_op_cache_key(DividedLogp)  # type: ignore[untyped-decorator]
def _funcify(op: DividedLogp, node: Any, **kwargs: Any) -> tuple[Any, int]:
    """Call `evaluate` with a number: code that holds no object can be cached.

    The cached code calls `evaluate` by module and name, so both are part of the cache's key.
    """
    number, gradient = op.number, op.gradient
    kinds = numba.types.Tuple([get_numba_type(o.type) for o in node.outputs])

    @numba_njit
    def divided_logp(*inputs: Any) -> Any:
        with numba.objmode(found=kinds):
            found = evaluate(number, gradient, *inputs)
        return found

    @numba_njit
    def value_alone(*inputs: Any) -> Any:
        return divided_logp(*inputs)[0]

    return divided_logp if gradient else value_alone, zlib.crc32(
        f"3 {evaluate.__module__} {evaluate.__name__}".encode()
    )


register_where(DividedLogp)  # PyMC compiles the model's function, which checks shapes
