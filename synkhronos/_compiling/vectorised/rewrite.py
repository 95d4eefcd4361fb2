"""Replaces scalar operations by vectorised ones, before loops are fused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.tensor.basic import constant
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.math import cast
from pytensor.tensor.variable import TensorConstant, TensorVariable

from synkhronos._compiling.vectorised.indexed import sum_outside
from synkhronos._compiling.vectorised.op import Vectorised, has_vectorised
from synkhronos._compiling.vectorised.table import BRANCHING, has_code
from synkhronos._compiling.where import register_all, registering
from synkhronos._libraries.library import optional_gain, usable
from synkhronos._libraries.pytensor import PYTENSOR

_TAG = "synkhronos_vectorised"
_BEFORE_REPLACING = 48.4
_BEFORE_FUSION = 48.5  # after the rewrites that look for PyTensor's operations
_BEFORE_ELEMENTS = 48.7  # after axes of length 1 are left out
_AFTER_FUSION = 49.05
_BEFORE_INDEXED_LOOPS = 99.5  # PyTensor joins loops with indices and reductions at 100
_SHORT = 32  # steps of a loop, four times what a register holds
# elements for which libm's branches take less time than code for all cases: 10 powers take 0.36 us,
# and 0.43 in registers
_FEW_OF_BRANCHES = 16
_FEW = 256  # elements whose loops cost less than an array of their own
# rewrites for C, and those that would put an operation into its own graph
_LEFT_OUT = "cxx_only", "symbolic_op_recognition"
Elements = dict[Variable, TensorVariable]  # the vector of the elements of an array
_wanted: ContextVar[bool] = ContextVar("wanted", default=True)


def is_replaced(variable: Variable) -> bool:
    """Whether an elementwise function with vectorised code computes the variable."""
    node = variable.owner
    return (
        node is not None
        and isinstance(node.op, Elemwise)
        and has_code(node.op.scalar_op, variable.type.dtype)
        and not (isinstance(node.op.scalar_op, BRANCHING) and _is_few(variable.type))
    )


def _is_few(kind: Any) -> bool:
    return None not in kind.shape and math.prod(kind.shape) <= _FEW_OF_BRANCHES


def _open(fgraph: FunctionGraph, simplifies: bool = True) -> None:
    """Put the graphs of operations such as softmax in their place, as fusion does later.

    Else their functions, which are inside of them, would not be replaced. Graphs of derivatives are
    simplified first, as PyMC does before it compiles. nutpie does not, and no rewrite looks inside.
    """
    with optional_gain():
        derivative = PYTENSOR.get("FusibleSymbolicOpDerivative")
        kinds = PYTENSOR.get("FusibleSymbolicOp"), derivative
        inline = PYTENSOR.get("inline_ofg_node")
        while found := [n for n in fgraph.toposort() if isinstance(n.op, kinds)]:
            for node in found:
                if node in fgraph.apply_nodes:
                    raw = simplifies and isinstance(node.op, derivative)
                    inner = _simplified(node) if raw else inline(node)
                    pairs = list(zip(node.outputs, inner, strict=True))
                    fgraph.replace_all(pairs, reason=_TAG)


def _simplified(node: Apply) -> list[Variable]:
    """The outputs of an operation with a graph: that graph, rewritten as PyMC does."""
    graph = node.op.fgraph.unfreeze()
    rewrite_graph(graph, include=("canonicalize", "stabilize"), exclude=_LEFT_OUT, clone=False)
    simple = graph.freeze()
    found: list[Variable] = simple.bind(dict(zip(simple.inputs, node.inputs, strict=True)))
    return found


def opened(outputs: Sequence[Variable]) -> list[Variable]:
    """Copies of graphs in which the functions of such operations can be seen."""
    graph = FunctionGraph(outputs=clone_replace(list(outputs)), clone=False)
    _open(graph, simplifies=False)
    return list(graph.outputs)


def _replace(fgraph: FunctionGraph) -> None:
    """Put vectorised operations in the place of the functions that this package has code for."""
    found = [v for node in fgraph.toposort() for v in node.outputs if is_replaced(v)]
    if not found or not usable("synkhronos._compiling.vectorised.dispatch"):
        return
    for variable in found:
        dtype = variable.type.dtype
        given = [_of_dtype(v, dtype) for v in variable.owner.inputs]
        new: Any = Elemwise(Vectorised(variable.owner.op.scalar_op))(*given)
        fgraph.replace(variable, new, reason=_TAG)


def _straighten(fgraph: FunctionGraph) -> None:
    """Compute vectorised functions over elements, where loops over axes would be short.

    PyTensor has a loop for each axis, often with sums over another axis. LLVM does not vectorise
    the innermost one if it has only a few steps. Operations before and after such a function join
    its loop if all arrays have the same axes. 45,240 cells of a survival model take 0.18 ms so, and
    0.57 in loops of 12 steps.
    """
    nodes = fgraph.toposort()
    chosen = _straightened(fgraph, nodes)
    straight: Elements = {}
    for node in nodes:
        if node in chosen:
            given: list[Any] = node.inputs
            rows = [_elements(v, straight) for v in given]
            for old, new in zip(node.outputs, _looped(node, rows), strict=True):
                back = new.reshape(_lengths(old, node), ndim=old.type.ndim)
                straight[back] = new
                fgraph.replace(old, back, reason=_TAG)
        elif isinstance(node.op, CAReduce) and node.inputs[0] in straight and _of_all(node):
            found = node.op.clone(axis=(0,))(straight[node.inputs[0]])
            fgraph.replace(node.outputs[0], found, reason=_TAG)


def _straightened(fgraph: FunctionGraph, nodes: list[Apply]) -> set[Apply]:
    """The elementwise operations that are computed over elements."""
    able = {node for node in nodes if isinstance(node.op, Elemwise) and _is_short(node)}
    chosen = {node for node in able if has_vectorised(node.op.scalar_op)}
    for node in nodes:
        if node in able and any(v.owner in chosen for v in node.inputs):
            chosen.add(node)
    for node in reversed(nodes):
        if node in able and all(c in chosen for v in node.outputs for c, _ in fgraph.clients[v]):
            chosen.add(node)
    return chosen


def _is_short(node: Apply) -> bool:
    """Whether an operation has a short last axis, and arrays of these axes or of one element."""
    shape = node.outputs[0].type.shape
    if len(shape) < 2 or shape[-1] is None or not 1 < shape[-1] < _SHORT:
        return False
    if None not in shape and math.prod(shape) < _FEW:
        return False
    kinds = [v.type.broadcastable for v in [*node.inputs, *node.outputs]]
    return all(all(kind) or not any(kind) for kind in kinds)


def _of_all(node: Apply) -> bool:
    axis = node.op.axis
    return axis is None or len(axis) == node.inputs[0].type.ndim


def _elements(variable: TensorVariable, straight: Elements) -> TensorVariable:
    """The elements of an array as a vector."""
    if variable not in straight:
        if isinstance(variable, TensorConstant):
            straight[variable] = constant(variable.data.reshape(-1))
        elif all(variable.type.broadcastable):
            straight[variable] = variable.dimshuffle("x")
        else:
            straight[variable] = variable.reshape((-1,))
    return straight[variable]


def _lengths(variable: Variable, node: Apply) -> list[int | Variable]:
    """The lengths of the axes of a node's result, from an input where they are not known."""
    array: Any = next(v for v in node.inputs if not all(v.type.broadcastable))
    return [array.shape[i] if n is None else n for i, n in enumerate(variable.type.shape)]


