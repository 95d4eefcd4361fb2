"""Loops over several axes follow the order in memory of what they read.

PyTensor's loops have the axes in the order of the graph. The convolution of a media mix model is
computed with its weeks last, and read through a view with its two channels last: a loop of two
steps is not vectorised, and reads far from one element to the next.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.basic import Join, Split, constant, join, tensor_copy
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.variable import TensorVariable

from synkhronos._compiling.data.computed import Computed
from synkhronos._compiling.data.lifted import Data
from synkhronos._compiling.vectorised.rewrite import is_replaced

_REASON = "synkhronos_axes"
_SHORT = 32  # steps of a loop that are too few
_FEW = 256  # elements whose loops are left as they are
Order = list[int]


def order_axes(fgraph: FunctionGraph) -> None:
    """Move views with other axes from before elementwise operations and reductions to after them.

    Where all arrays are made by the loop itself, the longest axis comes last. Loops are not fused
    yet.
    """
    for node in fgraph.toposort():
        for place, v in enumerate(node.inputs):
            array, axes = _traced(v)
            if array is not v and axes == list(range(array.type.ndim)) and array.type == v.type:
                fgraph.change_node_input(node, place, array, reason=_REASON)
        if isinstance(node.op, Elemwise):
            order = _order(node)
            if order is None or _parts_loops(fgraph, node):
                continue
            if _is_for_loops(fgraph, node, order):
                back = _inverse(order)
                given = [_in_order(cast(TensorVariable, v), order) for v in node.inputs]
                found: Any = node.op(*given, return_list=True)
                pairs = [
                    (old, new.dimshuffle(*back))
                    for old, new in zip(node.outputs, found, strict=True)
                ]
                if all(old.type.is_super(new.type) for old, new in pairs):
                    fgraph.replace_all(pairs, reason=_REASON)
        elif isinstance(node.op, CAReduce) and (reduced := _reduced(node)) is not None:
            view = _view(reduced)
            if view is None or _is_for_loops(fgraph, node, _inverse(view)):
                fgraph.replace(node.outputs[0], reduced, reason=_REASON)
        elif isinstance(node.op, Join) and _is_of_columns(node):
            if _is_for_loops(fgraph, node, [1, 0]):
                rows = [_in_order(cast(TensorVariable, v), [1, 0]) for v in node.inputs]
                _replace(fgraph, node, [join(0, *rows)])
        elif _takes_columns(node) and _view(node.inputs[0]) == [1, 0]:
            array, lengths = _traced(node.inputs[0])[0], node.inputs[1]
            of_rows: Any = Split(cast(Split, node.op).len_splits, 0)
            _replace(fgraph, node, of_rows(array, lengths, return_list=True))


def _replace(fgraph: FunctionGraph, node: Apply, found: Sequence[Any]) -> None:
    """Put matrices with rows in place of a node's results, which have them as columns."""
    pairs = [(old, new.T) for old, new in zip(node.outputs, found, strict=True)]
    if all(old.type.is_super(new.type) for old, new in pairs):
        fgraph.replace_all(pairs, reason=_REASON)


def _order(node: Apply) -> Order | None:
    """The axes of an elementwise operation, as its loops should have them; None if as now."""
    out = node.outputs[0].type
    if out.ndim < 2:
        return None
    whole = [v for v in node.inputs if v.type.broadcastable == out.broadcastable]
    computed = [v for v in whole if not of_data(v)]
    if not whole:
        return _longest_last(out.shape)
    views = [_view(v) for v in computed]
    if not views or None in views or any(view != views[0] for view in views):
        return None
    array, order = _traced(computed[0])[0], _inverse(cast(Order, views[0]))
    last = array.type.shape[-1]
    return order if last is None or last >= _SHORT else None


def _is_for_loops(fgraph: FunctionGraph, node: Apply, order: Order) -> bool:
    """Whether loops alone read what a node computes, or views that have the axes in this order.

    Others, such as matrix products, would copy a view of it.
    """
    for client, _ in itertools.chain.from_iterable(fgraph.clients[v] for v in node.outputs):
        if isinstance(client.op, DimShuffle) and list(client.op.new_order) != order:
            if not all(_is_loop(c) for c, _ in fgraph.clients[client.outputs[0]]):
                return False
        elif not (isinstance(client.op, DimShuffle) or _is_loop(client)):
            return False
    return True


def _is_loop(node: Apply) -> bool:
    """Whether a node reads views in any order, or takes matrices apart into columns."""
    return isinstance(node.op, Elemwise | CAReduce) or _takes_columns(node)


def _takes_columns(node: Apply) -> bool:
    return isinstance(node.op, Split) and node.op.axis == 1 and node.inputs[0].type.ndim == 2


