"""A graph that is evaluated by its operations, one after another, without compiling anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort


class Computed:
    """A function of values of the inputs, which returns those of the outputs.

    Parameters
    ----------
    inputs, outputs : sequence of Variable
    nodes : sequence of Apply, optional
        In an order in which they can be evaluated. Default: any.
    """

    def __init__(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        nodes: Sequence[Apply] | None = None,
    ) -> None:
        order = list(toposort(outputs, blockers=inputs) if nodes is None else nodes)
        self._cells: dict[Variable, list[Any]] = {v: [None] for v in inputs}
        for v in [*outputs, *(v for node in order for v in (*node.inputs, *node.outputs))]:
            self._cells.setdefault(v, [v.data if isinstance(v, Constant) else None])
        ready = {v: [True] for v in self._cells}
        self._steps = [n.op.make_thunk(n, self._cells, ready, [], impl="py") for n in order]
        self._made = [self._cells[v] for node in order for v in node.outputs]
        self._inputs, self._outputs = list(inputs), list(outputs)

    def __call__(self, *values: Any) -> list[Any]:
        """Evaluate the graph."""
        given = [self._cells[v] for v in self._inputs]
        try:
            for cell, value in zip(given, values, strict=True):
                cell[0] = value
            for step in self._steps:
                step()
            return [self._cells[v][0] for v in self._outputs]
        finally:  # arrays of a call are not held until the next one
            for cell in (*given, *self._made):
                cell[0] = None