def _of_dtype(variable: TensorVariable, dtype: str) -> TensorVariable:
    """The variable in this dtype. A constant stays one: PyTensor has folded constants before."""
    if variable.type.dtype == dtype:
        return variable
    if isinstance(variable, TensorConstant):
        return constant(variable.data.astype(dtype))
    return cast(variable, dtype)


def _flatten(fgraph: FunctionGraph) -> None:
    """Make one long loop where there would be many short ones, of which few are vectorised.

    PyTensor has a loop for each axis, and the innermost one may have only a few steps. Axes of
    length 1 are left out. A function of one array and of numbers is computed over its elements,
    whatever their lengths are.
    """
    for node in fgraph.toposort():
        if isinstance(node.op, Elemwise) and has_vectorised(node.op.scalar_op):
            found = _flat(node)
            if found is not None:
                pairs = list(zip(node.outputs, found, strict=True))
                fgraph.replace_all(pairs, reason=_TAG)


def _flat(node: Apply) -> list[TensorVariable] | None:
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
    arrays = [v for v in given if not all(v.type.broadcastable)]
    if ndim < 2 or len(arrays) != 1 or any(arrays[0].type.broadcastable):
        return None
    rows = [_elements(v, {}) for v in given]
    lengths = _lengths(node.outputs[0], node)
    return [v.reshape(lengths, ndim=ndim) for v in _looped(node, rows)]


def _looped(node: Apply, given: list[TensorVariable]) -> list[TensorVariable]:
    found: Any = Elemwise(node.op.scalar_op)(*given, return_list=True)
    return list(found)


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
    register()
    return (_TAG,)


def register() -> None:
    """Register the rewrites, which only modes that include their tag use."""
    rewrites = (
        ("open", _open, _BEFORE_REPLACING),
        ("functions", _replace, _BEFORE_FUSION),
        ("elements", _straighten, _BEFORE_ELEMENTS),
        ("flat_loops", _flatten, _AFTER_FUSION),
        ("indexed", sum_outside, _BEFORE_INDEXED_LOOPS),
    )
    with registering.held():
        if _TAG not in optdb:
            register_all(_TAG, rewrites)
