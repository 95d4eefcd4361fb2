"""Logarithms of sums of exponentials over rows: as an Op, and as users write them.

log sum exp(x) over all rows is log sum exp(V_i) of the parts' values V_i. Neither overflows, and a
part may hold only -inf. For any m that is the same in all summed rows

    log(sum(exp(x))) = log(sum(exp(x - m))) + m,    log(mean(exp(x - m))) + m = that - log(n)

so all of these are restated by PyTensor's LogSumExp; it, too, restates the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable, equal_computations
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import toposort
from pytensor.scalar import basic as ps
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import log
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.special import LogSumExp
from pytensor.tensor.subtensor import Subtensor, indices_from_subtensor

from synkhronos._proofs.indexing import is_full
from synkhronos._proofs.nested import open_graph
from synkhronos._proofs.totals import reduce_apart
from synkhronos._proofs.values import Folded, LogSum, Rows, Value, is_scalable
from synkhronos._proofs.walk import Transferred, Walk, is_scalar, restated, transfer

Order = tuple[int | None, ...]  # of each axis, the one that it comes from; None: a new one


@transfer.register
def _log_sum(op: LogSumExp, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    [array] = values
    if not walk.log_sums:
        return open_graph(op, node, values, walk)
    if not isinstance(array, Rows | Folded):
        return None
    if array.axis in op.axis and not array.factors:
        return LogSum() if is_scalable(node.outputs[0].type.dtype) else None
    if isinstance(array, Rows):
        return reduce_apart(array, op.axis)
    return Folded.of(reduce_apart(array.as_rows(), op.axis), array.fold)


@restated.register
def _by_log_sum_exp(op: Elemwise, node: Apply) -> Variable | None:
    found: Variable | None = None
    match op.scalar_op, node.inputs:
        case ps.Log(), _:
            found = _unshifted(node.outputs[0], None)
        case ps.Add(), [a, b]:
            found = next((f for f in map(_unshifted, (a, b), (b, a)) if f is not None), None)
    same = found is not None and found.type.dtype == node.outputs[0].type.dtype
    return found if same else None


def _unshifted(logarithm: Variable, shift: Variable | None) -> Variable | None:
    """log(sum(exp(x - m)) / c) + m, or without m and c, in terms of x only."""
    root, order = _origin(logarithm)
    within = _argument(root, ps.Log)
    if within is None:
        return None
    total, inner = _origin(within)
    divisor = None
    if shift is not None and _is(total, ps.TrueDiv):
        total, divisor = total.owner.inputs
        if not is_scalar(divisor):
            return None
        order, (total, inner) = _through(order, inner), _origin(total)
    order = _through(order, inner)
    if total.owner is None or not isinstance(total.owner.op, CAReduce):
        return None
    if not isinstance(total.owner.op.scalar_op, ps.Add):
        return None
    [powers] = total.owner.inputs
    exponent = _argument(powers, ps.Exp)
    if exponent is None or not is_scalable(exponent.type.dtype):
        return None
    ndim = exponent.type.ndim
    axes = total.owner.op.axis
    summed = range(ndim) if axes is None else [axis % ndim for axis in axes]
    kept = [axis for axis in range(ndim) if axis not in summed]
    if shift is not None:
        exponent = _without(exponent, shift, summed, _through(order, tuple(kept)))
        if exponent is None:
            return None
    found: Any = LogSumExp(axis=tuple(sorted(summed)))(exponent)
    found = found.dimshuffle(["x" if axis is None else axis for axis in order])
    if divisor is None:
        return found
    reads = [n.op for n in toposort([divisor], blockers=[powers]) if powers in n.inputs]
    if powers.type != exponent.type or not all(isinstance(op, Shape | Shape_i) for op in reads):
        return None
    [count] = clone_replace([divisor.dimshuffle()], {powers: exponent})
    return found - log(count).astype(found.type.dtype)


def _without(
    exponent: Variable, shift: Variable, summed: Sequence[int], order: Order
) -> Variable | None:
    """The x of x - m, if m is the same in all entries that are summed, and the shift is this m.

    `order` has, of each axis of the sum of x - m and the shift, the one of x.
    """
    if not _is(exponent, ps.Sub):
        return None
    x, m = exponent.owner.inputs
    (root, of_m), (other, of_shift) = _origin(m), _origin(shift)
    widened = any(
        length == 1 and axis is not None for length, axis in zip(x.type.shape, of_m, strict=True)
    )
    wanted = tuple(None if axis is None else of_m[axis] for axis in order)
    if widened or any(of_m[axis] is not None for axis in summed) or of_shift != wanted:
        return None
    return x if root is other or equal_computations([root], [other]) else None


def _origin(variable: Variable) -> tuple[Variable, Order]:
    """The variable that has the same entries, and of each axis the one there."""
    order: Order = tuple(range(variable.type.ndim))
    while (inner := _inner_axes(variable)) is not None:
        order, variable = _through(order, inner), variable.owner.inputs[0]
    shape = variable.type.shape
    return variable, tuple(None if i is None or shape[i] == 1 else i for i in order)


def _inner_axes(variable: Variable) -> Order | None:
    """Of each axis, the one of the array that is only given other axes of length 1."""
    node = variable.owner
    if node is not None and isinstance(node.op, DimShuffle):
        return tuple(None if axis == "x" else axis for axis in node.op.new_order)
    if node is None or not isinstance(node.op, Subtensor):
        return None
    shape = node.inputs[0].type.shape
    taken = indices_from_subtensor(node.inputs[1:], node.op.idx_list)
    if all(is_full(i) if isinstance(i, slice) else shape[a] == 1 for a, i in enumerate(taken)):
        dropped = [a for a, i in enumerate(taken) if not isinstance(i, slice)]
        return tuple(axis for axis in range(len(shape)) if axis not in dropped)
    return None


def _through(outer: Order, inner: Order) -> Order:
    return tuple(None if axis is None else inner[axis] for axis in outer)


def _argument(variable: Variable, kind: type[ps.ScalarOp]) -> Variable | None:
    return variable.owner.inputs[0] if _is(variable, kind) else None


def _is(variable: Variable, kind: type[ps.ScalarOp]) -> bool:
    op: Op | None = variable.owner and variable.owner.op
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, kind)
