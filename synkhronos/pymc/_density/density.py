"""The likelihood as an operation that needs no group: its graph is a part of the model's function.

`Density` is what `fast` puts into a model's log-density. Whoever compiles the model for numba
(PyMC, nutpie) gets the code that members run, inside of that function. For other modes its graph
becomes a part of the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import optdb
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph, Output
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import MergeOptimizer, get_active_mode, graph_rewriter
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor import TensorVariable

from synkhronos._compiling.graph_types import Inputs
from synkhronos._compiling.lean.mode import with_lean
from synkhronos._compiling.lean.rewrite import register as register_lean
from synkhronos._compiling.python_mode import python_mode
from synkhronos._compiling.vectorised.rewrite import register as register_vectorised
from synkhronos._compiling.vectorised.tails import expanded
from synkhronos._compiling.where import rewriter_before
from synkhronos._libraries.library import optional_gain
from synkhronos._libraries.pytensor import PYTENSOR
from synkhronos.pymc._density.likelihood import DividedTerms, Likelihood
from synkhronos.pymc._density.op import Storage, pulled_back
from synkhronos.pymc._reading.facts import is_smooth

# Before PyTensor's first rewrites, and after those that know nothing of loops.
_FIRST, _BEFORE_LOOPS = -0.02, 47.0


class Density(OpFromGraph):
    """Sources, data -> log-density, its gradients by the smooth sources."""

    def __init__(
        self,
        inputs: list[Variable],
        outputs: list[Variable],
        smooth: tuple[bool, ...],
        connected: tuple[bool, ...] | None = None,
    ) -> None:
        super().__init__(inputs, outputs, name="density", on_unused_input="ignore")
        self.smooth = smooth  # for each input, whether an output is the gradient by it
        # whether others shall take this gradient, else they leave it out of sums. Default: all
        self.connected = smooth if connected is None else connected
        self._in_python: Callable[..., list[object]] | None = None

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Outputs depend on the inputs by which there is a gradient."""
        return [[connected] * len(node.outputs) for connected in self.connected]

    def perform(self, node: Apply, inputs: Sequence[np.ndarray], output_storage: Storage) -> None:
        """Evaluate the graph in Python; numba and JAX do not come here."""
        if self._in_python is None:
            given, outputs = self.expanded()
            self._in_python = pytensor.function(
                given, outputs, mode=python_mode(), on_unused_input="ignore"
            )
        for storage, value in zip(output_storage, self._in_python(*inputs), strict=True):
            storage[0] = value

    def expanded(self) -> tuple[list[Variable], list[Variable]]:
        """The inputs and outputs of the graph, with PyTensor's own operations."""
        graph = self.fgraph.unfreeze()
        return graph.inputs, expanded(graph.outputs)

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_in_python": None}

    def pullback(self, inputs: Inputs, outputs: Inputs, cotangents: Inputs) -> list[Variable]:
        """The gradients, which are outputs; second derivatives are those of the graph."""
        if all(isinstance(c.type, DisconnectedType) for c in cotangents[1:]):
            found = pulled_back(outputs, cotangents[0], self.smooth)
        else:
            whole = OpFromGraph(*self.expanded(), on_unused_input="ignore")
            found = [
                pt.zeros_like(v) if isinstance(g.type, DisconnectedType) else g
                for v, g in zip(inputs, whole.pullback(inputs, outputs, cotangents), strict=True)
            ]
        pairs = zip(found, self.connected, strict=True)
        return [v if connected else DisconnectedType()() for v, connected in pairs]


class AsInGroups(Op):
    """A log-density -> the same. The functions that contain it are compiled as those of groups."""

    __props__ = ()

    def __init__(self) -> None:
        self.view_map = {0: [0]}

    def make_node(self, *inputs: Variable) -> Apply:
        return Apply(self, list(inputs), [v.type() for v in inputs])

    def perform(self, node: Apply, inputs: Sequence[np.ndarray], output_storage: Storage) -> None:
        output_storage[0][0] = inputs[0]

    def pullback(self, inputs: Inputs, outputs: Inputs, cotangents: Inputs) -> list[Variable]:
        """The gradient has a mark, too: a function may have no other part of the graph."""
        [given] = cotangents
        if isinstance(given.type, DisconnectedType):
            return [given]
        return list(self.make_node(given).outputs)


def density(
    likelihood: Likelihood,
    data: Sequence[Sequence[Variable]],  # of each part: the arrays with rows, then the whole ones
    sources: Sequence[Variable],  # in place of the pieces of theta, and of the latents
) -> list[TensorVariable]:
    """The outputs of a `Density`: the log-density, and the gradient by each smooth source."""
    places = [v.type() for v in sources]
    inputs, outer, values = list(places), list(sources), []
    gradients: dict[int, list[TensorVariable]] = {}
    moving: set[int] = set()  # the places by which the gradient is not 0 everywhere
    for part, arrays in zip(likelihood.parts, data, strict=True):
        made = [v.type() for v in arrays]
        inputs += made
        outer += arrays
        value, found, constant = _applied(part, likelihood, places, made)
        values.append(value)
        moving |= found.keys() - constant
        for i, gradient in found.items():
            gradients.setdefault(i, []).append(gradient)
    smooth = [is_smooth(v) for v in places]
    by_sources = [
        (pt.add(*found) if (found := gradients.get(i)) else pt.zeros_like(v)).astype(v.type.dtype)
        for i, v in enumerate(places)
        if smooth[i]
    ]
    # a zero of a computed source would hide what cancels in the sum of the model's gradient
    connected = [
        each and (i in moving or sources[i].owner is None) for i, each in enumerate(smooth)
    ]
    of_data = [False] * (len(inputs) - len(places))
    operation = Density(
        inputs,
        [pt.add(*values).astype("float64"), *by_sources],
        (*smooth, *of_data),
        (*connected, *of_data),
    )
    return operation(*outer, return_list=True)


