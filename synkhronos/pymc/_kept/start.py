"""The function of the initial point: its rewritten graph, evaluated by its operations."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pymc.pytensorf import find_rng_nodes
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort

from synkhronos._compiling.data.computed import Computed
from synkhronos._compiling.kept.digests import Unkeyed
from synkhronos._compiling.kept.pickles import pickled, unpickled


def packed_start(function: Callable[..., np.ndarray], shared: Sequence[SharedVariable]) -> bytes:
    """Nutpie's function of the initial point: its graph, which is rewritten, without the data.

    Raises
    ------
    Unkeyed
        It reads other data than these.
    """
    made = inspect.unwrap(function).maker
    graph = made.fgraph
    inputs = list(graph.inputs)
    numbers = {id(v.container): number for number, v in enumerate(shared)}
    random = {id(v): -1 - number for number, v in enumerate(find_rng_nodes(graph.outputs))}
    sources = [random.get(id(v), numbers.get(id(v.container))) for v in inputs]
    if None in sources:
        raise Unkeyed("its initial point reads data that its log-density does not read")
    values = graph.outputs[: len(made.outputs)]  # and not the generators after them
    return packed_graph(inputs, sources, values, graph.toposort())


def packed_graph(
    inputs: Sequence[Variable],
    sources: Sequence[object],
    outputs: Sequence[Variable],
    nodes: Sequence[Apply] | None = None,
) -> bytes:
    """A graph that Python evaluates, and where the values of its inputs come from."""
    order = list(toposort(outputs, blockers=inputs)) if nodes is None else nodes
    return pickled(([v.type for v in inputs], sources, pickled((order, outputs), inputs)))


def unpacked_graph(packed: bytes) -> tuple[list[Any], Computed]:
    """The sources of a graph's inputs, and what evaluates it."""
    sources, inputs, nodes, outputs = parts_of(packed)
    return sources, Computed(inputs, outputs, nodes)


def parts_of(packed: bytes) -> tuple[list[Any], list[Variable], list[Apply], list[Variable]]:
    """The sources of a graph's inputs, these, its operations in an order, and its outputs."""
    kinds, sources, graph = unpickled(packed)
    inputs = [kind() for kind in kinds]
    nodes, outputs = unpickled(graph, inputs)
    return sources, inputs, nodes, outputs


class Start:
    """A function of a seed, which returns the initial values of all variables as one vector.

    Each operation is evaluated by Python, as PyTensor evaluates this graph where it was made.

    Parameters
    ----------
    packed : bytes
        Of `packed_start`.
    shared : sequence of SharedVariable
    shapes : mapping
        Of the variables, by name, in their order.
    """

    def __init__(
        self,
        packed: bytes,
        shared: Sequence[SharedVariable],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._sources, self._computed = unpacked_graph(packed)
        self._shared, self._shapes = shared, shapes
        self._lock = threading.Lock()  # nutpie's chains ask in threads

    def __call__(self, seed: Any = None) -> np.ndarray:
        """Evaluate the graph, with generators of this seed."""
        with self._lock:
            count = sum(source < 0 for source in self._sources)
            seeds = np.random.SeedSequence(seed).spawn(count)
            given = [
                np.random.Generator(np.random.PCG64(seeds[-1 - source]))
                if source < 0
                else self._shared[source].get_value(borrow=True)
                for source in self._sources
            ]
            found = [np.asarray(value) for value in self._computed(*given)]
        for value, (name, shape) in zip(found, self._shapes.items(), strict=True):
            if value.shape != shape:
                raise ValueError(f"the initial value of {name} has the shape {value.shape}")
        return np.concatenate([np.zeros(0), *(v.ravel().astype("float64") for v in found)])
