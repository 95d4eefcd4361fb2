"""Values of data alone are computed once, and not in each call of a graph's function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.compile.aliasing import DestroyHandler
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace
from pytensor.scalar.basic import Add, Mul, TrueDiv
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.type import TensorType

from synkhronos._compiling.data.computed import Computed
from synkhronos._compiling.data.lifted import Data

_REASON = "synkhronos_once"


class Once(Op):
    """Arrays that are computed of data. Whoever calls a function that reads them computes them.

    Attributes
    ----------
    inputs, outputs : list of Variable
        The graph of them.
    """

    def __init__(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> None:
        self.inputs = [v.type() for v in inputs]
        now = dict(zip(inputs, self.inputs, strict=True))
        self.outputs = clone_replace(list(outputs), now)
        self.view_map = {at: [0] for at in range(len(outputs))}  # so nothing is written into them

    def make_node(self, *inputs: Variable) -> Apply:
        return Apply(self, list(inputs), [v.type() for v in self.outputs])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        found = Computed(self.inputs, self.outputs)(*inputs)
        for cell, value in zip(output_storage, found, strict=True):
            cell[0] = value


def compute_once(fgraph: FunctionGraph) -> None:
    """Put what a graph computes of data alone into one operation, before loops are fused.

    Sums and products of data become ones of data alone.
    """
    data = [v for v in fgraph.inputs if isinstance(v, Data)]
    if not data:
        return
    known, filled = set[Variable](data), set[Variable]()
    for node in fgraph.toposort():
        if isinstance(node.op, SpecifyShape) and node.inputs[0] in data and _is_own(node, known):
            fgraph.replace(node.outputs[0], node.inputs[0], reason=_REASON)
        elif known.isdisjoint(node.inputs):
            if isinstance(node.op, Alloc) and _of_constants(node):
                filled.update(node.outputs)
        elif all(v in known or v in filled or isinstance(v, Constant) for v in node.inputs):
            known.update(node.outputs)
        else:
            known |= _regrouped(fgraph, node, known)
    found = list(dict.fromkeys(_read(fgraph, known)))
    if found:
        made = Once(data, found).make_node(*data).outputs
        pairs = list(zip(found, made, strict=True))
        fgraph.replace_all(pairs, reason=_REASON, import_missing=True)


def _is_own(node: Apply, known: set[Variable]) -> bool:
    """Whether the lengths are those that data are made with; data need not have the user's."""
    return all(v in known or isinstance(v, Constant) for v in node.inputs[1:])


def _of_constants(node: Apply) -> bool:
    return all(isinstance(v, Constant) for v in node.inputs)


def _regrouped(fgraph: FunctionGraph, node: Apply, known: set[Variable]) -> set[Variable]:
    """Let data of a sum or a product be one operand; division by data is a product.

    PyTensor's rewrites do the same with constants, also in the type of the result: short integers
    would overflow. Returns what is computed of data then.
    """
    op: Any = node.op
    if not isinstance(op, Elemwise):
        return set()
    first, *others = node.inputs
    made: Any
    now: Any
    kind = node.outputs[0].type.dtype
    if isinstance(op.scalar_op, Add | Mul):
        data = [v for v in node.inputs if v in known or isinstance(v, Constant)]
        if len(data) < 2:
            return set()
        own = [pt.cast(v, kind) for v in data]
        made = op(*own)
        now = op(*[v for v in node.inputs if v not in data], made)
    elif isinstance(op.scalar_op, TrueDiv) and others[0] in known:
        own = [pt.cast(others[0], kind)]
        made = pt.reciprocal(*own)
        now = pt.mul(first, made)
    else:
        return set()
    if now.type != node.outputs[0].type:
        return set()
    fgraph.replace(node.outputs[0], now, reason=_REASON, import_missing=True)
    return {*own, made}


def _read(fgraph: FunctionGraph, known: set[Variable]) -> Iterator[Variable]:
    """The arrays of data alone that others read. Their views, fills and numbers take no time."""
    asked = [v for node in fgraph.toposort() if node.outputs[0] not in known for v in node.inputs]
    asked = [v for v in [*asked, *fgraph.outputs] if v in known][::-1]
    while asked:
        v = asked.pop()
        if v.owner is None:
            continue
        is_array = isinstance(v.type, TensorType)  # a number would be passed as an array
        if v.owner.op.view_map or isinstance(v.owner.op, Alloc) or not is_array:
            asked += reversed(v.owner.inputs)
        else:
            yield v


def with_data_apart(fgraph: FunctionGraph) -> tuple[FunctionGraph, list[Variable]] | None:
    """The graph of a function that takes what is computed once, and only data that it reads.

    Returns
    -------
    (FunctionGraph, list of Variable) or None
        The graph, and the variables of the given one that its inputs are. None: there are no data.
    """
    if not any(isinstance(v, Data) for v in fgraph.inputs):
        return None
    once = [node for node in fgraph.toposort() if isinstance(node.op, Once)]
    given = [v for v in fgraph.inputs if not isinstance(v, Data) or _is_read(fgraph, v)]
    given += [v for node in once for v in node.outputs]
    inputs = [v.type() for v in given]
    outputs = clone_replace(list(fgraph.outputs), dict(zip(given, inputs, strict=True)))
    found = FunctionGraph(inputs, outputs, clone=False)
    found.attach_feature(DestroyHandler())
    return found, given


def _is_read(fgraph: FunctionGraph, variable: Variable) -> bool:
    return any(not isinstance(node.op, Once) for node, _ in fgraph.clients[variable])


def values_of(variables: Sequence[Any]) -> list[Any]:
    """The values of shared variables, and of what is computed once."""
    found: dict[Any, Any] = {}
    for v in variables:
        if v.owner is None:
            found[v] = v.get_value(borrow=True)
        elif v not in found:
            op = v.owner.op
            made = Computed(op.inputs, op.outputs)(*values_of(v.owner.inputs))
            found |= dict(zip(v.owner.outputs, made, strict=True))
    return [found[v] for v in variables]
