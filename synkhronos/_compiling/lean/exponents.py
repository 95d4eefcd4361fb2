"""Powers and products of exponentials are exponentials.

The derivative of sqrt(exp(h)) by h, as models of volatility have it, is a power of exp(h). A power
takes five times as long as an exponential.

The derivative of a normal density by the logarithm s of its scale is a sum times exp(-3 s) and
exp(s). The first one overflows from s = -237 on, where the product is finite. PyTensor joins
exponentials with the same axes, and one of these two still has an axis of length 1.
"""

from __future__ import annotations

from typing import Any, cast

from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.scalar import basic as ps
from pytensor.tensor.math import add, exp, mul
from pytensor.tensor.variable import TensorConstant

from synkhronos._compiling.nodes import computes, without_axes


def join_powers(fgraph: FunctionGraph) -> None:
    """Compute exp(a) ** c as exp(c * a), where c is a constant number."""
    for node in fgraph.toposort():
        if not computes(node, ps.Pow):
            continue
        base, power = cast(list[Any], node.inputs)
        if not computes(base.owner, ps.Exp) or not isinstance(power, TensorConstant):
            continue
        found: Any = exp(mul(base.owner.inputs[0], power))
        if found.type == node.outputs[0].type:
            fgraph.replace(node.outputs[0], found, reason="synkhronos_powers_of_exponentials")


def join_products(fgraph: FunctionGraph) -> None:
    """Compute exp(a) * exp(b) as exp(a + b), where both are numbers."""
    for node in reversed(fgraph.toposort()):
        if node not in fgraph.apply_nodes or not _is_product(node):
            continue
        factors = _factors(node)
        made = [v for v in factors if computes(v.owner, ps.Exp)]
        if len(made) < 2:
            continue
        exponents = [v.owner.inputs[0].dimshuffle() for v in made]
        rest = [v.dimshuffle() for v in factors if v not in made]
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
