"""The operation that stands in a graph for one of PyTensor's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op


class Lean(Op):
    """An operation of PyTensor with numba code of this package's own."""

    __props__ = ("op",)

    def __init__(self, op: Op) -> None:
        self.op = op  # the operation that it replaces, which says what is computed
        self.view_map = op.view_map
        self.destroy_map = op.destroy_map

    def __str__(self) -> str:
        return f"Lean{{{self.op}}}"

    def make_node(self, *inputs: Variable) -> Apply:
        node = self.op.make_node(*inputs)
        return Apply(self, node.inputs, [v.type() for v in node.outputs])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        self.op.perform(node, inputs, output_storage)
