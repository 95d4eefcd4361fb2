"""Distances in units of a scale, as scalar operations whose derivatives are computed from them.

PyTensor's derivative of x / y by y is -x / (y * y), and it joins these factors with those around
them: that of a square becomes x**2 / y**3. A scale of 1e-124 gives 1e372 on the way to a derivative
by the logarithm of the scale, which is x**2 / y**2 and finite. A component of a mixture that is as
narrow has the weight 0 elsewhere, and 0 times infinity is no number.

The operations stand in a graph while derivatives are taken and factors are joined. Before loops are
made, quotients take their place.
"""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.scalar import basic as ps
from pytensor.tensor.elemwise import DimShuffle, Elemwise

from synkhronos._compiling.nodes import computes


class _Distance(ps.BinaryScalarOp):
    """A distance in units of a scale."""

    nfunc_spec = None

    def c_code(self, *args: object) -> str:
        """Not available: `quotient` replaces it."""
        raise NotImplementedError


class Ratio(_Distance):
    """x / y."""

    def impl(self, x: Any, y: Any) -> Any:
        return ps.true_div.impl(x, y)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """1 / y, and minus the quotient over y."""
        [given], y = cotangents, inputs[1]
        return [given / y, -(given * outputs[0]) / y]


class Scaled(_Distance):
    """x / exp(s)."""

    def impl(self, x: Any, s: Any) -> Any:
        return x * ps.exp.impl(-s)

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """exp(-s), and minus the quotient."""
        [given], s = cotangents, inputs[1]
        return [given * ps.exp(-s), -(given * outputs[0])]


def distance(x: Any, y: Any) -> Any:
    """The quotient of x and a scale y, as such an operation."""
    s, orders = y, []
    while s.owner is not None and isinstance(s.owner.op, DimShuffle):
        orders.append(s.owner.op)
        s = s.owner.inputs[0]
    if not computes(s.owner, ps.Exp):
        return _ratio(x, y)
    s = s.owner.inputs[0]
    for move in reversed(orders):
        s = move(s)
    return _scaled(x, s)


_ratio = Elemwise(Ratio(ps.upgrade_to_float_no_complex, name="ratio"))
_scaled = Elemwise(Scaled(ps.upgrade_to_float_no_complex, name="scaled"))


def quotient(node: Apply) -> Any:
    """The quotient of two numbers in the place of such an operation; None if a node is none."""
    kind = node.op.scalar_op if isinstance(node.op, Elemwise) else None
    if not isinstance(kind, _Distance):
        return None
    inputs: list[Any] = node.inputs
    x, y = inputs
    found = pt.true_div(x, y) if isinstance(kind, Ratio) else pt.mul(x, pt.exp(-y))
    return pt.cast(found, node.outputs[0].type.dtype)


def put_quotients(fgraph: FunctionGraph) -> None:
    """Put quotients in the place of ratios."""
    for node in fgraph.toposort():
        if (found := quotient(node)) is not None:
            fgraph.replace(node.outputs[0], found, reason="synkhronos_quotients")
