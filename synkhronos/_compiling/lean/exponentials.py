"""A product of exponentials becomes one exponential only where this computes fewer elements.

PyTensor joins exp(a) * exp(b) whatever their axes are. The exponentials of a column and of a row
are then computed for each element of a matrix: 45,240 instead of 3,782 in a survival model, whose
gradient takes 0.57 ms so, and 0.18 as it is.
"""

from __future__ import annotations

from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.scalar import basic as ps
from pytensor.tensor.math import mul, true_div

from synkhronos._compiling.nodes import computes
from synkhronos._libraries.pytensor import local_mul_exp_to_exp_add


@node_rewriter([mul, true_div])  # type: ignore[untyped-decorator]
def join_alike(fgraph: FunctionGraph, node: Apply) -> object:
    """exp(a) * exp(b) -> exp(a + b), if a and b have the same axes."""
    axes = {v.type.broadcastable for v in node.inputs if computes(v.owner, ps.Exp)}
    return local_mul_exp_to_exp_add.transform(fgraph, node) if len(axes) == 1 else None
