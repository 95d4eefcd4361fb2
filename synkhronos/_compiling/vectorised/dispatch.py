"""Tells PyTensor's numba linker the code of vectorised operations, and of loops that have some."""

from __future__ import annotations

from importlib import import_module
from types import FunctionType, SimpleNamespace
from typing import Any

from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import Elemwise

from synkhronos._compiling.vectorised.code import VERSION, inlined
from synkhronos._compiling.vectorised.op import Vectorised, has_vectorised
from synkhronos._compiling.vectorised.table import TABLE
from synkhronos._libraries.pytensor import (
    FusedElemwise,
    ScalarizedElemwise,
    fgraph_to_python,
    numba_funcify_and_cache_key,
    numba_funcify_Composite,
    numba_funcify_FusedElemwise,
    numba_typify,
    register_funcify_and_cache_key,
)


@register_funcify_and_cache_key(Vectorised)  # type: ignore[untyped-decorator]
def _funcify(op: Vectorised, node: Any, **kwargs: Any) -> tuple[Any, str]:
    """Return a function of numba, and the key of its machine code.

    Numba itself adds the dtype of the arguments to the key.
    """
    module, name = TABLE[type(op.plain)]
    function = getattr(import_module(f"{__package__}.{module}"), name)
    return inlined(function, op.nin), f"{__name__}.{name}.{VERSION}"


@register_funcify_and_cache_key(Composite)  # type: ignore[untyped-decorator]
def _funcify_composite(op: Any, node: Any, **kwargs: Any) -> tuple[Any, str | None]:
    """Return a function that becomes part of the loop, whatever its size.

    PyTensor's own is called by the loop if it is large, and a loop with a call is not vectorised.
    It serves graphs without vectorised operations.
    """
    function, key = numba_funcify_Composite(op, node, **kwargs)
    if key is None or not has_vectorised(op):
        return function, key

    def converted(operation: Any, *, node: Any, **given: Any) -> Any:
        return numba_funcify_and_cache_key(operation, node=node, **given)[0]

    kwargs.pop("storage_map", None)
    source = fgraph_to_python(
        op.fgraph,
        op_conversion_fn=converted,
        type_conversion_fn=numba_typify,
        fgraph_name="composite",
        squeeze_output=True,
        **kwargs,
    )
    return numba_njit(source, forceinline=True), f"{key}.inlined.{VERSION}"


def _inlined_njit(function: Any) -> Any:
    return numba_njit(function, forceinline=True)


_funcify_loop: Any = FunctionType(
    numba_funcify_FusedElemwise.__code__,
    {
        **numba_funcify_FusedElemwise.__globals__,
        "numba_basic": SimpleNamespace(numba_njit=_inlined_njit),
    },
    argdefs=numba_funcify_FusedElemwise.__defaults__,
)


@register_funcify_and_cache_key(FusedElemwise)  # type: ignore[untyped-decorator]
@register_funcify_and_cache_key(ScalarizedElemwise)  # type: ignore[untyped-decorator]
def _funcify_fused(op: Any, node: Any, **kwargs: Any) -> tuple[Any, str | None]:
    """Return PyTensor's loop, of which functions of numbers become part whatever their size.

    PyTensor puts one around the loop's own function if an input is a number.
    """
    [inner] = [n for n in op.fgraph.apply_nodes if isinstance(n.op, Elemwise)]
    if not has_vectorised(inner.op.scalar_op):
        found: tuple[Any, str | None] = numba_funcify_FusedElemwise(op, node, **kwargs)
        return found
    function, key = _funcify_loop(op, node, **kwargs)
    return function, None if key is None else f"{key}.inlined.{VERSION}"
