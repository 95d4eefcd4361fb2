"""A rewrite that changes only graphs with a given operation."""

from __future__ import annotations

from typing import Any

from pytensor.graph.rewriting.basic import GraphRewriter


class Where(GraphRewriter):
    """A rewrite of graphs with an operation.

    Parameters
    ----------
    operation : class, optional
        Only graphs with such an operation are changed. Default: all.
    """

    def __init__(self, operation: type = object) -> None:
        super().__init__()
        self.operation = operation

    def add_requirements(self, fgraph: Any) -> None:
        """Add none."""

    def apply(self, fgraph: Any) -> None:
        """Change the graph, if it has the operation."""
        if any(isinstance(node.op, self.operation) for node in fgraph.apply_nodes):
            self.change(fgraph)

    def change(self, fgraph: Any) -> None:
        """Change the graph."""
        raise NotImplementedError
