"""The logarithm of a quotient with data above 0 is a difference, as PyTensor has it of constants.

The logarithm of data is computed once.
"""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.scalar import basic as ps
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import cast, log
from pytensor.tensor.shape import SpecifyShape

from synkhronos._compiling.data.lifted import is_above_zero
from synkhronos._compiling.nodes import computes


@node_rewriter([log])  # type: ignore[untyped-decorator]
def log_of_data(fgraph: FunctionGraph, node: Apply) -> object:
    """log(a / b) -> log(a) - log(b), if a or b are data above 0."""
    quotient = node.inputs[0].owner
    if not computes(quotient, ps.TrueDiv):
        return None
    if not any(is_above_zero(_shown(v)) for v in quotient.inputs):
        return None
    kind: Any = node.outputs[0].type
    above, below = (log(cast(v, kind.dtype)) for v in quotient.inputs)
    return [above - below]


def _shown(variable: Any) -> Any:
    """The array that views show."""
    while variable.owner is not None and isinstance(variable.owner.op, DimShuffle | SpecifyShape):
        variable = variable.owner.inputs[0]
    return variable
