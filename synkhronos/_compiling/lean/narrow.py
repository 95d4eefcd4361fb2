"""Loops leave out axes of length 1, so that they join the loops of their rows.

The gradient of a sum over an axis has that axis, with length 1. PyTensor computes it in a loop of
its own, which reads all rows again.
"""

from __future__ import annotations

import itertools
from typing import Any, cast

from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.basic import constant
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.variable import TensorConstant, TensorVariable

_REASON = "synkhronos_without_axes_of_one"


def leave_out_axes(fgraph: FunctionGraph) -> None:
    """Compute arrays of (n, 1) as vectors of n, and their sums as sums of vectors."""
    for node in fgraph.toposort():
        reduced = _reduced(node) if isinstance(node.op, CAReduce) else None
        if reduced is not None and node.outputs[0].type.is_super(reduced.type):
            fgraph.replace(node.outputs[0], reduced, reason=_REASON)
        if not isinstance(node.op, Elemwise):
            continue
        variables = [*node.inputs, *node.outputs]
        ndim = node.outputs[0].type.ndim
        kept = [i for i in range(ndim) if not all(v.type.broadcastable[i] for v in variables)]
        if not 0 < len(kept) < ndim:
            continue
        back = [kept.index(i) if i in kept else "x" for i in range(ndim)]
        found: Any = node.op(
            *[_of_axes(cast(TensorVariable, v), kept) for v in node.inputs], return_list=True
        )
        pairs = list(zip(node.outputs, [v.dimshuffle(*back) for v in found], strict=True))
        if all(old.type.is_super(new.type) for old, new in pairs):
            fgraph.replace_all(pairs, reason=_REASON)


def _reduced(node: Apply) -> TensorVariable | None:
    """The reduction of an array before it got axes of one; None if it has not got any."""
    reduction: Any = node.op
    view = node.inputs[0].owner
    if view is None or not isinstance(view.op, DimShuffle) or "x" not in view.op.new_order:
        return None
    order, [inner] = view.op.new_order, cast(Any, view.inputs)
    if [axis for axis in order if axis != "x"] != list(range(inner.type.ndim)):
        return None
    axes = range(len(order)) if reduction.axis is None else reduction.axis
    reduced = [order[axis] for axis in axes if order[axis] != "x"]
    if not reduced:
        return None
    left = itertools.count()
    kept = [axis for place, axis in enumerate(order) if place not in axes]
    back = ["x" if axis == "x" else next(left) for axis in kept]
    found = reduction.clone(axis=tuple(reduced))(inner)
    return cast(TensorVariable, found.dimshuffle(*back) if "x" in back else found)


def _of_axes(variable: TensorVariable, kept: list[int]) -> Any:
    """The variable with these axes alone, which may be what the others were added to."""
    if isinstance(variable, TensorConstant):
        dropped = tuple(i for i in range(variable.type.ndim) if i not in kept)
        return constant(variable.data.squeeze(dropped))
    node = variable.owner
    if node is None or not isinstance(node.op, DimShuffle):
        return variable.dimshuffle(*kept)
    order = [node.op.new_order[axis] for axis in kept]
    [inner] = node.inputs
    return inner if order == list(range(inner.type.ndim)) else inner.dimshuffle(*order)
