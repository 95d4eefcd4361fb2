"""The function of the initial point: its rewritten graph, evaluated by its operations."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pymc.pytensorf import find_rng_nodes
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant

from synkhronos._compiling.kept.keys import Unkeyed
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
    nodes = pickled((graph.toposort(), values), inputs)
    return pickled(([v.type for v in inputs], sources, nodes))


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
        kinds, sources, nodes = unpickled(packed)
        inputs = [kind() for kind in kinds]
        order, self._outputs = unpickled(nodes, inputs)
        self._given = list(zip(inputs, sources, strict=True))
        self._shared, self._shapes = shared, shapes
        self._cells: dict[Any, list[Any]] = {v: [None] for v in inputs}
        for v in [*self._outputs, *(v for node in order for v in (*node.inputs, *node.outputs))]:
            self._cells.setdefault(v, [v.data if isinstance(v, Constant) else None])
        ready = {v: [True] for v in self._cells}
        self._steps = [n.op.make_thunk(n, self._cells, ready, [], impl="py") for n in order]
        self._made = [self._cells[v] for node in order for v in node.outputs]
        self._lock = threading.Lock()  # nutpie's chains ask in threads

    def __call__(self, seed: Any = None) -> np.ndarray:
        """Evaluate the graph, with generators of this seed."""
        with self._lock:
            for cell in self._made:
                cell[0] = None
            count = sum(source < 0 for _, source in self._given)
            seeds = np.random.SeedSequence(seed).spawn(count)
            for variable, source in self._given:
                self._cells[variable][0] = (
                    np.random.Generator(np.random.PCG64(seeds[-1 - source]))
                    if source < 0
                    else self._shared[source].get_value(borrow=True)
                )
            for step in self._steps:
                step()
            found = [np.asarray(self._cells[v][0]) for v in self._outputs]
        for value, (name, shape) in zip(found, self._shapes.items(), strict=True):
            if value.shape != shape:
                raise ValueError(f"the initial value of {name} has the shape {value.shape}")
        return np.concatenate([np.zeros(0), *(v.ravel().astype("float64") for v in found)])
