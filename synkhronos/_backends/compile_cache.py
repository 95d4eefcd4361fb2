"""What keeps a compiled function out of the cache from which other members load it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytensor
from pytensor.graph.basic import Constant

from synkhronos._backends import jax as jax_backend


def while_compiling(jax: bool) -> AbstractContextManager[None]:
    """The circumstances under which the first member compiles and the others load."""
    return jax_backend.shared_cache() if jax else contextlib.nullcontext()


def uncacheable(function: Any) -> Iterator[str]:
    """Why numba will not cache a compiled PyTensor function; nothing for other linkers."""
    if type(function.maker.linker).__name__ != "NumbaLinker":
        return
    dispatch = importlib.import_module("pytensor.link.numba.dispatch.basic")
    limit = dispatch.NUMBA_CONSTANT_SIZE_LIMIT
    graph = function.maker.fgraph
    for variable in graph.variables:
        size = getattr(getattr(variable, "data", None), "nbytes", 0)
        if isinstance(variable, Constant) and size > limit:
            yield (
                f"constant {variable.name or variable.type} of {size:,} bytes is too large for "
                "numba's cache; hold it in a shared variable"
            )
    for kind in {type(node.op) for node in graph.apply_nodes}:
        if not _has_key(dispatch, kind):
            yield (
                f"operation {kind.__name__} has no cache key; register it with "
                "register_funcify_default_op_cache_key"
            )


def _has_key(dispatch: Any, kind: type) -> bool:
    """Whether numba can tell code generated for this class of operations from other code."""
    for single in (
        dispatch.numba_funcify_and_cache_key,
        dispatch.numba_funcify_default_op_cache_key,
    ):
        if single.dispatch(kind) is not single.dispatch(object):
            return True
    return False


def import_numba() -> None:
    """Import PyTensor's numba dispatch once, before the workers start, if it will be needed.

    Forked workers then have it for nothing; imported by each, it costs them 0.6 s.
    """
    mode = str(pytensor.config.mode)
    linker = str(pytensor.config.linker)
    if mode == "NUMBA" or (mode == "Mode" and linker in ("auto", "numba")):
        importlib.import_module("pytensor.link.numba.dispatch")
