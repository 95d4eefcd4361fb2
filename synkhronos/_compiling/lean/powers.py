"""A power of an exponential is an exponential.

The derivative of sqrt(exp(h)) by h, as models of volatility have it, is a power of exp(h). A power
takes five times as long as an exponential.
"""

from __future__ import annotations

from typing import Any, cast

from pytensor.graph.fg import FunctionGraph
from pytensor.scalar import basic as ps
from pytensor.tensor.math import exp, mul
from pytensor.tensor.variable import TensorConstant

from synkhronos._compiling.nodes import computes
from synkhronos._compiling.where import Where


class PowersOfExponentials(Where):
    """Computes exp(a) ** c as exp(c * a), where c is a constant number."""

    def change(self, fgraph: FunctionGraph) -> None:
        """Replace such powers in a graph, before its functions are vectorised."""
        for node in fgraph.toposort():
            if not computes(node, ps.Pow):
                continue
            base, power = cast(list[Any], node.inputs)
            if not computes(base.owner, ps.Exp) or not isinstance(power, TensorConstant):
                continue
            found: Any = exp(mul(base.owner.inputs[0], power))
            if found.type == node.outputs[0].type:
                fgraph.replace(node.outputs[0], found, reason="synkhronos_powers_of_exponentials")
