"""Rules for elementwise Ops: any of them keeps Rows; on totals they must be linear."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytensor.tensor as pt
from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.printing import Print
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.extra_ops import CpuContiguous

from synkhronos._proofs.values import (
    NO_FACTORS,
    Count,
    Entries,
    Factor,
    Factors,
    Finished,
    Position,
    Reduced,
    Rows,
    Same,
    Stuck,
    Value,
    added,
    common_factors,
    is_floating,
    is_scalable,
    is_zero,
    linear,
    merge,
)
from synkhronos._proofs.walk import (
    Transferred,
    Walk,
    as_factor,
    constant_of,
    gives_zero,
    has_rows,
    transfer,
)


@transfer.register(ViewOp)
@transfer.register(DeepCopyOp)
@transfer.register(Print)
@transfer.register(TensorFromScalar)
@transfer.register(ScalarFromTensor)
@transfer.register(CpuContiguous)
def _identity(op: Op, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    return values[0]


@transfer.register
def _checked(op: CheckAndRaise, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    # A condition that holds for all rows holds for the rows of a part; others may not.
    if all(isinstance(v, Same) or v == Reduced("min") for v in values[1:]):
        return values[0]
    return None


@transfer.register
def _elementwise(op: Elemwise, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    if has_rows(values):
        return _across_rows(op.scalar_op, node, values, walk)
    if isinstance(op.scalar_op, ps.Second):
        return _filled_alike(node, values[0], values[1], walk)
    if all(isinstance(v, Entries | Same) for v in values):
        return _each_entry(op.scalar_op, node, values)
    return _without_rows(op.scalar_op, node, values)


@transfer.register
def _scalar(op: ps.ScalarOp, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    return _without_rows(op, node, values)


@gives_zero.register
def _zero(op: Elemwise, zeros: Sequence[bool]) -> bool:
    match op.scalar_op:
        case ps.Mul():
            return any(zeros)
        case ps.Second():
            return zeros[1]
        case ps.Add() | ps.Sub() | ps.Neg() | ps.Cast() | ps.Identity():
            return all(zeros)
    return False


def _across_rows(scalar_op: ps.ScalarOp, node: Apply, values: Sequence[Value], walk: Walk) -> Value:
    axis, whole = row_axis(node, values)
    factors = [
        factors_of(value, variable) for value, variable in zip(values, node.inputs, strict=True)
    ]
    zero = gives_zero(node.op, [is_zero(v) for v in values])
    if not any(factors):
        return Rows(axis, whole, zero=zero)
    rule = _LINEAR.get(type(scalar_op))
    if rule is None or not is_scalable(node.outputs[0].type.dtype):
        raise Stuck("it is not linear in a value over all rows")
    found = rule(factors, values)
    for i, (variable, value) in enumerate(zip(node.inputs, values, strict=True)):
        if not isinstance(value, Rows) and any(f.variable is variable for f in found):
            walk.scalings[node, i] = None
    return Rows(axis, whole, found, zero)


def row_axis(node: Apply, values: Sequence[Value]) -> tuple[int, bool]:
    """The row axis of operands of equal ndim; operands without rows must broadcast along it."""
    rows = [v for v in values if isinstance(v, Rows)]
    axis = rows[0].axis
    if any(v.axis != axis for v in rows):
        raise Stuck("it pairs rows with other rows")
    for value, variable in zip(values, node.inputs, strict=True):
        if not isinstance(value, Rows) and variable.type.shape[axis] != 1:
            raise Stuck("it combines single rows with a value that may be as long as the rows")
    return axis, any(v.whole for v in rows)


def factors_of(value: Value, variable: object) -> Factors:
    """The factors of an operand of a node that has Rows."""
    match value:
        case Rows(factors=factors):
            return factors
        case Same():
            return NO_FACTORS
        case Count(power=power):
            return frozenset({as_factor(variable, per_row=power == -1)})
    return frozenset({as_factor(variable)})


def _inverted(factors: Factors, value: Value) -> Factors:
    if isinstance(value, Rows):
        raise Stuck("it divides by a value over all rows")
    [factor] = factors
    counts = isinstance(value, Count) and value.power == 1
    return frozenset({Factor(factor.variable, inverse=True, per_row=counts)})


def _product(factors: Sequence[Factors], values: Sequence[Value]) -> Factors:
    scaled = [f for f in factors if f]
    if len(scaled) > 1:
        raise Stuck("it multiplies two values over all rows")
    return scaled[0]


def _quotient(factors: Sequence[Factors], values: Sequence[Value]) -> Factors:
    upper, lower = factors
    return _product([upper, _inverted(lower, values[1]) if lower else lower], values)


def _total(factors: Sequence[Factors], values: Sequence[Value]) -> Factors:
    return common_factors(zip(factors, values, strict=True))


def _chosen(factors: Sequence[Factors], values: Sequence[Value]) -> Factors:
    if factors[0]:
        raise Stuck("its condition is a value over all rows")
    return _total(factors[1:], values[1:])


def _filled(factors: Sequence[Factors], values: Sequence[Value]) -> Factors:
    return factors[1]


_LINEAR: dict[type[ps.ScalarOp], Callable[[Sequence[Factors], Sequence[Value]], Factors]] = {
    ps.Mul: _product,
    ps.TrueDiv: _quotient,
    ps.Add: _total,
    ps.Sub: _total,
    ps.Switch: _chosen,
    ps.Second: _filled,
    ps.Neg: _product,
    ps.Identity: _product,
    ps.Cast: _product,
}


def _without_rows(scalar_op: ps.ScalarOp, node: Apply, values: Sequence[Value]) -> Value | None:
    match scalar_op:
        case ps.Add() | ps.Sub():
            return added(values, node.outputs[0].type.dtype)
        case ps.Neg():
            return _negated(values[0], node.outputs[0].type.dtype)
        case ps.Identity():
            return values[0]
        case ps.Cast():
            return converted(values[0], node.inputs[0].type.dtype, node.outputs[0].type.dtype)
        case ps.Mul():
            return _multiplied(node, values)
        case ps.TrueDiv():
            return _divided(node, values[0], values[1])
        case ps.Switch() if isinstance(values[0], Same):
            return merge(values[1:])
    return None


def _negated(value: Value, dtype: str) -> Value | None:
    if isinstance(value, Reduced) and value.by in _NEGATED and is_floating(dtype):
        return Reduced(_NEGATED[value.by])  # not for integers: -(-128) is -128 in int8
    return linear(value, dtype)


_NEGATED = {"max": "min", "min": "max"}


def _each_entry(scalar_op: ps.ScalarOp, node: Apply, values: Sequence[Value]) -> Value | None:
    """The cast of a shape, which is a shape."""
    [value] = values if len(values) == 1 else [None]
    if not isinstance(scalar_op, ps.Cast) or not isinstance(value, Entries):
        return None
    dtypes = node.inputs[0].type.dtype, node.outputs[0].type.dtype
    return Entries(tuple(converted(v, *dtypes) or Finished() for v in value.entries))


def converted(value: Value, source: str, target: str) -> Value | None:
    """The value of a total after a cast; casts to integers truncate, and small integers wrap."""
    if isinstance(value, Same) or source == target:
        return value
    if is_floating(source) and not is_floating(target):
        return None
    found = linear(value, target)
    if isinstance(value, Count) and found is not None:
        return Count(value.power, value.whole and target in ("int64", "uint64", "float64"))
    return found


def _multiplied(node: Apply, values: Sequence[Value]) -> Value | None:
    dtype = node.outputs[0].type.dtype
    totals = [v for v in values if not isinstance(v, Same)]
    if len(totals) == 1:
        found = linear(totals[0], dtype)
        ones = all(
            constant_of(i) == 1
            for i, v in zip(node.inputs, values, strict=True)
            if isinstance(v, Same)
        )
        return totals[0] if isinstance(found, Count) and ones else found
    if len(totals) == 2 and is_floating(dtype):
        return _two_totals(totals)
    return None


def _two_totals(totals: Sequence[Value]) -> Value | None:
    if Reduced("sum") in totals and any(isinstance(v, Count) and v.power == -1 for v in totals):
        return Reduced("avg")
    if Reduced("avg") in totals and any(isinstance(v, Count) and v.power == 1 for v in totals):
        return Reduced("sum")
    return None


def _divided(node: Apply, upper: Value, lower: Value) -> Value | None:
    dtype = node.outputs[0].type.dtype
    if not is_floating(dtype):
        return None
    if isinstance(lower, Same):
        return linear(upper, dtype)
    if isinstance(lower, Count) and lower.power == 1:
        if upper == Reduced("sum"):
            return Reduced("avg")
        if isinstance(upper, Same):
            return Same(zero=True) if is_zero(upper) else Count(-1)
    return None


def _filled_alike(node: Apply, shaped: Value, filling: Value, walk: Walk) -> Value | None:
    """fill(shaped, filling), the start of a gradient, if shaped has one size in all members."""
    if isinstance(filling, Position | Entries):
        return None
    [output] = node.outputs
    if None not in output.type.shape:
        plain = _plain_fill(output, node.inputs[1])
        walk.read([plain])
        walk.inlined[output] = plain
        if isinstance(shaped, Finished):
            walk.unshaped[output] = plain
        return filling
    return filling if isinstance(shaped, Same | Reduced | Count) else None


def _plain_fill(output: Variable, filling: Variable) -> Variable:
    if output.type == filling.type:
        return filling
    return pt.alloc(filling, *output.type.shape)
