"""Rules for indexing, by slices and by arrays, and for its transpose: writing at indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    indices_from_subtensor,
)

from synkhronos._proofs.elementwise import converted
from synkhronos._proofs.shapes import carried, enter
from synkhronos._proofs.values import (
    Entries,
    Factors,
    Position,
    Reduced,
    Rows,
    Same,
    Stuck,
    Value,
    added,
    common_factors,
    is_floating,
    is_zero,
    merge,
    summed,
)
from synkhronos._proofs.walk import Transferred, Walk, constant_of, gives_zero, has_rows, transfer

type Index = slice | Variable


@gives_zero.register(Subtensor)
@gives_zero.register(AdvancedSubtensor)
def _taken_zero(op: Subtensor | AdvancedSubtensor, zeros: Sequence[bool]) -> bool:
    return zeros[0]


@gives_zero.register(IncSubtensor)
@gives_zero.register(AdvancedIncSubtensor)
def _put_zero(op: IncSubtensor | AdvancedIncSubtensor, zeros: Sequence[bool]) -> bool:
    return zeros[0] and zeros[1]


class Selection:
    """The axes of an indexed array, and the axes or indices that they come from.

    The axes that index arrays select form one group, with the shape to which the arrays broadcast.
    As in numpy, it takes the position of the first of them, or comes first if a slice is between.
    """

    def __init__(self, indices: Sequence[Index], known: dict[Variable, Value]) -> None:
        self._known = known
        self.indices = indices
        arrays = [i for i, index in enumerate(indices) if not isinstance(index, slice)]
        self._group_ndim = max((indices[i].type.ndim for i in arrays), default=0)
        together = bool(arrays) and arrays[-1] - arrays[0] == len(arrays) - 1
        self._group_start = arrays[0] if together else 0
        self.ndim = len(indices) - len(arrays) + self._group_ndim
        self.whole = False

    def row_axis(self, array: Value) -> int:
        """The row axis of the result; raises Stuck if there is none."""
        if any(not isinstance(i, slice) and i.type.dtype == "bool" for i in self.indices):
            raise Stuck("it selects by a mask")
        axes = {self._index_axis(index) for index in self._row_indices()}
        if isinstance(array, Rows):
            axes.add(self._array_axis(array))
        if len(axes) != 1:
            raise Stuck("it mixes rows")
        [axis] = axes
        self._check_others(axis, array)
        return axis

    def _row_indices(self) -> list[Variable]:
        return [
            index
            for index in self.indices
            if not isinstance(index, slice) and isinstance(self._known[index], Rows)
        ]

    def _index_axis(self, index: Variable) -> int:
        value = self._known[index]
        assert isinstance(value, Rows | Position)
        self.whole |= isinstance(value, Position) or value.whole
        return self._group_start + self._group_ndim - index.type.ndim + value.axis

    def _array_axis(self, array: Rows) -> int:
        index = self.indices[array.axis]
        if isinstance(index, slice):
            if not is_full(index):
                raise Stuck("it takes some of the rows")
            self.whole |= array.whole
            return self._slice_axis(array.axis)
        if isinstance(self._known[index], Position) and array.whole:
            return self._index_axis(index)
        raise Stuck("it takes some of the rows")

    def _slice_axis(self, i: int) -> int:
        rank = sum(isinstance(index, slice) for index in self.indices[:i])
        return rank if rank < self._group_start else rank + self._group_ndim

    def _check_others(self, axis: int, array: Value) -> None:
        """Check that all other indices are equal in all members, and not as long as the rows."""
        paired = array.axis if isinstance(array, Rows) else None
        for i, index in enumerate(self.indices):
            if isinstance(index, slice):
                parts = [p for p in (index.start, index.stop, index.step) if p is not None]
                if not all(isinstance(self._known[p], Same) for p in parts):
                    raise Stuck("it slices by a value over all rows")
            elif i != paired and not isinstance(self._known[index], Rows):
                self._check_same(index, axis)

    def _check_same(self, index: Variable, axis: int) -> None:
        if not isinstance(self._known[index], Same):
            raise Stuck("it indexes by the position of rows or by a value over all rows")
        in_group = self._group_start <= axis < self._group_start + self._group_ndim
        own_axis = axis - self._group_start - self._group_ndim + index.type.ndim
        if in_group and own_axis >= 0 and index.type.shape[own_axis] != 1:
            raise Stuck("it pairs rows with an index that may be as long as the rows")


def _select(
    op: Subtensor | AdvancedSubtensor | IncSubtensor | AdvancedIncSubtensor,
    node: Apply,
    values: Sequence[Value],
    first: int,
) -> Selection:
    given = indices_from_subtensor(node.inputs[first:], op.idx_list)
    rest = [slice(None)] * (node.inputs[0].type.ndim - len(given))
    return Selection([*given, *rest], dict(zip(node.inputs[first:], values[first:], strict=True)))


def is_full(index: slice) -> bool:
    starts = index.start is None or constant_of(index.start) == 0
    steps = index.step is None or constant_of(index.step) == 1
    return starts and steps and index.stop is None


@transfer.register(Subtensor)
@transfer.register(AdvancedSubtensor)
def _take(
    op: Subtensor | AdvancedSubtensor, node: Apply, values: Sequence[Value], walk: Walk
) -> Transferred:
    array, *indices = values
    if has_rows(values):
        return _take_rows(array, _select(op, node, values, first=1))
    if not all(isinstance(v, Same) for v in indices):
        return None
    return _entries(op, node, array) if isinstance(array, Entries) else carried(array)


def _take_rows(array: Value, selection: Selection) -> Value:
    if not isinstance(array, Same | Rows):
        raise Stuck("rows select from a value over all rows")
    axis = selection.row_axis(array)
    if isinstance(array, Same):
        return Rows(axis, selection.whole)
    return replace(array, axis=axis, whole=selection.whole)


def _entries(op: Subtensor | AdvancedSubtensor, node: Apply, array: Entries) -> Value | None:
    """Entries of a shape, selected by constants."""
    if not isinstance(op, Subtensor):
        return None
    [index] = indices_from_subtensor(node.inputs[1:], op.idx_list)
    if not isinstance(index, slice):
        i, count = constant_of(index), len(array.entries)
        return array.entries[i] if i is not None and -count <= i < count else None
    bounds = [index.start, index.stop, index.step]
    numbers = [None if bound is None else constant_of(bound) for bound in bounds]
    if any(n is None and bound is not None for n, bound in zip(numbers, bounds, strict=True)):
        return None
    return Entries(array.entries[slice(*numbers)])


@transfer.register(IncSubtensor)
@transfer.register(AdvancedIncSubtensor)
def _put(
    op: IncSubtensor | AdvancedIncSubtensor, node: Apply, values: Sequence[Value], walk: Walk
) -> Transferred:
    array, put = values[:2]
    if not has_rows(values):
        return _put_totals(op, node, values)
    selection = _select(op, node, values, first=2)
    axis = selection.row_axis(array)
    factors = _aligned_factors(node, put, axis - selection.ndim + node.inputs[1].type.ndim, walk)
    if isinstance(array, Rows):
        return _put_rows(array, put, factors)
    array_dtype, put_dtype = (v.type.dtype for v in node.inputs[:2])
    adds = isinstance(op, AdvancedIncSubtensor) and not op.ignore_duplicates
    adds = adds and is_floating(array_dtype) >= is_floating(put_dtype)
    if is_zero(array) and adds and not op.set_instead_of_inc:
        return summed(factors, node.outputs[0].type.dtype, zero=is_zero(put))
    raise Stuck("rows are put into a value that is not a sum over rows")


def _put_totals(
    op: IncSubtensor | AdvancedIncSubtensor, node: Apply, values: Sequence[Value]
) -> Value | None:
    array, put, *indices = values
    dtype = node.outputs[0].type.dtype
    put = converted(put, node.inputs[1].type.dtype, dtype)
    if put is None or not all(isinstance(v, Same) for v in indices):
        return None
    if op.set_instead_of_inc or is_zero(array):
        return merge([array, put])
    found = added([array, put], dtype)
    return found if isinstance(found, Same | Reduced) else None


def _aligned_factors(node: Apply, put: Value, axis: int, walk: Walk) -> Factors:
    if isinstance(put, Rows):
        if put.axis != axis:
            raise Stuck("it pairs rows with other rows")
    elif axis >= 0 and node.inputs[1].type.shape[axis] != 1:
        raise Stuck("it puts a value into rows that may be as long as they are")
    return enter(node, 1, put, walk)


def _put_rows(array: Rows, put: Value, factors: Factors) -> Value:
    factors = common_factors([(array.factors, array), (factors, put)])
    return replace(array, factors=factors, zero=is_zero(array) and is_zero(put))
