"""A product of numbers has one exponential at most.

The derivative of a normal density by the logarithm s of its scale is a sum times exp(-3 s) and
exp(s). The first one overflows from s = -237 on, where the product is finite. PyTensor joins
exponentials with the same axes, and one of these two still has an axis of length 1.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.scalar import basic as ps
from pytensor.tensor.math import add, exp, mul

from synkhronos._compiling.nodes import computes, without_axes
from synkhronos._compiling.where import Where


class ExponentialsOfNumbers(Where):
    """Computes exp(a) * exp(b) as exp(a + b), where both are numbers."""

    def change(self, fgraph: FunctionGraph) -> None:
        """Replace such products in a graph, before its functions are vectorised."""
        for node in reversed(fgraph.toposort()):
            if node not in fgraph.apply_nodes or not _is_product(node):
                continue
            factors = _factors(node)
            exponents = [
                v.owner.inputs[0].dimshuffle() for v in factors if computes(v.owner, ps.Exp)
            ]
            if len(exponents) < 2:
                continue
            rest = [v.dimshuffle() for v in factors if not computes(v.owner, ps.Exp)]
            joined: Any = exp(add(*exponents))
            found = mul(joined, *rest) if rest else joined
            [output] = node.outputs
            found = found.dimshuffle(["x"] * output.type.ndim)
            if found.type.dtype == output.type.dtype:
                fgraph.replace(output, found, reason="synkhronos_exponentials_of_numbers")


def _is_product(node: Apply) -> bool:
    return computes(node, ps.Mul) and all(node.outputs[0].type.broadcastable)


def _factors(node: Apply) -> list[Any]:
    """The factors, also those of factors that are products."""
    found: list[Any] = []
    for variable in node.inputs:
        inner = without_axes(variable)
        found += _factors(inner.owner) if inner.owner and _is_product(inner.owner) else [inner]
    return found
