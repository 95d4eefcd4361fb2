"""The compile cache from which members load what the first member has compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytensor
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Constant
from pytensor.link.basic import JITLinker
from pytensor.link.numba.linker import NumbaLinker

from synkhronos._compiling.kept.folder import kept_folder
from synkhronos._libraries.library import optional_gain, usable
from synkhronos._libraries.pytensor import PYTENSOR


def compiles_at_call(mode: object) -> bool:
    """Whether a function of this mode gets its machine code at its first call, not when made.

    In such a mode (NUMBA, JAX) a function is made by rewriting its graph, which no cache holds.
    """
    return isinstance(get_mode(mode).linker, JITLinker)


def fills_cache_of_numba(mode: object) -> bool:
    """Whether functions of this mode leave machine code of numba for other processes."""
    return pytensor.config.numba__cache and isinstance(get_mode(mode).linker, NumbaLinker)


def uncacheable(function: Any) -> Iterator[str]:
    """The reasons why numba does not cache a function; none for other linkers."""
    if not _is_of_numba(function):
        return
    graph = getattr(function.maker.linker, "graph", None) or function.maker.fgraph
    with optional_gain():
        for variable in graph.variables:
            size = getattr(getattr(variable, "data", None), "nbytes", 0)
            limit = PYTENSOR.get("NUMBA_CONSTANT_SIZE_LIMIT")
            if isinstance(variable, Constant) and size > limit:
                yield (
                    f"constant {variable.name or variable.type} of {size:,} bytes is too large for "
                    "numba's cache; hold it in a shared variable"
                )
        for kind in {type(node.op) for node in graph.apply_nodes}:
            if not _has_key(kind):
                yield (
                    f"operation {kind.__name__} has no cache key; register it with "
                    "register_funcify_default_op_cache_key"
                )


def operations_of(function: Any) -> Callable[[], tuple[int, int]] | None:
    """How many of a function's operations numba has compiled, and how many there are.

    numba compiles a function at its first call, one operation after the other. None for other
    linkers, which do not show how far they are.
    """
    if not _is_of_numba(function):
        return None
    found = _compiled_within(function.vm.jit_fn)
    while len(found) == 1:  # the linker wraps the graph's function
        found = _compiled_within(found[0])
    if not found:
        return None
    return lambda: (sum(bool(each.overloads) for each in found), len(found))


def _is_of_numba(function: Any) -> bool:
    """Whether numba compiles a function of PyTensor: not one whose machine code is kept."""
    found = isinstance(function.maker.linker, NumbaLinker)
    return found and hasattr(function.vm.jit_fn, "py_func")


def _compiled_within(dispatcher: Any) -> list[Any]:
    """The functions of numba that a function of numba calls by a global name."""
    function = dispatcher.py_func
    named = [function.__globals__.get(name) for name in function.__code__.co_names]
    return [each for each in named if hasattr(each, "overloads") and hasattr(each, "py_func")]


def _has_key(kind: type) -> bool:
    """Whether this class of operations has a cache key of its own."""
    registers = ("numba_funcify_and_cache_key", "numba_funcify_default_op_cache_key")
    found = [PYTENSOR.get(name) for name in registers]
    return any(each.dispatch(kind) is not each.dispatch(object) for each in found)


def import_numba() -> None:
    """Import PyTensor's numba dispatch before the workers start, if the mode uses numba.

    Forked workers inherit it; an import in each worker takes 0.6 s. Where functions are kept, it
    may be that none is compiled.
    """
    folder = kept_folder()
    if folder is not None and folder.size()[0]:
        return
    mode = str(pytensor.config.mode)
    linker = str(pytensor.config.linker)
    if mode == "NUMBA" or (mode == "Mode" and linker in ("auto", "numba")):
        usable("synkhronos._compiling.lean.dispatch")
