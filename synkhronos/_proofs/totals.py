"""Rules for Ops that reduce, contract, sort or accumulate along axes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.scalar import basic as ps
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.extra_ops import CumOp, SearchsortedOp
from pytensor.tensor.math import Argmax, Dot
from pytensor.tensor.sort import ArgSortOp, SortOp

from synkhronos._proofs.elementwise import row_axis
from synkhronos._proofs.values import (
    Count,
    Entries,
    Finished,
    Reduced,
    Rows,
    Same,
    Stuck,
    Value,
    is_floating,
    is_summable,
    linear,
    summed,
)
from synkhronos._proofs.walk import Transferred, Walk, gives_zero, has_rows, transfer

_REDUCTIONS: dict[type[ps.ScalarOp], str] = {
    ps.Add: "sum",
    ps.Mul: "prod",
    ps.Maximum: "max",
    ps.Minimum: "min",
    ps.AND: "min",
    ps.OR: "max",
}


@gives_zero.register
def _sums_to_zero(op: CAReduce, zeros: Sequence[bool]) -> bool:
    return zeros[0] and isinstance(op.scalar_op, ps.Add)


@gives_zero.register(Dot)
@gives_zero.register(BatchedDot)
def _multiplies_to_zero(op: Op, zeros: Sequence[bool]) -> bool:
    return any(zeros)


@transfer.register
def _reduce(op: CAReduce, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    by = _REDUCTIONS.get(type(op.scalar_op))
    axes = _axes(op, node)
    match values[0]:
        case Rows() as rows if by is None or not _keeps_kind(op, node):
            return reduce_apart(rows, axes)
        case Rows() as rows:
            return _reduce_rows(by, rows, axes, node)
        case Entries(entries=entries) if by == "prod":
            return _product_of(entries)
        case Reduced() | Count() | Finished() as total if by == "sum":
            return linear(total, node.outputs[0].type.dtype) if _keeps_kind(op, node) else None
        case Reduced(by="max" | "min" as outer) as total if outer == by and _keeps_kind(op, node):
            return total
    return None


def _axes(op: CAReduce | Argmax, node: Apply) -> set[int]:
    ndim = node.inputs[0].type.ndim
    return set(range(ndim)) if op.axis is None else {axis % ndim for axis in op.axis}


def _keeps_kind(op: CAReduce, node: Apply) -> bool:
    """Whether nothing is truncated, and nothing wraps, on the way to the output.

    Integers may be summed as integers of 64 bits and then become floats, as in
    ``eq(...).mean(dtype="float32")``.
    """
    given, out = node.inputs[0].type.dtype, node.outputs[0].type.dtype
    accumulated = getattr(op, "acc_dtype", None) or out
    if isinstance(op.scalar_op, ps.AND | ps.OR):
        return given == out == "bool"
    if is_floating(out) and not is_floating(accumulated):
        return (
            isinstance(op.scalar_op, ps.Add) and is_summable(accumulated) and not is_floating(given)
        )
    return is_floating(accumulated) == is_floating(out) and is_floating(out) >= is_floating(given)


def reduce_apart(rows: Rows, axes: Collection[int]) -> Rows:
    """Rows after any reduction of other axes."""
    if rows.axis in axes or rows.factors:
        raise Stuck("it mixes rows")
    return Rows(rows.axis - sum(axis < rows.axis for axis in axes), rows.whole)


def _reduce_rows(by: str, rows: Rows, axes: set[int], node: Apply) -> Value:
    if by != "sum" and rows.factors:
        raise Stuck("it is not linear in a value over all rows")
    dtype = node.outputs[0].type.dtype
    if rows.axis not in axes:
        zero = rows.zero and by == "sum"
        axis = rows.axis - sum(axis < rows.axis for axis in axes)
        return replace(rows, axis=axis, zero=zero)
    if by in ("sum", "prod"):
        total = summed(rows.factors, dtype, zero=rows.zero and by == "sum")
        return total if by == "sum" else Reduced("prod")
    return Reduced(by)


def _product_of(entries: Sequence[Value]) -> Value | None:
    counts = [v for v in entries if not isinstance(v, Same)]
    alone = len(counts) == 1 and isinstance(counts[0], Count)
    return Count(counts[0].power, counts[0].whole and len(entries) == 1) if alone else None


@transfer.register(Dot)
def _dot(op: Dot, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    return _contraction(node, values, ["mk", "kn"], "mn", batch="")


@transfer.register(BatchedDot)
def _batched_dot(op: BatchedDot, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    return _contraction(node, values, ["bmk", "bkn"], "bmn", batch="b")


@transfer.register
def _blockwise(op: Blockwise, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    dims = node.inputs[0].type.ndim - len(op.inputs_sig[0])
    if isinstance(op.core_op, Dot):
        batch = [f"batch{i}" for i in range(dims)]
        inputs = [[*batch, *sig] for sig in op.inputs_sig]
        return _contraction(node, values, inputs, [*batch, *op.outputs_sig[0]], batch=batch)
    if not has_rows(values):
        return None
    rows = [v for v in values if isinstance(v, Rows)]
    if any(v.axis >= dims for v in rows) or not all(isinstance(v, Same | Rows) for v in values):
        raise Stuck("it mixes rows")
    if any(v.factors for v in rows):
        raise Stuck("it is not linear in a value over all rows")
    return Rows(*row_axis(node, values))


def _contraction(
    node: Apply,
    values: Sequence[Value],
    inputs: Sequence[Sequence[str]],
    output: Sequence[str],
    *,
    batch: Sequence[str],
) -> Value | None:
    """A product, summed over the labels that the output lacks; `inputs` label the axes."""
    dtype = node.outputs[0].type.dtype
    if not has_rows(values):
        totals = [v for v in values if not isinstance(v, Same)]
        alone = len(totals) == 1 and not isinstance(totals[0], Count)
        return linear(totals[0], dtype) if alone else None
    label = _row_label(node, values, inputs, batch)
    rows = [v for v in values if isinstance(v, Rows)]
    scaled = [v.factors for v in rows if v.factors]
    if len(scaled) > 1:
        raise Stuck("it multiplies two values over all rows")
    factors = scaled[0] if scaled else frozenset()
    zero = any(v.zero for v in rows)
    if label in output:
        return Rows(list(output).index(label), any(v.whole for v in rows), factors, zero)
    return summed(factors, dtype, zero=zero)


def _row_label(
    node: Apply, values: Sequence[Value], inputs: Sequence[Sequence[str]], batch: Sequence[str]
) -> str:
    triples = list(zip(values, node.inputs, inputs, strict=True))
    labels = {names[v.axis] for v, _, names in triples if isinstance(v, Rows)}
    if len(labels) > 1:
        raise Stuck("it pairs rows with other rows")
    [label] = labels
    for value, variable, names in triples:
        if isinstance(value, Rows):
            continue
        if not isinstance(value, Same):
            raise Stuck("it combines single rows with a value over all rows")
        if label in names:
            length = variable.type.shape[list(names).index(label)]
            if label not in batch or length != 1:
                raise Stuck("it combines single rows with a value that may be as long as the rows")
    return label


@transfer.register
def _argmax(op: Argmax, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    array = values[0]
    return reduce_apart(array, _axes(op, node)) if isinstance(array, Rows) else None


@transfer.register
def _accumulate(op: CumOp, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    array = values[0]
    if not isinstance(array, Rows):
        return None
    if array.axis == op.axis or (array.factors and op.mode != "add"):
        raise Stuck("it mixes rows")
    return replace(array, zero=False)


@transfer.register(SortOp)
@transfer.register(ArgSortOp)
def _order(op: SortOp | ArgSortOp, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    array = values[0]
    if not isinstance(array, Rows):
        return None
    if array.axis == op.axis or array.factors:
        raise Stuck("it mixes rows")
    return Rows(array.axis, array.whole)


@transfer.register
def _search(op: SearchsortedOp, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    table, wanted, *rest = values
    alike = all(isinstance(v, Same) for v in [table, *rest])
    if alike and isinstance(wanted, Rows) and not wanted.factors:
        return Rows(wanted.axis, wanted.whole)
    return None
