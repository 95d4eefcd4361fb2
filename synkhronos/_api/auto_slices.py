"""num_slices="auto": the smallest number that keeps a member's temporaries within a budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.rewriting.shape import ShapeFeature

from synkhronos._compiling.graph_types import tensor_type
from synkhronos._engine.replicas import Recipe

BUDGET_BYTES = 256 << 20


class Temporaries:
    """Estimates the bytes of a function's intermediate values, for any number of rows.

    The estimate is the sum over all intermediate values of the graph as written. It is an upper
    bound: compiled functions fuse operations and free values early. A shape that needs a value is
    computed by Python, of one row and of two.
    """

    def __init__(self, recipe: Recipe) -> None:
        roots: list[Variable] = [*recipe.outputs, *(u.new for u in recipe.updates)]
        streams = [s.shared for s in recipe.streams]
        inputs = [*recipe.inputs, *recipe.places, *streams]
        graph = FunctionGraph(outputs=roots, clone=False, features=[ShapeFeature()])
        places = [v.type() for v in inputs]
        self._n = recipe.n_scattered
        self._function = pytensor.function(
            places,
            _bytes_of(graph),
            givens=list(zip(inputs, places, strict=True)),
            # compiling shapes would cost more than it saves
            mode=Mode(linker="py", optimizer="None"),
            on_unused_input="ignore",
        )
        self._shareds = [*recipe.sliceables, *streams]
        self._n_sliceables = len(recipe.sliceables)

    def fewest_slices(self, values: Sequence[object], rows: int | None) -> int:
        """The number of slices that a member with `rows` rows needs.

        Parameters
        ----------
        values : arrays
            The inputs in the recipe's order: the scattered first.
        rows : int or None
            None if only sliceable shared variables have rows.

        Returns
        -------
        int
            1 if Python cannot compute the shapes: an operation is one of JAX or numba only.
        """
        state = [s.container.storage[0] for s in self._shareds]
        sliced = state[: self._n_sliceables]
        if rows is None and sliced:
            rows = len(sliced[0])
        if not rows:
            return 1
        try:
            one, two = (self._bytes(values, state, k) for k in (1, 2))
        except Exception:  # also of values that do not fit each other: the call says so
            return 1
        per_row = max(0.0, two - one)
        room = max(BUDGET_BYTES - (one - per_row), BUDGET_BYTES / 8)
        return max(1, min(rows, -int(-(per_row * rows) // room)))

    def _bytes(self, values: Sequence[Any], state: Sequence[Any], rows: int) -> float:
        cut = [v[:rows] if i < self._n else v for i, v in enumerate(values)]
        shareds = [s[:rows] if i < self._n_sliceables else s for i, s in enumerate(state)]
        return float(self._function(*cut, *shareds))


def _bytes_of(graph: FunctionGraph) -> Variable:
    shape_of = graph.shape_feature.shape_tuple
    sizes = []
    for node in graph.toposort():
        for out in node.outputs:
            kind = tensor_type(out)
            shape = shape_of(out) if hasattr(kind, "dtype") else None
            if shape is not None:
                count = pt.as_tensor(1.0)
                for length in shape:
                    count = count * length
                sizes.append(count * float(np.dtype(kind.dtype).itemsize))
    total: Variable = sum(sizes, pt.as_tensor(0.0))
    return total
