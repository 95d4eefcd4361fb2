"""Rules for shapes, and for Ops that move, fold, repeat or join axes.

A reshape keeps rows apart under two conditions. The rows come first (apart from axes of length 1)
before and after it. And every row fills whole entries of the new axis. Memory order implies the
rest. Rows behind another axis are Folded with it, as a product of time-major data with a matrix
does, until a reshape splits the axis again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import prod

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.scalar.basic import Mul
from pytensor.tensor.basic import Alloc, AllocEmpty, ARange, Join, MakeVector, Split
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.extra_ops import Repeat
from pytensor.tensor.math import Dot
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.type_other import NoneTypeT

from synkhronos._proofs.elementwise import factors_of
from synkhronos._proofs.values import (
    Count,
    Entries,
    Factors,
    Finished,
    Folded,
    Position,
    Product,
    Reduced,
    Rows,
    Same,
    Stuck,
    Value,
    is_scalable,
    merge,
)
from synkhronos._proofs.walk import Transferred, Walk, constant_of, gives_zero, has_rows, transfer

# A product of numbers, of dimensions (variable, axis), and of variables of unknown meaning.
type Length = list[int | Hashable]


def carried(value: Value) -> Value | None:
    """The value of a total whose entries are selected, moved or repeated alike in all members."""
    return value if isinstance(value, Reduced | Count | Finished) else None


@gives_zero.register(DimShuffle)
@gives_zero.register(Reshape)
@gives_zero.register(JoinDims)
@gives_zero.register(SplitDims)
@gives_zero.register(Alloc)
def _first_zero(op: Op, zeros: Sequence[bool]) -> bool:
    return zeros[0]


@gives_zero.register(AllocEmpty)
def _undefined(op: Op, zeros: Sequence[bool]) -> bool:
    return True  # it is not read before it is set, so any value fits


@transfer.register
def _shape(op: Shape, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    return _lengths(values[0], node.inputs[0])


@transfer.register
def _length(op: Shape_i, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    found = _lengths(values[0], node.inputs[0])
    return found.entries[op.i] if isinstance(found, Entries) else found


def _lengths(value: Value, variable: Variable) -> Value | None:
    match value:
        case Rows(axis=axis, whole=whole):
            counted = Count(whole=whole)
        case Position(axis=axis):
            counted = Count(whole=True)
        case Reduced() | Count():
            return Same()
        case _:
            return None
    return Entries(tuple(counted if i == axis else Same() for i in range(variable.type.ndim)))


@transfer.register
def _vector(op: MakeVector, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    if op.dtype == "int64":
        return Entries(tuple(values))
    return merge(values) if all(v.type.dtype == op.dtype for v in node.inputs) else None


def entries_of(value: Value, variable: Variable) -> tuple[Value, ...] | None:
    """The entries of a vector of lengths, if each is known."""
    if isinstance(value, Entries):
        return value.entries
    if variable.type.ndim != 1 or variable.type.shape[0] is None:
        return None
    return (value,) * variable.type.shape[0] if isinstance(value, Same | Count) else None


@transfer.register
def _arange(op: ARange, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    start, _, step = node.inputs
    counts = isinstance(values[1], Count) and values[1].power == 1 and values[1].whole
    return Position() if counts and (constant_of(start), constant_of(step)) == (0, 1) else None


@transfer.register
def _dimshuffle(op: DimShuffle, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    match values[0]:
        case Rows(axis=axis) | Position(axis=axis) as value:
            kept = axis in op.new_order
            return replace(value, axis=op.new_order.index(axis)) if kept else None
    return carried(values[0])


@transfer.register
def _specified(op: SpecifyShape, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    array, *lengths = values
    if not isinstance(array, Rows):
        return carried(array) if all(isinstance(v, Same) for v in lengths) else None
    stated = lengths.pop(array.axis)
    free = isinstance(node.inputs[1 + array.axis].type, NoneTypeT)
    if not free and not isinstance(stated, Count):
        raise Stuck("it states a number of rows")
    return array if all(isinstance(v, Same) for v in lengths) else None


@transfer.register(Alloc)
def _alloc(op: Alloc, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    filling, *lengths = values
    counted = [i for i, v in enumerate(lengths) if isinstance(v, Count)]
    if not all(isinstance(v, Same | Count) for v in lengths) or len(counted) > 1:
        return None
    if not counted:
        return carried(filling)
    axis = counted[0]
    own_axis = axis - len(lengths) + node.inputs[0].type.ndim
    if isinstance(filling, Rows):
        return replace(filling, axis=axis) if filling.axis == own_axis else None
    if own_axis >= 0 and node.inputs[0].type.shape[own_axis] != 1:
        return None
    factors = enter(node, 0, filling, walk)
    zero = isinstance(filling, Same) and filling.zero
    return Rows(axis, lengths[axis].whole, factors, zero)


def enter(node: Apply, i: int, value: Value, walk: Walk) -> Factors:
    """The factors of an operand that is broadcast over rows or written into them."""
    factors = factors_of(value, node.inputs[i])
    if factors and not is_scalable(node.outputs[0].type.dtype):
        raise Stuck("it is not linear in a value over all rows")
    if not isinstance(value, Rows) and factors:
        walk.scalings[node, i] = None
    return factors


@transfer.register
def _alloc_empty(op: AllocEmpty, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    counted = [i for i, v in enumerate(values) if isinstance(v, Count)]
    if not all(isinstance(v, Same | Count) for v in values) or len(counted) != 1:
        return None
    return Rows(counted[0], values[counted[0]].whole, zero=True)


@transfer.register
def _reshape(op: Reshape, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    array, target = values
    lengths = entries_of(target, node.inputs[1])
    if isinstance(array, Position):
        return _reshaped_position(node, lengths)
    if not isinstance(array, Rows | Folded):
        return carried(array) if isinstance(target, Same) else None
    if lengths is None:
        return None
    return _reshaped_rows(node, array, lengths, _length_variables(node.inputs[1], len(lengths)))


def _reshaped_position(node: Apply, lengths: Sequence[Value] | None) -> Value | None:
    new = _length_variables(node.inputs[1], node.outputs[0].type.ndim)
    free = [i for i, length in enumerate(new) if length != [1]]
    if len(free) != 1 or lengths is None:
        return None
    counted = new[free[0]] == [-1] or isinstance(lengths[free[0]], Count)
    return Position(free[0]) if counted else None


def _reshaped_rows(
    node: Apply, array: Rows | Folded, lengths: Sequence[Value], new: Sequence[Length]
) -> Value | None:
    ndim = node.inputs[0].type.ndim
    old = [_dimension(node.inputs[0], i) for i in range(ndim)]
    front, back = old[: array.axis], old[array.axis + 1 :]
    rows = array.as_rows() if isinstance(array, Folded) else array
    if isinstance(array, Folded):
        front, back = [*front, _thawed(array.outer)], [_thawed(array.inner), *back]
    others = [i for i, v in enumerate(lengths) if not isinstance(v, Same)]
    if len(others) == 1 and isinstance(lengths[others[0]], Count):
        axis = others[0]
        if _product(new[:axis]) == _product(front):
            return replace(rows, axis=axis, whole=lengths[axis].whole)
    elif not others and [-1] in new:
        axis = new.index([-1])
        number, symbols = _product(new[axis + 1 :])
        after = _product(back)
        divides = number > 0 and after[0] % number == 0 and symbols <= after[1]
        if divides and _product(new[:axis]) == _product(front):
            return replace(rows, axis=axis, whole=rows.whole and (number, symbols) == after)
    else:
        raise Stuck("it may fold places of different rows together")
    fold = _fold(front, back, new[:axis], new[axis + 1 :])
    return Folded.of(replace(rows, axis=axis), fold)


def _fold(
    front: Sequence[Length],
    back: Sequence[Length],
    before: Sequence[Length],
    behind: Sequence[Length],
) -> tuple[Product, Product]:
    """Which of the lengths in front of the rows and behind them an axis holds that joins both."""
    for k in range(len(front) + 1):
        for m in range(len(back) + 1):
            if (_product(front[:k]), _product(back[m:])) == (_product(before), _product(behind)):
                return _frozen(front[k:]), _frozen(back[:m])
    raise Stuck("it may fold places of different rows together")


def _frozen(lengths: Sequence[Length]) -> Product:
    number, symbols = _product(lengths)
    return number, frozenset(symbols.items())


def _thawed(product: Product) -> Length:
    number, symbols = product
    return [number, *Counter(dict(symbols)).elements()]


def _product(lengths: Sequence[Length]) -> tuple[int, Counter[Hashable]]:
    factors = [factor for length in lengths for factor in length]
    number = prod(factor for factor in factors if isinstance(factor, int))
    return number, Counter(factor for factor in factors if not isinstance(factor, int))


def _dimension(variable: Variable, i: int) -> Length:
    """The length of an axis, as that of the variable which it comes from."""
    while variable.type.shape[i] is None:
        match variable.owner:
            case Apply(op=DimShuffle(new_order=order), inputs=[array]):
                variable, i = array, order[i]
            case Apply(op=Elemwise(), inputs=inputs):  # lengths of 1 are known from the type
                variable = next(v for v in inputs if v.type.shape[i] != 1)
            case Apply(op=Dot() | Blockwise(core_op=Dot()), inputs=inputs):
                ndim = variable.type.ndim
                if i == ndim - 1 or (i < ndim - 2 and inputs[0].type.shape[i] == 1):
                    variable = inputs[1]
                else:
                    variable = inputs[0]
            case Apply(op=AdvancedSubtensor(idx_list=(0,)), inputs=[array, index]) if (
                index.type.ndim == 1 and index.type.dtype != "bool"
            ):
                variable = array if i else index
            case Apply(op=Reshape(), inputs=[array, target]):
                length = _length_variables(target, variable.type.ndim)[i]
                if length != [-1]:
                    return length
                if variable.type.ndim > 1:
                    return [(variable, i)]
                return [n for j in range(array.type.ndim) for n in _dimension(array, j)]
            case _:
                return [(variable, i)]
    return [variable.type.shape[i]]


def _length_variables(target: Variable, ndim: int) -> list[Length]:
    """The entries of the second input of a Reshape, as far as they are known."""
    if isinstance(target, Constant):
        return [[int(length)] for length in target.data]
    if target.owner is not None and isinstance(target.owner.op, MakeVector):
        return [_length_of(v) for v in target.owner.inputs]
    if target.owner is not None and isinstance(target.owner.op, Shape):
        return [_dimension(target.owner.inputs[0], i) for i in range(ndim)]
    return [[(target, i, "entry")] for i in range(ndim)]


def _length_of(variable: Variable) -> Length:
    constant = constant_of(variable)
    if constant is not None:
        return [constant]
    match variable.owner:
        case Apply(op=Shape_i(i=i), inputs=[array]):
            return _dimension(array, i)
        case Apply(op=Subtensor(idx_list=(int(),)), inputs=[shape, index]):
            i = constant_of(index)
            if i is not None and shape.owner is not None and isinstance(shape.owner.op, Shape):
                array = shape.owner.inputs[0]
                return _dimension(array, i % array.type.ndim)
        case Apply(op=Elemwise(scalar_op=Mul()), inputs=inputs):
            return [factor for v in inputs for factor in _length_of(v)]
    return [variable]


@transfer.register
def _join_dims(op: JoinDims, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    array = values[0]
    if not isinstance(array, Rows):
        return carried(array)
    folded = op.axis_range
    if array.axis not in folded:
        shift = len(folded) - 1 if array.axis >= folded.stop else 0
        return replace(array, axis=array.axis - shift)
    lengths = node.inputs[0].type.shape
    if any(lengths[i] != 1 for i in folded if i < array.axis):
        raise Stuck("it folds the rows behind another axis")
    alone = all(lengths[i] == 1 for i in folded if i != array.axis)
    return replace(array, axis=op.start_axis, whole=array.whole and alone)


@transfer.register
def _split_dims(op: SplitDims, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    array, target = values
    lengths = entries_of(target, node.inputs[1])
    if not isinstance(array, Rows):
        return carried(array) if isinstance(target, Same) else None
    if lengths is None:
        return None
    if array.axis != op.axis:
        same = all(isinstance(v, Same) for v in lengths)
        shift = len(lengths) - 1 if array.axis > op.axis else 0
        return replace(array, axis=array.axis + shift) if same else None
    first, *rest = lengths
    if isinstance(first, Count) and first.power == 1 and all(isinstance(v, Same) for v in rest):
        return replace(array, whole=first.whole)
    raise Stuck("it may fold places of different rows together")


@transfer.register
def _join(op: Join, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    if any(isinstance(v, Rows) and v.axis == op.axis for v in values):
        raise Stuck("it joins values along the rows")
    if has_rows(values):
        return merge(values)
    entries = [entries_of(v, i) for v, i in zip(values, node.inputs, strict=True)]
    if any(isinstance(v, Entries | Count) for v in values) and None not in entries:
        return Entries(tuple(v for each in entries for v in each))
    return merge(values)


@transfer.register
def _split(op: Split, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    array, lengths = values
    if not isinstance(lengths, Same):
        return None
    if isinstance(array, Rows):
        return array if array.axis != op.axis else None
    return carried(array)


@transfer.register
def _repeat(op: Repeat, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    array, times = values
    apart = isinstance(array, Rows) and array.axis != op.axis and isinstance(times, Same)
    return array if apart else None
