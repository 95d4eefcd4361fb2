"""Recognises a density in a graph: PyMC's formula for it, with any expressions in it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pytensor.graph.basic import Constant, Variable, equal_computations
from pytensor.scalar.basic import Cast
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.variable import TensorVariable


def bound(
    pattern: TensorVariable, graph: TensorVariable, names: Mapping[Variable, str]
) -> dict[str, TensorVariable] | None:
    """Find the expressions that a graph has in the places of a pattern's variables.

    Parameters
    ----------
    pattern : Variable
        A graph of elementwise operations.
    graph : Variable
    names : mapping
        The variables of the pattern that stand for any expression, each with its name.

    Returns
    -------
    dict, or None
        An expression for each name; None if the graph is not the pattern.
    """
    found: dict[str, TensorVariable] = {}
    stack = [(pattern, graph)]
    while stack:
        wanted, given = (_without_new_axes(v) for v in stack.pop())
        if wanted in names:
            if not _same(found.setdefault(names[wanted], given), given):
                return None
        elif isinstance(wanted, Constant) or isinstance(given, Constant):
            if not _equal(wanted, given):
                return None
        elif not _alike(wanted.owner, given.owner):
            return None
        else:
            stack += zip(wanted.owner.inputs, given.owner.inputs, strict=True)
    return found


def _without_new_axes(variable: TensorVariable) -> TensorVariable:
    """The array before axes of length 1 are put in front of its own, as broadcasting does."""
    while variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
        order = variable.owner.op.new_order
        ndim = variable.owner.inputs[0].type.ndim
        if tuple(order) != ("x",) * (len(order) - ndim) + tuple(range(ndim)):
            break
        variable = variable.owner.inputs[0]
    return variable


def _same(one: TensorVariable, other: TensorVariable) -> bool:
    return one is other or (one.type == other.type and equal_computations([one], [other]))


def _equal(one: TensorVariable, other: TensorVariable) -> bool:
    if not (isinstance(one, Constant) and isinstance(other, Constant)):
        return False
    a, b = np.asarray(one.data), np.asarray(other.data)
    return a.size == b.size == 1 and a.item() == b.item()


def _alike(one: TensorVariable, other: TensorVariable) -> bool:
    """Whether two nodes compute the same elementwise function."""
    if one is None or other is None or len(one.inputs) != len(other.inputs):
        return False
    if not (isinstance(one.op, Elemwise) and isinstance(other.op, Elemwise)):
        return bool(one.op == other.op)
    a, b = one.op.scalar_op, other.op.scalar_op
    return type(a) is type(b) and (not isinstance(a, Cast) or a.o_type == b.o_type)
