"""An operation that tells of a value as soon as a function has computed it.

`in_order` puts one behind each of several values, and links them by a token: they are told of in
one order, in every member. Compilers may still compute what a later value needs before they tell of
an earlier one. `_Soon` prevents this: it makes PyTensor compute only what a value needs before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.features import Feature
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import OutputStorageType
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import int64 as token_type

from synkhronos._compiling.graph_types import Arrays
from synkhronos._compiling.where import Where
from synkhronos._engine.graph_collectives import FIRST_TOKEN
from synkhronos._engine.ready_values import TellingOp, tell

_LAST = 1002.0  # a position after all rewrites, also those of numba's modes


class Ready(TellingOp):
    """The value itself; whoever listens is told its number, and the value."""

    __props__ = ("number",)
    view_map = {0: [0]}  # noqa: RUF012 (PyTensor's own name and type)

    def __init__(self, number: int) -> None:
        self.number = number

    def make_node(self, *inputs: Variable) -> Apply:
        [value, token] = inputs
        return Apply(self, [value, token], [value.type(), token_type()])

    def perform(self, node: Apply, inputs: Arrays, output_storage: OutputStorageType) -> None:
        """Tell of the value."""
        tell(self.number, inputs[0])
        output_storage[0][0], output_storage[1][0] = inputs

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> list[Any]:
        return [shapes[0], ()]

    def do_constant_folding(self, fgraph: FunctionGraph, node: Apply) -> bool:
        """Never: also of a constant the listener wants to be told."""
        return False


def in_order(values: Sequence[Variable]) -> tuple[list[Variable], list[int]]:
    """The same values, each told of when it is there; and their indices, in the order of telling.

    The first are those that depend on the fewest operations: gradients of the last layers.
    """
    depends = [len(list(ancestors([v]))) for v in values]
    order = sorted(range(len(values)), key=lambda i: (depends[i], i))
    found, token = list(values), FIRST_TOKEN
    for number, i in enumerate(order):
        found[i], token = Ready(number).make_node(values[i], token).outputs
    return found, order


class _Soon(Feature):
    """Lets all that a value does not need wait until the listener has been told of the value."""

    def orderings(self, fgraph: FunctionGraph) -> dict[Apply, list[Apply]]:
        """For nodes: which others come before them."""
        destroys: Any = getattr(fgraph, "destroy_handler", None)  # the only other orderings
        before: dict[Apply, list[Apply]] = {} if destroys is None else destroys.orderings(fgraph)
        tellers = [node for node in fgraph.apply_nodes if isinstance(node.op, Ready)]
        found: dict[Apply, list[Apply]] = {}
        done: set[Apply] = set()
        last: Apply | None = None
        groups = sorted(tellers, key=lambda node: node.op.number)
        for teller in (*groups, None):  # what no value needs comes last
            new = (
                set(fgraph.apply_nodes) - done if teller is None else _needed(teller, before, done)
            )
            if last is not None:
                for node in new:
                    if not any(v.owner in new for v in node.inputs):
                        found[node] = [last]
            done |= new
            last = teller
        return found


def _needed(node: Apply, before: dict[Apply, list[Apply]], done: set[Apply]) -> set[Apply]:
    """The nodes that come before this one, and itself, without those that are done."""
    found: set[Apply] = set()
    stack = [node]
    while stack:
        each = stack.pop()
        if each in found or each in done:
            continue
        found.add(each)
        stack += [v.owner for v in each.inputs if v.owner is not None]
        stack += before.get(each, [])
    return found


def _tell_soon(fgraph: Any) -> None:
    """Add `_Soon` to a graph with `Ready`."""
    fgraph.attach_feature(_Soon())


_soon = Where(_tell_soon, Ready)
optdb.register("synkhronos_tell_soon", _soon, "fast_run", "fast_compile", position=_LAST)