def _applied(
    part: DividedTerms, likelihood: Likelihood, places: Sequence[Variable], made: Sequence[Variable]
) -> tuple[TensorVariable, dict[int, TensorVariable], set[int]]:
    """The value of a part on places of sources and data, and the gradients by number of place.

    The last are the numbers of places that conditions alone depend on.
    """
    number = {p: i for i, p in enumerate(likelihood.pieces)}
    latents = [len(number) + i for i in part.latents]
    pieces = [number[p] for p in part.pieces]
    smooth = [i for i in latents if is_smooth(places[i])]
    theta, *whole = part.broadcast  # in place of theta there are the pieces
    del theta
    given = [*[places[i] for i in [*pieces, *latents]], *made]
    pairs = zip([*part.pieces.values(), *part.scattered, *whole], given, strict=True)
    value, *found = clone_replace(
        [part.value, *part.by_pieces.values(), *part.by_latents],
        replace=[(a, b.astype(a.type.dtype)) for a, b in pairs],
        rebuild_strict=False,
    )
    constant = {
        len(number) + each if isinstance(each, int) else number[each] for each in part.constant_by
    }
    gradients = zip([*[number[p] for p in part.by_pieces], *smooth], found, strict=True)
    return value, dict(gradients), constant


@graph_rewriter  # type: ignore[untyped-decorator]
def _inline(fgraph: FunctionGraph) -> None:
    """Modes without numba get the graph, with PyTensor's own operations.

    For numba a mark is moved to an output: inside of a gradient it would keep constants apart.
    """
    is_marked = _without_marks(fgraph)
    if isinstance(get_active_mode(fgraph).linker, NumbaLinker):
        if is_marked:
            output = fgraph.outputs[0]
            [(reader, place), *_] = [
                c for c in fgraph.clients[output] if isinstance(c[0].op, Output)
            ]
            fgraph.change_node_input(reader, place, AsInGroups()(output), reason="as_in_groups")
        return
    for node in [n for n in fgraph.toposort() if isinstance(n.op, Density)]:
        places, outputs = node.op.expanded()
        pairs = dict(zip(places, node.inputs, strict=True))
        found = clone_replace(outputs, replace=pairs, rebuild_strict=False)
        fgraph.replace_all(list(zip(node.outputs, found, strict=True)), reason="inline_density")


@graph_rewriter  # type: ignore[untyped-decorator]
def _join(fgraph: FunctionGraph) -> None:
    """For numba the graph is rewritten as a member's, and its loops join those of the model.

    Outputs that nobody reads are left out. Constants become a part of it: loops then need not ask
    whether an index is negative, and what is computed from data alone is folded.
    """
    mode = get_active_mode(fgraph)
    found = [n for n in fgraph.toposort() if isinstance(n.op, Density)]
    if not isinstance(mode.linker, NumbaLinker) or not (_without_marks(fgraph) or found):
        return
    suited = with_lean(mode)
    first = rewriter_before(_BEFORE_LOOPS, suited)
    for node in found:
        used = [v for v in node.outputs if fgraph.clients[v]]
        inner = node.op.fgraph.unfreeze()
        pairs = list(zip(inner.inputs, node.inputs, strict=True))
        outputs = clone_replace(
            [inner.outputs[node.outputs.index(v)] for v in used],
            replace=[(place, v) for place, v in pairs if isinstance(v, Constant)],
            rebuild_strict=False,
        )
        open_pairs = [(place, v) for place, v in pairs if not isinstance(v, Constant)]
        graph = FunctionGraph([place for place, _ in open_pairs], outputs, clone=False)
        first.rewrite(graph)
        values = clone_replace(list(graph.outputs), replace=open_pairs, rebuild_strict=False)
        fgraph.replace_all(list(zip(used, values, strict=True)), reason="join_density")
    MergeOptimizer().rewrite(fgraph)
    with optional_gain():  # of what follows
        PYTENSOR.put(fgraph, "_compile_mode", suited)


def _without_marks(fgraph: FunctionGraph) -> bool:
    """Take the marks out of a graph; whether there were any."""
    marks = [n for n in fgraph.toposort() if isinstance(n.op, AsInGroups)]
    for node in marks:
        fgraph.replace(node.outputs[0], node.inputs[0], reason="as_in_groups")
    return bool(marks)


register_lean()
register_vectorised()
optdb.register("synkhronos_inline_density", _inline, "fast_compile", "fast_run", position=_FIRST)
optdb.register("synkhronos_join_density", _join, "numba", position=_BEFORE_LOOPS)
