"""Replaces scalar operations by vectorised ones, before loops are fused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from pytensor.compile.mode import optdb
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.tensor.basic import constant
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import cast
from pytensor.tensor.symbolic import FusibleSymbolicOp, FusibleSymbolicOpDerivative
from pytensor.tensor.variable import TensorConstant

from synkhronos._backends.vectorised.indexed import SumsByIndexOutside
from synkhronos._backends.vectorised.op import Vectorised, has_vectorised
from synkhronos._backends.vectorised.table import has_code
from synkhronos._backends.where import Where

log = logging.getLogger("synkhronos")

_TAG = "synkhronos_vectorised"
_FUNCTIONS = "synkhronos_vectorised_functions"
_BEFORE_REPLACING = 48.4
_BEFORE_FUSION = 48.5  # after the rewrites that look for PyTensor's operations
_AFTER_FUSION = 49.05
_BEFORE_INDEXED_LOOPS = 99.5  # PyTensor joins loops with indices and reductions at 100
_SHORT = 32  # steps of a loop, four times what a register holds
_MOVED = 2  # arrays that a loop over other axes reads in another order than they have in memory
_wanted: ContextVar[bool] = ContextVar("wanted", default=True)


def is_replaced(variable: Any) -> bool:
    """Whether an elementwise function with vectorised code computes the variable."""
    node = variable.owner
    return (
        node is not None
        and isinstance(node.op, Elemwise)
        and has_code(node.op.scalar_op, variable.type.dtype)
    )


class _Open(Where):
    """Puts the graphs of operations such as softmax in their place, as fusion does later.

    Else their functions, which are inside of them, would not be replaced.
    """

    def change(self, fgraph: Any) -> None:
        """Replace the operations until there are none."""
        kinds = FusibleSymbolicOp | FusibleSymbolicOpDerivative
        while found := [n for n in fgraph.toposort() if isinstance(n.op, kinds)]:
            for node in found:
                if node in fgraph.apply_nodes:
                    pairs = list(zip(node.outputs, inline_ofg_node(node), strict=True))
                    fgraph.replace_all(pairs, reason=_TAG)


class _Replace(Where):
    """Puts vectorised operations into a graph."""

    def change(self, fgraph: Any) -> None:
        """Replace the elementwise functions that this package has code for."""
        found = [v for node in fgraph.toposort() for v in node.outputs if is_replaced(v)]
        if not found or not _is_available():
            return
        for variable in found:
            dtype = variable.type.dtype
            given = [_of_dtype(v, dtype) for v in variable.owner.inputs]
            new = Elemwise(Vectorised(variable.owner.op.scalar_op))(*given)
            fgraph.replace(variable, new, reason=_TAG)


def _of_dtype(variable: Any, dtype: str) -> Any:
    """The variable in this dtype. A constant stays one: PyTensor has folded constants before."""
    if variable.type.dtype == dtype:
        return variable
    if isinstance(variable, TensorConstant):
        return constant(variable.data.astype(dtype))
    return cast(variable, dtype)


class _Flatten(Where):
    """Makes one long loop where there would be many short ones, of which few are vectorised.

    PyTensor has a loop for each axis, and the innermost one may have only a few steps. Axes of
    length 1 are left out. A function of one array and of numbers is computed over its elements. A
    last axis that is known to be short becomes the first one, if few arrays are then read across
    their order in memory: 45,240 cells of a survival model with ten such arrays take 1.3 ms so, and
    0.6 as they are.
    """

    def change(self, fgraph: Any) -> None:
        """Change the loops that have vectorised functions."""
        for node in fgraph.toposort():
            if isinstance(node.op, Elemwise) and has_vectorised(node.op.scalar_op):
                found = _flat(node)
                if found is not None:
                    pairs = list(zip(node.outputs, found, strict=True))
                    fgraph.replace_all(pairs, reason=_TAG)


def _flat(node: Any) -> list[Any] | None:
    """The outputs of an elementwise operation, computed in longer loops; None if that is as now."""
    given: list[Any] = node.inputs
    ndim = node.outputs[0].type.ndim
    variables = [*given, *node.outputs]
    kept = [i for i in range(ndim) if not all(v.type.broadcastable[i] for v in variables)]
    if len(kept) < ndim:
        back = [kept.index(i) if i in kept else "x" for i in range(ndim)]
        found = _looped(node, [v.dimshuffle(*kept) for v in given])
        found = (_flat(found[0].owner) or found) if len(kept) > 1 else found
        return [v.dimshuffle(*back) for v in found]
    if ndim < 2:
        return None
    arrays = [v for v in given if not all(v.type.broadcastable)]
    if len(arrays) == 1 and not any(arrays[0].type.broadcastable):
        [array] = arrays
        rows = [v.reshape((-1,)) if v is array else v.dimshuffle("x") for v in given]
        lengths = [array.shape[i] if n is None else n for i, n in enumerate(array.type.shape)]
        return [v.reshape(lengths, ndim=ndim) for v in _looped(node, rows)]
    *others, last = node.outputs[0].type.shape
    if last is None or last >= _SHORT or any(n is not None and n < _SHORT for n in others):
        return None
    if sum(not any(v.type.broadcastable) for v in given) > _MOVED:
        return None
    found = _looped(node, [v.dimshuffle(ndim - 1, *range(ndim - 1)) for v in given])
    return [v.dimshuffle(*range(1, ndim), 0) for v in found]


def _looped(node: Any, given: list[Any]) -> list[Any]:
    found: Any = Elemwise(node.op.scalar_op)(*given, return_list=True)
    return list(found)


def _is_available() -> bool:
    """Whether the code can be imported; PyTensor's and numba's own parts may change."""
    try:
        import_module("synkhronos._backends.vectorised.dispatch")
    except (ImportError, AttributeError) as exc:
        log.info("loops take longer: the functions of libm and SciPy are used (%s)", exc)
        return False
    return True


@contextmanager
def vectorising(wanted: bool) -> Iterator[None]:
    """A context in which compiled functions get vectorised operations, or keep PyTensor's."""
    before = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(before)


def tags() -> tuple[str, ...]:
    """The tags that a mode includes, so that operations are replaced; none if they are not."""
    if not _wanted.get():
        return ()
    if _TAG not in optdb:
        _register("", object, _TAG)
    return (_TAG,)


def register_where(operation: type) -> None:
    """Replace operations in all graphs for numba with this operation, also those of the user."""
    if f"{_FUNCTIONS}_where_{operation.__name__}" not in optdb:
        _register(f"_where_{operation.__name__}", operation, "numba")


def _register(end: str, operation: type, tag: str) -> None:
    optdb.register(f"synkhronos_open{end}", _Open(operation), tag, position=_BEFORE_REPLACING)
    optdb.register(f"{_FUNCTIONS}{end}", _Replace(operation), tag, position=_BEFORE_FUSION)
    optdb.register(f"synkhronos_flat_loops{end}", _Flatten(operation), tag, position=_AFTER_FUSION)
    outside = SumsByIndexOutside(operation)
    optdb.register(f"synkhronos_indexed{end}", outside, tag, position=_BEFORE_INDEXED_LOOPS)
