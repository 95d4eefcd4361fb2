"""Elementwise operations leave out axes of length 1, so that they join the loops of their rows.

The gradient of a sum over an axis has that axis, with length 1. PyTensor computes it in a loop of
its own, which reads all rows again.
"""

from __future__ import annotations

from typing import Any, cast

from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.basic import constant
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.variable import TensorConstant, TensorVariable

from synkhronos._compiling.where import Where


class WithoutAxesOfOne(Where):
    """Computes arrays of (n, 1) as vectors of n."""

    def change(self, fgraph: FunctionGraph) -> None:
        """Replace the operations of a graph whose loops are not fused yet."""
        for node in fgraph.toposort():
            if not isinstance(node.op, Elemwise):
                continue
            variables = [*node.inputs, *node.outputs]
            ndim = node.outputs[0].type.ndim
            kept = [i for i in range(ndim) if not all(v.type.broadcastable[i] for v in variables)]
            if not 0 < len(kept) < ndim:
                continue
            back = [kept.index(i) if i in kept else "x" for i in range(ndim)]
            found: Any = node.op(
                *[_of_axes(cast(TensorVariable, v), kept) for v in node.inputs], return_list=True
            )
            pairs = list(zip(node.outputs, [v.dimshuffle(*back) for v in found], strict=True))
            if all(old.type.is_super(new.type) for old, new in pairs):
                fgraph.replace_all(pairs, reason="synkhronos_without_axes_of_one")


def _of_axes(variable: TensorVariable, kept: list[int]) -> Any:
    """The variable with these axes alone, which may be what the others were added to."""
    if isinstance(variable, TensorConstant):
        dropped = tuple(i for i in range(variable.type.ndim) if i not in kept)
        return constant(variable.data.squeeze(dropped))
    node = variable.owner
    if node is None or not isinstance(node.op, DimShuffle):
        return variable.dimshuffle(*kept)
    order = [node.op.new_order[axis] for axis in kept]
    [inner] = node.inputs
    return inner if order == list(range(inner.type.ndim)) else inner.dimshuffle(*order)
