"""Loops with vectorised functions stay apart from what would keep them from being vectorised.

PyTensor adds up by indices, and looks whether a condition holds in all rows, inside of the loop
that computes the terms. LLVM does not vectorise such a loop: 1,000,000 rows with one `exp` take 54
ms instead of 9.
"""

from __future__ import annotations

import math
from typing import Any, cast

from pytensor.compile.ops import view_op
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import All
from pytensor.tensor.subtensor import AdvancedIncSubtensor

from synkhronos._compiling.nodes import without_axes
from synkhronos._compiling.vectorised.op import has_vectorised

_FEW = 64  # elements, for which an array of its own takes longer than a vectorised loop gains


def sum_outside(fgraph: FunctionGraph) -> None:
    """Put a view between a loop with vectorised functions and a sum by indices of its result.

    PyTensor joins loops with their indices and reductions later.
    """
    for node in fgraph.toposort():
        position = _terms(node.op)
        if position is not None and _vectorised(node.inputs[position]):
            terms = cast(Variable, view_op(node.inputs[position]))
            fgraph.change_node_input(node, position, terms, reason="synkhronos_sums_by_index")


def _terms(op: object) -> int | None:
    """The position of the input that a sum by indices adds up, or a condition looks at."""
    if isinstance(op, AdvancedIncSubtensor):
        return 1
    return 0 if isinstance(op, All) else None


def _vectorised(terms: Variable) -> bool:
    """Whether a loop with vectorised functions computes more than one number."""
    node = without_axes(terms).owner
    return (
        node is not None
        and isinstance(node.op, Elemwise)
        and has_vectorised(node.op.scalar_op)
        and not all(all(v.type.broadcastable) for v in node.inputs)
        and not _is_short(node.outputs[0].type)
    )


def _is_short(kind: Any) -> bool:
    return None not in kind.shape and math.prod(kind.shape) <= _FEW
