"""Questions about a node: its function of elements, that of batches, the array behind views."""

from __future__ import annotations

from typing import Any, TypeGuard

from pytensor.graph.basic import Apply
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise

FLOATS = ("float32", "float64")


def computes(node: Apply | None, kind: Any) -> TypeGuard[Apply]:
    """Whether a node computes a scalar operation of this class, or of one of several classes."""
    op = None if node is None else node.op
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, kind)


def in_batches(node: Apply) -> Any:
    """The operation of a node, or that of each batch."""
    return node.op.core_op if isinstance(node.op, Blockwise) else node.op


def without_axes(variable: Any) -> Any:
    """The variable whose axes were moved, or that was given axes of length 1."""
    while variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
        variable = variable.owner.inputs[0]
    return variable
