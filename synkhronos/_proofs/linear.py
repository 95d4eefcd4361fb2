"""How an expression depends on some of its inputs: linearly up to a constant, or by a condition."""

from __future__ import annotations

from collections.abc import Sequence

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort
from pytensor.raise_op import CheckAndRaise
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


def decides(expression: Variable, inputs: Sequence[Variable]) -> bool:
    """Whether some input is a condition in `expression`: of a switch, or of an assertion.

    >>> import pytensor.tensor as pt
    >>> valid, total = pt.scalars("valid", "total")
    >>> decides(pt.switch(valid, total, -1), [valid, total]), decides(2 * total, [total])
    (True, False)
    """
    varying = set(inputs)
    for node in toposort([expression]):
        moves = [v in varying for v in node.inputs]
        if not any(moves):
            continue
        op = node.op.scalar_op if isinstance(node.op, Elemwise) else node.op
        if isinstance(op, ps.Switch) and moves[0]:
            return True
        if isinstance(op, CheckAndRaise) and any(moves[1:]):
            return True
        varying.update(node.outputs)
    return False


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
