"""Arrays of a graph become variables, so that graphs which differ in them are one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from copy import copy
from hashlib import blake2b
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.assumptions import MATRIX_KEYS
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import toposort
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import specify_shape
from pytensor.tensor.sharedvar import TensorSharedVariable
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorConstant, TensorVariable

from synkhronos._compiling.data.computed import Computed

_GATHERS = (AdvancedSubtensor, AdvancedIncSubtensor)
# What takes integers as numbers. Elsewhere they may be shapes, which graphs are built by.
_TAKES_NUMBERS = (Elemwise, Dot, DimShuffle, CAReduce, *_GATHERS)
# Numbers of all data: code that has fewer is up to a fifth faster than code that reads them, since
# their addresses take 10 to 27 ns.
_FEWEST = 200
_LARGE = 10**6  # bytes of an array whose address, and not its contents, would be in the code


class Data(TensorSharedVariable):
    """An array, or a length of arrays, that was a constant of a graph. Its value stays."""


def lifted(outputs: Sequence[Variable]) -> list[Variable]:
    """The outputs of a graph, with `Data` in place of its arrays and of their lengths.

    The graph computes the same. Arrays stay constants where code depends on what is in them: those
    of one value everywhere, integers that may be a shape, indices in place of which PyTensor puts a
    slice, and matrices that are diagonal or of another form by which it finds a shorter way. A
    condition that holds everywhere, such as a check of data, becomes a constant. Lengths stay if a
    variable of the graph has the same, or if the graph has them in other ways than are known here.
    """
    graph = _Graph(outputs)
    if not graph.data:
        return list(outputs)
    for lengths in (graph.lengths(), {}):
        with contextlib.suppress(Exception):  # of operations that are built by lengths or values
            found = graph.with_data(lengths)
            if not _has_length(found, lengths):
                return found
    return list(outputs)


class _Graph:
    """A graph, and which of its arrays are data."""

    def __init__(self, outputs: Sequence[Variable]) -> None:
        self._outputs, self._nodes = outputs, list(toposort(outputs))
        clients: dict[Variable, list[Apply]] = {}
        constant = set[Variable]()
        for node in self._nodes:
            for v in node.inputs:
                clients.setdefault(v, []).append(node)
                if isinstance(v, Constant):
                    constant.add(v)
            if constant.issuperset(node.inputs):
                constant.update(node.outputs)
        self._clients, self._constant = clients, constant
        data = {v: users for v, users in clients.items() if _is_data(v, users)}
        numbers = sum(v.data.size for v in data if isinstance(v, TensorConstant))
        self.data = data if numbers >= _FEWEST else {}

    def lengths(self) -> dict[int, Data]:
        """The lengths of data that no other variable has. Loops are made by lengths: none."""
        if any(isinstance(node.op, HasInnerGraph) for node in self._nodes):
            return {}
        found = {n for v in self.data if isinstance(v, TensorConstant) for n in v.data.shape}
        for v in self._clients:
            if v.owner is None and not isinstance(v, Constant):
                found.difference_update(getattr(v.type, "shape", ()))
        kind = TensorType("int64", ())
        return {
            n: Data(kind, np.array(n), strict=True, name=f"synk length {number}")
            for number, n in enumerate(sorted(found - {0, 1}))
        }

    def with_data(self, lengths: Mapping[int, Data]) -> list[Variable]:
        """The outputs with data, whose types do not have these lengths.

        Raises
        ------
        Exception
            An operation cannot take them.
        """
        now: dict[Variable, Variable] = {}
        equal: dict[object, Variable] = {}
        for v, users in self.data.items():
            value = _value(v, users)
            by_columns = value.ndim == 2 and self._is_by_columns(v)
            contents = value.dtype.str, value.shape, by_columns, digest(value)
            if contents not in equal:
                made = _data(value.T if by_columns else value, len(equal), lengths)
                equal[contents] = made.T if by_columns else made
            now[v] = equal[contents]
        facts = self._facts()
        for node in self._nodes:
            given = [self._given(node, place, now, lengths) for place in range(len(node.inputs))]
            if given != node.inputs:
                for old, new in zip(node.outputs, node.op.make_node(*given).outputs, strict=True):
                    if _kind(old) != _kind(new):
                        raise TypeError(f"{node.op} makes {new.type} of data, and not {old.type}")
                    new.name, new.tag = old.name, copy(old.tag)  # it may say that L is triangular
                    now[old] = new
            for v in node.outputs:
                if v in facts and v in now:
                    now[v] = pt.second(now[v], facts[v])
                    now[v].name = v.name
        return [v if isinstance(v, Constant) else now.get(v, v) for v in self._outputs]

    def _is_by_columns(self, matrix: Any) -> bool:
        """Whether products alone read a matrix that has more rows than columns.

        BLAS is then up to three times as fast where columns are without gaps: 5 us for both
        products of 1,000 rows of 10 numbers with a vector, and 10 where rows are.
        """
        rows, columns = matrix.type.shape
        return rows > columns and self._is_multiplied(matrix)

    def _is_multiplied(self, matrix: Variable) -> bool:
        users = self._clients.get(matrix, [])
        return bool(users) and all(
            self._is_multiplied(node.outputs[0])
            if isinstance(node.op, DimShuffle)
            else _is_product(node)
            for node in users
        )

    def _facts(self) -> dict[Variable, np.bool_]:
        """The conditions on constants alone that are true everywhere, or false everywhere."""
        asked = [v for node in self._nodes for v in node.outputs if self._is_condition(v)]
        found = zip(asked, map(np.asarray, Computed([], asked)()), strict=True)
        return {v: value.flat[0] for v, value in found if _is_uniform(value)}

    def _is_condition(self, variable: Variable) -> bool:
        """Whether it is computed of constants alone, and read by what is not, or as a scalar."""
        kind = variable.type
        if variable not in self._constant or not isinstance(kind, TensorType):
            return False
        users = self._clients.get(variable, [])
        inner = [v for node in users for v in node.outputs if isinstance(v.type, TensorType)]
        made = [v for node in users for v in node.outputs]
        return kind.dtype == "bool" and (inner != made or not self._constant.issuperset(made))

    def _given(
        self, node: Apply, place: int, now: dict[Variable, Variable], lengths: Mapping[int, Data]
    ) -> Variable:
        """An input of an operation, with the lengths of data in place of numbers."""
        v = node.inputs[place]
        if v in now or v not in self._constant or not lengths:
            return now.get(v, v)
        if isinstance(node.op, Alloc) and place:
            [length] = Computed([], [v])()
            return lengths.get(int(length), v)
        if not isinstance(v, TensorConstant) or not _is_uniform(v.data):
            return v
        if lengths.keys().isdisjoint(v.data.shape):
            return v
        shape: list[Any] = [lengths.get(n, n) for n in v.data.shape]
        filled: Any = pt.alloc(v.data.flat[0], *shape)
        now[v] = filled
        return now[v]


def _is_data(variable: Variable, users: Sequence[Apply]) -> bool:
    if not isinstance(variable, TensorConstant) or not all(map(_is_of_tensors, users)):
        return False
    value = np.asarray(variable.data)
    if value.dtype.kind not in "fiub" or value.size < 2:
        return False
    if _is_uniform(value) and value.nbytes <= _LARGE:
        return False
    if _is_slice(value) and any(_is_index(variable, node) for node in users):
        return False
    if value.ndim == 2 and any(map(_is_of_matrices, users)) and _has_form(variable):
        return False
    return value.dtype.kind == "f" or all(isinstance(n.op, _TAKES_NUMBERS) for n in users)


def _is_of_tensors(node: Apply) -> bool:
    """Whether it is an operation of PyTensor's that takes any array of the same kind."""
    of = type(node.op).__module__.startswith("pytensor.tensor.")
    return of and not isinstance(node.op, RandomVariable)


