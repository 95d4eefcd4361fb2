"""Rewrites of some graphs, or up to a position."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pytensor.compile.mode import Mode, optdb
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter, get_active_mode

from synkhronos._libraries.fork_safe_lock import ForkSafeLock
from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.pytensor import PYTENSOR

registering = ForkSafeLock()  # threads may compile for the first time at once


class Where(GraphRewriter):
    """A rewrite of some graphs.

    Parameters
    ----------
    change : callable
        Changes a graph.
    operation : type, optional
        Only graphs with such an operation are changed. Default: all.
    tag : str, optional
        Only graphs that are compiled in a mode that includes this tag are changed. Default: all.
    """

    def __init__(
        self, change: Callable[[FunctionGraph], None], operation: type = object, tag: str = ""
    ) -> None:
        super().__init__()
        self.change, self.operation, self.tag = change, operation, tag

    def add_requirements(self, fgraph: Any) -> None:
        """Add none."""

    def apply(self, fgraph: Any) -> None:
        """Change the graph, if it has the operation and the mode has the tag."""
        if self.tag and not includes(get_active_mode(fgraph), self.tag):
            return
        if any(isinstance(node.op, self.operation) for node in fgraph.apply_nodes):
            self.change(fgraph)


def register_all(
    tag: str, rewrites: Iterable[tuple[str, Callable[[FunctionGraph], None], float]]
) -> None:
    """Register rewrites by their names, changes and positions, for modes that include a tag.

    The mode of a graph for numba may get the tag while the graph is rewritten.
    """
    for name, change, position in rewrites:
        rewrite = Where(change, tag=tag)
        optdb.register(f"{tag}_{name}", rewrite, tag, "numba", position=position)


def includes(mode: Mode, tag: str) -> bool:
    """Whether a mode includes a tag; a mode that was given its rewrites has none."""
    return tag in getattr(mode.provided_optimizer, "include", ())


def rewriter_before(position: float, mode: Mode) -> GraphRewriter:
    """The rewrites of a mode before a position, for a graph that becomes a part of another one."""
    linker = mode.linker
    chosen = mode.provided_optimizer.including(*linker.required_rewrites)
    chosen = chosen.excluding(*linker.incompatible_rewrites)
    chosen.position_cutoff = position
    found: GraphRewriter = optdb.query(chosen)
    with optional_gain():  # it tells the mode to rewrites that look it up
        found = PYTENSOR.get("_ActiveModeGraphRewriter")(found, mode)
    return found
