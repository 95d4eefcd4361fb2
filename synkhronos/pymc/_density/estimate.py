"""Estimates the time of a log-density from its graph, before anything is compiled."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pytensor.graph.basic import Apply, Constant
from pytensor.graph.traversal import toposort
from pytensor.scalar import basic as ps
from pytensor.scalar import math as psm
from pytensor.tensor.elemwise import Elemwise

from synkhronos.pymc._reading.reading import Reading
from synkhronos.pymc._reading.rewrites import without_axes

# Nanoseconds for one number, of PyTensor's code for numba; benchmarks/special.py measures them.
_NANOSECONDS: dict[type, float] = {
    **dict.fromkeys((ps.Exp, ps.Log, ps.Log1p, ps.Expm1, ps.Log2, ps.Log10), 5.0),
    **dict.fromkeys((ps.Pow, ps.Tanh, psm.Sigmoid, psm.Softplus, psm.Log1mexp), 12.0),
    **dict.fromkeys((psm.Erf, psm.Erfc, psm.Erfcx, psm.GammaLn, psm.Psi), 20.0),
}
_ANY = 0.1  # of other operations, in loops that are vectorised
GRADIENT = 1.5  # times the value, for value and gradient

DRAWS, TUNE = 1000, 1000  # of `pm.sample`
_STEPS = 15  # gradients of a draw; NUTS takes 7 to 31 in most models


def gradient_seconds(reading: Reading) -> float:
    """About the seconds of one gradient of what is divided, with PyTensor's own code.

    Only operations by element are counted, which most of the time is for where there are rows.
    """
    found = 0.0
    for node in toposort([term.variable for term in reading.terms]):
        shape = reading.facts.shapes.get(node.outputs[0])
        if isinstance(node.op, Elemwise) and shape is not None:
            found += math.prod(shape) * nanoseconds(node)
    return 1e-9 * GRADIENT * found


def nanoseconds(node: Apply) -> float:
    """The time that PyTensor's own code takes for one number."""
    kind = type(node.op.scalar_op)
    if kind is ps.Pow and isinstance(without_axes(node.inputs[1]), Constant):
        return _ANY  # a product, after PyTensor's rewrites
    return _NANOSECONDS.get(kind, _ANY)


def gradients_in_turn(chains: int, cores: int, given: Mapping[str, int | None]) -> int:
    """About the number of gradients that are computed one after another."""
    draws = given.get("draws") or DRAWS
    tune = TUNE if given.get("tune") is None else given["tune"]
    return int(math.ceil(chains / min(chains, cores)) * (draws + tune) * _STEPS)