def _parts_loops(fgraph: FunctionGraph, node: Apply) -> bool:
    """Whether arithmetic would leave a loop that also reads an array in the order of that loop.

    The loop then reads a view all the same: of what is computed, in place of what it is computed
    of. Functions take longer than an array of their own.
    """
    [out, *others] = node.outputs
    if others or is_replaced(out):
        return False
    loops = [client for client, _ in fgraph.clients[out] if isinstance(client.op, Elemwise)]
    read = [(loop, cast(TensorVariable, v)) for loop in loops for v in loop.inputs if v is not out]
    return any(_is_in_order(loop, v) for loop, v in read)


def _is_in_order(loop: Apply, variable: TensorVariable) -> bool:
    """Whether a loop reads a whole array that no other loop makes, in the array's own order."""
    array, _ = _traced(variable)
    made = array.owner is not None and isinstance(array.owner.op, Elemwise | CAReduce)
    whole = variable.type.broadcastable == loop.outputs[0].type.broadcastable
    return whole and not made and not of_data(variable) and _view(variable) is None


def _is_of_columns(node: Apply) -> bool:
    """Whether long columns are joined to a matrix with few of them, as densities of a mixture."""
    columns: Any = node.inputs
    return (
        node.op.axis == 1
        and len(columns) < _SHORT
        and all(v.type.ndim == 2 and v.type.shape[1] == 1 for v in columns)
        and all(v.type.shape[0] is None or v.type.shape[0] >= _FEW for v in columns)
    )


def _longest_last(shape: Sequence[int | None]) -> Order | None:
    lengths = [length for length in shape if length is not None]
    if len(lengths) < len(shape) or lengths[-1] >= _SHORT or math.prod(lengths) < _FEW:
        return None
    longest = int(np.argmax(lengths))
    if lengths[longest] < _SHORT:
        return None
    return [*[i for i in range(len(shape)) if i != longest], longest]


def _inverse(order: Order) -> Order:
    return [order.index(axis) for axis in range(len(order))]


def _traced(variable: Any) -> tuple[Any, list[int | str]]:
    """The array that views show, and its axes as the variable has them; "x" is an axis of one."""
    axes: list[int | str] = list(range(getattr(variable.type, "ndim", 0)))
    while variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
        inner = variable.owner.op.new_order
        axes = [axis if axis == "x" else inner[cast(int, axis)] for axis in axes]
        [variable] = variable.owner.inputs
    return variable, axes


def _view(variable: Any) -> Order | None:
    """The order in which a view has the axes of an array; None if it is no such view."""
    array, axes = _traced(variable)
    order = [cast(int, axis) for axis in axes]
    moved = "x" not in axes and len(axes) == array.type.ndim and order != sorted(order)
    return order if moved and not _is_by_columns(array) else None


def _is_by_columns(array: Any) -> bool:
    """Whether LAPACK makes it: such matrices lie in memory by columns."""
    if array.owner is None:
        return False
    return type(array.owner.op).__module__.startswith("pytensor.tensor.linalg.")


def of_data(variable: Any) -> bool:
    """Whether constants and data alone are computed with; a copy in any order costs once."""
    return all(isinstance(v, Constant | Data) for v in graph_inputs([variable]))


def in_memory(variable: TensorVariable) -> TensorVariable:
    """A copy of what data alone give, with its axes in their order in memory; it is made once."""
    if any(isinstance(v, Data) for v in graph_inputs([variable])):
        return cast(TensorVariable, tensor_copy(variable))
    [value] = Computed([], [variable])()
    return constant(np.ascontiguousarray(value), dtype=variable.type.dtype)


def _in_order(variable: TensorVariable, order: Sequence[int]) -> TensorVariable:
    """The array with its axes in this order; of data, a copy that has them so in memory."""
    array, own = _traced(variable)
    variable, axes = array, [own[axis] for axis in order]
    kept = [cast(int, axis) for axis in axes if axis != "x"]
    if len(kept) == variable.type.ndim and kept != sorted(kept) and of_data(variable):
        variable, axes = in_memory(variable.dimshuffle(*kept)), _added(axes)
    return variable if axes == list(range(variable.type.ndim)) else variable.dimshuffle(*axes)


def _added(axes: Sequence[int | str]) -> list[int | str]:
    """The same new axes among those of an array whose own are in order."""
    own = iter(range(len(axes)))
    return [axis if axis == "x" else next(own) for axis in axes]


def _reduced(node: Apply) -> TensorVariable | None:
    """The reduction of what a view shows; None if its input is no view with other axes."""
    operation: Any = node.op
    order = _view(node.inputs[0])
    if order is None:
        return None
    inner, _ = _traced(node.inputs[0])
    if operation.axis is None or len(operation.axis) == len(order):
        return cast(TensorVariable, operation(inner))
    axes = {order[axis] for axis in operation.axis}
    left = [axis for axis in range(len(order)) if axis not in axes]
    found = operation.clone(axis=tuple(sorted(axes)))(inner)
    back = [left.index(axis) for axis in order if axis not in axes]
    return cast(TensorVariable, found if back == sorted(back) else found.dimshuffle(*back))
