"""Whether an expression is linear in some of its inputs, up to a constant."""

from __future__ import annotations

from collections.abc import Sequence

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort
from pytensor.scalar import basic as ps
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot


def is_linear(expression: Variable, inputs: Sequence[Variable]) -> bool:
    """Whether no operation makes `expression` nonlinear in `inputs`.

    Only elementwise operations and products are judged. Others, which mostly move entries, count as
    linear.

    >>> import pytensor.tensor as pt
    >>> a, b, w = pt.scalars("a", "b", "w")
    >>> is_linear(w - a / 2 + b, [a, b]), is_linear(a / b, [a, b]), is_linear(w**2 * a, [a])
    (True, False, True)
    """
    varying = set(inputs)
    for node in toposort([expression]):
        moves = [v in varying for v in node.inputs]
        if not any(moves):
            continue
        if not _keeps_linear(node, moves):
            return False
        varying.update(node.outputs)
    return True


def _keeps_linear(node: Apply, moves: Sequence[bool]) -> bool:
    op = node.op.core_op if isinstance(node.op, Blockwise) else node.op
    if isinstance(op, Dot | BatchedDot):
        return not all(moves)
    if not isinstance(op, Elemwise | ps.ScalarOp):
        return True
    match op.scalar_op if isinstance(op, Elemwise) else op:
        case ps.Add() | ps.Sub() | ps.Neg() | ps.Identity() | ps.Second():
            return True
        case ps.Cast():
            return node.outputs[0].type.dtype.startswith(("float", "complex"))
        case ps.Mul():
            return sum(moves) == 1
        case ps.TrueDiv():
            return not moves[1]
        case ps.Switch():
            return not moves[0]
    return False
