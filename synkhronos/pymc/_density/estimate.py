"""Estimates the time of a log-density from its graph, before anything is compiled."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort
from pytensor.scalar import basic as ps
from pytensor.scalar import math as psm
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.special import LogSoftmax, LogSumExp, Softmax
from pytensor.tensor.subtensor import AdvancedSubtensor

from synkhronos._compiling.nodes import computes, in_batches, without_axes
from synkhronos._compiling.vectorised.tails import LogNdtr, Mills
from synkhronos.pymc._reading.reading import Reading

# Nanoseconds for one number, of PyTensor's code for numba; benchmarks/special.py measures them.
_NANOSECONDS: dict[type, float] = {
    **dict.fromkeys((ps.Exp, ps.Log, ps.Log1p, ps.Expm1, ps.Log2, ps.Log10), 5.0),
    **dict.fromkeys((ps.Pow, ps.Tanh, psm.Sigmoid, psm.Softplus, psm.Log1mexp), 12.0),
    **dict.fromkeys((psm.Erf, psm.Erfc, psm.Erfcx, psm.GammaLn, psm.Psi, LogNdtr, Mills), 20.0),
}
_ANY = 0.1  # of other operations, in loops that are vectorised
_INDEX = 1.0  # of an element that is looked up
_PRODUCT = 0.1  # of a multiplication and addition
_EXPONENTIALS = LogSoftmax, LogSumExp, Softmax
GRADIENT = 1.5  # times the value, for value and gradient


def gradient_seconds(reading: Reading) -> float:
    """About the seconds of one gradient of what is divided, with PyTensor's own code.

    Operations by element, indices, products with matrices and sums of exponentials are counted.
    Most of the time is for them where there are rows.
    """
    nodes = toposort([term.variable for term in reading.terms])
    return 1e-9 * sum(gradient_nanoseconds(node, reading.facts.shapes) for node in nodes)


def gradient_nanoseconds(node: Apply, shapes: Mapping[Variable, tuple[int, ...]]) -> float:
    """The time of an operation, for value and gradient."""
    count = math.prod(shapes.get(node.outputs[0], (0,)))
    op = in_batches(node)
    if isinstance(op, Elemwise):
        return GRADIENT * count * nanoseconds(node)
    if isinstance(op, AdvancedSubtensor):
        return GRADIENT * count * _INDEX
    if isinstance(op, Dot):
        return GRADIENT * count * (shapes.get(node.inputs[0]) or (1,))[-1] * _PRODUCT
    if isinstance(op, _EXPONENTIALS):  # the gradient computes them again
        exponents = sum(math.prod(shapes.get(v, (0,))) for v in node.inputs)
        return 2 * exponents * _NANOSECONDS[ps.Exp]
    return 0.0


def nanoseconds(node: Apply) -> float:
    """The time that PyTensor's own code takes for one number."""
    if has_constant_power(node):
        return _ANY  # a product, after PyTensor's rewrites
    return _NANOSECONDS.get(type(node.op.scalar_op), _ANY)


def has_constant_power(node: Apply) -> bool:
    """Whether a node computes powers whose exponent is one constant, for all elements."""
    if not computes(node, ps.Pow):
        return False
    exponent = without_axes(node.inputs[1])
    return isinstance(exponent, Constant) and all(exponent.type.broadcastable)
