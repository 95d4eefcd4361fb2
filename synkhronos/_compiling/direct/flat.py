"""A graph without graphs inside: its operations, and their values at a point."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar import basic as ps
from pytensor.scalar.basic import Composite
from pytensor.scalar.loop import ScalarLoop
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

from synkhronos._compiling.array_functions import ArrayLoop
from synkhronos._compiling.direct.unfit import OutsideError
from synkhronos._compiling.lean.covariances import CovarianceGradient
from synkhronos._compiling.lean.op import Lean
from synkhronos._compiling.lean.row_products import ChosenRowProducts, SumsOfRowsByIndex
from synkhronos._compiling.python_mode import OF_ARRAYS
from synkhronos._compiling.vectorised.op import Vectorised

_FOLDED = ps.Add, ps.Mul, ps.Maximum, ps.Minimum, ps.AND, ps.OR, ps.XOR


@dataclass
class Flat:
    """The operations of a graph in an order, with those of inner graphs in their place.

    It is for data of all lengths that the types of its variables allow.
    """

    inputs: list[Variable]
    nodes: list[Apply]
    outputs: list[Variable]

    @classmethod
    def of(cls, graph: Any) -> Flat:
        """The operations of a FunctionGraph, on variables of their own."""
        nodes: list[Apply] = []
        inputs: list[Variable] = [v.type() for v in graph.inputs]
        return cls(inputs, nodes, _opened(graph, inputs, nodes))

    def evaluated(self, given: Sequence[Any]) -> Evaluated:
        """All variables at a point, by PyTensor's code in Python.

        Values are freed when no operation needs them any more.

        Raises
        ------
        OutsideError
            An index that does not depend on the point is beyond an axis.
        Exception
            The graph is not for these values: some do not have the types of their variables, or an
            operation refuses them.
        """
        found: dict[Variable, Any] = dict(zip(self.inputs, given, strict=True))
        for v, value in found.items():
            if value.dtype != v.type.dtype:
                raise TypeError(f"{value.dtype} is given as {v.type}")
        shapes = {v: _shape_of(v, value) for v, value in found.items()}
        integers = {v: int(value) for v, value in found.items() if _is_integer(value)}
        last = {v: node for node in self.nodes for v in node.inputs}
        kept = {*self.inputs, *self.outputs}
        of_data = set(self.inputs[1:])
        for node in self.nodes:
            values = [v.data if isinstance(v, Constant) else found[v] for v in node.inputs]
            fixed = [isinstance(v, Constant) or v in of_data for v in node.inputs]
            if all(fixed):
                of_data.update(node.outputs)
            _refuse_outside(node, values, fixed)
            for v, value in zip(node.outputs, _results(node, values), strict=True):
                shapes[v] = _shape_of(v, value)
                if _is_integer(value):
                    integers[v] = int(value)
                if v in last or v in kept:
                    found[v] = value
            for v in set(node.inputs) - kept:
                if last[v] is node:
                    found.pop(v, None)
        outputs = [v.data if isinstance(v, Constant) else found[v] for v in self.outputs]
        return Evaluated(shapes, integers, outputs)


@dataclass(frozen=True)
class Evaluated:
    """The variables of a graph at a point.

    Attributes
    ----------
    shapes : dict of Variable to tuple of int
        Of all variables but constants.
    integers : dict of Variable to int
        The values of those that are one integer.
    outputs : list
        The values of the outputs.
    """

    shapes: dict[Variable, tuple[int, ...]]
    integers: dict[Variable, int]
    outputs: list[Any]


def _is_integer(value: Any) -> bool:
    return np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iu"


def _opened(graph: Any, inputs: Sequence[Variable], nodes: list[Apply]) -> list[Variable]:
    """Append the operations of a graph; returns its outputs."""
    known: dict[Variable, Variable] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.toposort():
        given = [known.get(v, v) for v in node.inputs]
        if isinstance(node.op, OpFromGraph) and not isinstance(node.op, CovarianceGradient):
            found = _opened(node.op.fgraph, given, nodes)
        else:
            made = Apply(node.op, given, [v.type() for v in node.outputs])
            nodes.append(made)
            found = made.outputs
        known.update(zip(node.outputs, found, strict=True))
    return [known.get(v, v) for v in graph.outputs]


def _shape_of(variable: Any, value: Any) -> tuple[int, ...]:
    """The shape of a value.

    Raises
    ------
    ValueError
        It is not one that the variable's type allows.
    """
    shape, known = np.shape(value), getattr(variable.type, "shape", ())
    if len(shape) == len(known) and all(k in (None, n) for k, n in zip(known, shape, strict=True)):
        return shape
    raise ValueError(f"{variable.type} has the shape {shape}")


def _results(node: Apply, values: Sequence[Any]) -> list[Any]:
    """The results of an operation, which writes into none of the values that it is given."""
    if isinstance(node.op, Elemwise):
        _refuse_repeated(node, values)
        return _elementwise(node.op.scalar_op, values, [v.type.dtype for v in node.outputs])
    if isinstance(node.op, OpFromGraph):
        return Flat.of(node.op.fgraph).evaluated(values).outputs
    written = {at for places in node.op.destroy_map.values() for at in places}
    values = [np.copy(v) if at in written else v for at, v in enumerate(values)]
    cells: list[list[Any]] = [[None] for _ in node.outputs]
    node.op.perform(node, values, cells)
    return [cell[0] for cell in cells]


def _refuse_outside(node: Apply, values: Sequence[Any], fixed: Sequence[bool]) -> None:
    """Raise where an index array is beyond an axis of what it chooses from, if it is fixed.

    Raises
    ------
    OutsideError
    """
    op = node.op.op if isinstance(node.op, Lean) else node.op
    if isinstance(op, ChosenRowProducts):
        chosen = [(len(values[0]), 2)]
    elif isinstance(op, SumsOfRowsByIndex):
        chosen = [(int(values[3]), 2)]
    elif isinstance(op, AdvancedSubtensor | AdvancedIncSubtensor):
        # an array, and what is put into it, come before the indices
        first = 1 if isinstance(op, AdvancedSubtensor) else 2
        places = zip(np.shape(values[0]), op.idx_list, strict=False)
        chosen = [(n, first + place) for n, place in places if not isinstance(place, slice)]
    else:
        return
    for length, place in chosen:
        index = np.asarray(values[place])
        if index.dtype == bool:  # it takes as many axes as it has
            return
        outside = np.argwhere((index < -length) | (index >= length))
        if len(outside) and fixed[place]:
            at = tuple(map(int, outside[0]))
            row = f" of row {at[0]}" if at else ""
            raise OutsideError(f"index {index[at]}{row} is out of bounds for {length} elements")


def _refuse_repeated(node: Apply, values: Sequence[Any]) -> None:
    """Raise where elements would be repeated along an axis whose type does not have length 1.

    PyTensor refuses it too: gradients would lack a sum.

    Raises
    ------
    ValueError
    """
    for axis, lengths in enumerate(zip(*map(np.shape, values), strict=True)):
        open_ones = [
            n == 1 and not v.type.broadcastable[axis]
            for v, n in zip(node.inputs, lengths, strict=True)
        ]
        if any(open_ones) and set(lengths) != {1}:
            raise ValueError(f"{node.op} would repeat elements along axis {axis} of {lengths}")


def _elementwise(op: Any, values: Sequence[Any], dtypes: Sequence[str]) -> list[Any]:
    """The results of a scalar operation for each element, by functions of numpy where it has one.

    PyTensor's code in Python takes 32 operands at most, and calls Python for each element of a
    composition.
    """
    if isinstance(op, Composite):
        known: dict[Variable, Any] = dict(zip(op.fgraph.inputs, values, strict=True))
        for node in op.fgraph.toposort():
            given = [v.data if isinstance(v, Constant) else known[v] for v in node.inputs]
            kinds = [v.type.dtype for v in node.outputs]
            known.update(zip(node.outputs, _elementwise(node.op, given, kinds), strict=True))
        found = [v.data if isinstance(v, Constant) else known[v] for v in op.fgraph.outputs]
        shape = np.broadcast_shapes(*map(np.shape, values))
        return [np.broadcast_to(v, shape).astype(d) for v, d in zip(found, dtypes, strict=True)]
    if isinstance(op, ScalarLoop):
        cells: list[list[Any]] = [[None] for _ in dtypes]
        ArrayLoop(op).perform(cast(Any, None), values, cells)
        return [np.asarray(found).astype(d) for [found], d in zip(cells, dtypes, strict=True)]
    [dtype] = dtypes
    plain = op.plain if isinstance(op, Vectorised) else op
    if dtype != "bool":  # PyTensor computes in the dtype of the result
        first = 1 if isinstance(plain, ps.Switch) else 0
        values = [*values[:first], *(np.asarray(v).astype(dtype) for v in values[first:])]
    with np.errstate(all="ignore"):
        return [np.asarray(_function(plain)(*values)).astype(dtype)]


def _folded(ufunc: Any) -> Callable[..., Any]:
    """A function of any number of arrays."""
    return lambda *values: functools.reduce(ufunc, values)


def _function(op: Any) -> Callable[..., Any]:
    """A function of arrays."""
    if isinstance(op, ps.Cast | ps.Identity):
        return np.asarray
    name = OF_ARRAYS.get(type(op)) or (getattr(op, "nfunc_spec", None) or ("",))[0]
    module, _, name = name.rpartition(".")
    found = getattr(import_module(module or "numpy"), name, None) if name else None
    if found is None:
        return np.vectorize(op.impl, otypes=[object])
    return _folded(found) if isinstance(op, _FOLDED) else found
