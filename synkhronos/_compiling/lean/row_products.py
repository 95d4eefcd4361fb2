"""Products of rows that are chosen from a table, with the few columns of a row in one step.

Slopes of several features by group are such products: ``(slopes[group] * x).sum(axis=1)``. PyTensor
has a loop over the columns of each row, and the same for the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Sum
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor
from pytensor.tensor.variable import TensorConstant, TensorVariable

from synkhronos._compiling.nodes import FLOATS, computes
from synkhronos._libraries.library import usable

_REASON = "synkhronos_row_products"
_MOST = 16  # columns that are one step


class ChosenRowProducts(Op):
    """Table, rows, index -> the products of the chosen rows of the table with the rows."""

    __props__ = ("columns",)

    def __init__(self, columns: int) -> None:
        self.columns = columns

    def make_node(self, *inputs: Variable) -> Apply:
        table: Any = inputs[0]
        return Apply(self, list(inputs), [pt.vector(dtype=table.type.dtype)])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        table, rows, index = inputs
        output_storage[0][0] = (table[index] * rows).sum(axis=1)


class SumsOfRowsByIndex(Op):
    """Factors, rows, index, length -> a table: the sums of factor times row by the index."""

    __props__ = ("columns",)

    def __init__(self, columns: int) -> None:
        self.columns = columns

    def make_node(self, *inputs: Variable) -> Apply:
        rows: Any = inputs[1]
        out = pt.tensor(dtype=rows.type.dtype, shape=(None, self.columns))
        return Apply(self, list(inputs), [out])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        factors, rows, index, length = inputs
        found = np.zeros((int(length), self.columns), rows.dtype)
        np.add.at(found, index, factors[:, None] * rows)
        output_storage[0][0] = found


def multiply_chosen_rows(fgraph: FunctionGraph) -> None:
    """Replace such products, and the sums by index of their gradients, before loops are fused."""
    found = [
        (node, made)
        for node in fgraph.toposort()
        for make in (_products, _sums)
        if (made := make(fgraph, node)) is not None
    ]
    if not found or not usable("synkhronos._compiling.lean.dispatch"):
        return
    for node, made in found:
        fgraph.replace(node.outputs[0], made, reason=_REASON, import_missing=True)


def _products(fgraph: FunctionGraph, node: Apply) -> TensorVariable | None:
    """The products of chosen rows that a sum over columns computes."""
    if not isinstance(node.op, Sum) or node.op.axis != (1,):
        return None
    factors = _factors(fgraph, node.inputs[0], node.outputs[0].type.dtype)
    for chosen, rows in (factors, factors[::-1]) if factors else ():
        if chosen.owner is not None and _picks(chosen.owner, AdvancedSubtensor):
            table, index = chosen.owner.inputs
            columns = _columns(table, rows)
            is_whole = rows.type.broadcastable == (False, False)
            if columns and is_whole and table.type.ndim == 2 and len(fgraph.clients[chosen]) == 1:
                return _made(ChosenRowProducts(columns), [table, rows, index], node.outputs[0])
    return None


def _sums(fgraph: FunctionGraph, node: Apply) -> TensorVariable | None:
    """The table to which rows times factors are added by an index."""
    operation: Any = node.op
    if not _picks(node, AdvancedIncSubtensor):
        return None
    if operation.set_instead_of_inc or operation.ignore_duplicates:
        return None
    before, values, index = cast(list[Any], node.inputs)
    factors = _factors(fgraph, values, node.outputs[0].type.dtype)
    for column, rows in (factors, factors[::-1]) if factors else ():
        columns = _columns(before, rows)
        is_column = column.type.broadcastable == (False, True)
        if columns and is_column and rows.type.broadcastable == (False, False):
            length = before.type.shape[0]
            length = before.shape[0] if length is None else pt.constant(length, dtype="int64")
            given = [_vector(column), rows, index, length]
            made: Any = _made(SumsOfRowsByIndex(columns), given, node.outputs[0])
            return cast(TensorVariable, made if _is_zero(before) else before + made)
    return None


def _made(op: Op, given: list[Variable], like: Any) -> TensorVariable:
    """The result of an operation, of the same type as another variable."""
    return cast(TensorVariable, Apply(op, given, [like.type()]).outputs[0])


def _factors(fgraph: FunctionGraph, variable: Any, dtype: str) -> tuple[Any, Any] | None:
    """The two factors of a product that only one operation reads."""
    node = variable.owner
    if (
        not computes(node, ps.Mul)
        or len(node.inputs) != 2
        or len(fgraph.clients[variable]) != 1
        or dtype not in FLOATS
        or any(v.type.dtype != dtype for v in (variable, *node.inputs))
    ):
        return None
    first, second = node.inputs
    return first, second


def _picks(node: Apply, kind: type[Op]) -> bool:
    """Whether one vector of integers picks rows."""
    if type(node.op) is not kind:
        return False
    operation: Any = node.op
    index: Any = node.inputs[-1].type
    return (
        tuple(operation.idx_list) == (0,)
        and index.ndim == 1
        and index.dtype != "bool"
        and not index.broadcastable[0]
    )


def _columns(*tables: Any) -> int | None:
    """The number of columns of tables; None if it is not known, or not a few."""
    for table in tables:
        if table.type.ndim == 2 and (found := table.type.shape[1]) is not None:
            return found if 1 < found <= _MOST else None
    return None


def _vector(column: Any) -> Any:
    """The vector that was made a column."""
    node = column.owner
    if node is not None and isinstance(node.op, DimShuffle) and node.op.new_order == (0, "x"):
        return node.inputs[0]
    return column.dimshuffle(0)


def _is_zero(variable: Any) -> bool:
    """Whether an array is filled with 0."""
    node = variable.owner
    if node is not None and isinstance(node.op, Alloc):
        [variable, *_] = node.inputs
    return isinstance(variable, TensorConstant) and not np.any(variable.data)