def _is_product(node: Apply) -> bool:
    return isinstance(getattr(node.op, "core_op", node.op), Dot)


def _is_of_matrices(node: Apply) -> bool:
    return not isinstance(node.op, Elemwise | CAReduce)


def _has_form(matrix: Variable) -> bool:
    """Whether PyTensor's rewrites know something of a matrix, such as that it is diagonal."""
    graph = FunctionGraph(outputs=[matrix], clone=False)
    return any(key.holds(matrix, graph) for key in MATRIX_KEYS)


def _is_uniform(value: np.ndarray) -> bool:
    return bool(value.size and (value == value.flat[0]).all())


def _is_slice(value: np.ndarray) -> bool:
    """Whether these are the places that a slice of a vector has."""
    if value.ndim != 1 or value.dtype.kind not in "iu" or value.min() < 0:
        return False
    steps = np.diff(value.astype(np.int64))
    return steps[0] != 0 and _is_uniform(steps)


def _is_index(variable: Variable, node: Apply) -> bool:
    given = 1 if isinstance(node.op, AdvancedSubtensor) else 2  # an array, and what is put into it
    return isinstance(node.op, _GATHERS) and variable in node.inputs[given:]


def _value(constant: Any, users: Sequence[Apply]) -> np.ndarray:
    """Its value. Indices become the shortest integers, as in PyTensor's rewrites of constants."""
    value = np.asarray(constant.data)
    indices = all(_is_index(constant, n) for n in users)
    if value.dtype.kind not in "iu" or not indices:
        return value
    kinds = [np.min_scalar_type(end) for end in (value.min(), value.max())]
    return value.astype(np.result_type(*kinds))


def digest(value: np.ndarray) -> bytes:
    """The digest of an array's contents, which may be large."""
    return blake2b(memoryview(np.ascontiguousarray(value)).cast("B")).digest()


def _data(value: np.ndarray, number: int, lengths: Mapping[int, Data]) -> TensorVariable:
    """A variable of this value, whose lengths are known to be the ones that are variables."""
    kind = TensorType(value.dtype.name, [None if n in lengths else n for n in value.shape])
    above = " above 0" * (value.dtype.kind == "f" and bool((value > 0).all()))
    name = f"synk data {number}{above}"  # is a part of the graph's key
    made = Data(kind, np.ascontiguousarray(value).reshape(value.shape), strict=True, name=name)
    shape: list[Any] = [lengths.get(n) for n in value.shape]
    return made if shape.count(None) == len(shape) else specify_shape(made, shape)


def is_above_zero(variable: Variable) -> bool:
    """Whether these are data that are above 0, also those of other graphs with the same key."""
    return isinstance(variable, Data) and str(variable.name).endswith(" above 0")


def _kind(variable: Any) -> tuple[object, ...]:
    """The facts of a type that operations are built by."""
    kind = variable.type
    return getattr(kind, "dtype", kind), getattr(kind, "broadcastable", None)


def _has_length(outputs: Sequence[Variable], lengths: Mapping[int, Data]) -> bool:
    """Whether types of a graph have one of these lengths."""
    return any(
        not lengths.keys().isdisjoint(getattr(v.type, "shape", ()))
        for node in toposort(outputs)
        for v in (*node.inputs, *node.outputs)
    )
