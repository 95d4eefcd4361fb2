"""Graphs of small arrays as graphs of numbers: each element is a variable of its own.

LLVM keeps numbers in registers. PyTensor's code for numba makes an array for each result, about
50 ns, also where it has one element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce, singledispatchmethod
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor, Split, TensorFromScalar
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import IncSubtensor, Subtensor, indices_from_subtensor

MOST_ELEMENTS = 16  # of an array
MOST_NUMBERS = 400  # in a graph: numba compiles about 5 ms for each

type Elements = np.ndarray[Any, np.dtype[np.object_]]  # of variables


class UnfitError(Exception):
    """A graph has an operation, or an array, that is no short list of numbers."""


class Numbers:
    """The elements of the variables of a graph.

    Parameters
    ----------
    known : mapping of Variable to array of Variable
        The elements of the graph's inputs.
    looked_up : callable
        (table, index) -> the elements of the part of a long array that is chosen by numbers.
    """

    def __init__(
        self,
        known: Mapping[Variable, Elements],
        looked_up: Callable[[Variable, Sequence[Any]], Elements],
    ) -> None:
        self._known = dict(known)
        self._looked_up = looked_up
        self._made: dict[tuple[Any, ...], list[Variable]] = {}
        self._beyond: dict[Variable, None] = {}

    def of(self, outputs: Sequence[Variable]) -> list[Elements]:
        """The elements of these variables.

        Raises
        ------
        UnfitError
            They are computed by operations that are not known here, or by too many.
        """
        for node in toposort(outputs, self._known):
            found = self._computed(node.op, node)
            for variable, elements in zip(node.outputs, found, strict=True):
                if elements.size > MOST_ELEMENTS:
                    raise UnfitError
                self._known[variable] = elements
        return [self._cast(self[v], v.type.dtype) for v in outputs]

    def beyond(self) -> Variable | None:
        """Whether an index that the graph computes is out of bounds; None if it has no such one."""
        return self._combined(ps.or_, list(self._beyond)) if self._beyond else None

    def __getitem__(self, variable: Variable) -> Elements:
        if variable not in self._known:
            self._known[variable] = constants(variable)
        return self._known[variable]

    def _apply(self, op: Any, *numbers: Any) -> list[Variable]:
        """The results of an operation of numbers, which is applied once to the same ones."""
        key = op, *(v.signature() if isinstance(v, Constant) else v for v in numbers)
        if key not in self._made:
            if len(self._made) == MOST_NUMBERS:
                raise UnfitError
            self._made[key] = op.make_node(*numbers).outputs
        return self._made[key]

    def _mapped(self, op: Any, *operands: Elements) -> list[Elements]:
        """The results of an operation of numbers for each element of arrays."""
        wide = np.broadcast_arrays(*operands)
        shape = wide[0].shape
        found = [self._apply(op, *(a[at] for a in wide)) for at in np.ndindex(*shape)]
        if not found:
            raise UnfitError
        return [_array(column, shape) for column in zip(*found, strict=True)]

    def _cast(self, elements: Elements, dtype: str) -> Elements:
        return _each(lambda v: v if v.dtype == dtype else self._apply(_to(dtype), v)[0], elements)

    def _chosen(self, index: Any, options: Sequence[Elements]) -> Elements:
        """The option that an index names; it may count from the end."""
        if not options:
            raise UnfitError
        n = len(options)
        ends = [ps.constant(end, "int64") for end in (-n, n)]
        outside = [self._apply(op, index, e)[0] for op, e in zip((ps.lt, ps.ge), ends, strict=True)]
        self._beyond[self._combined(ps.or_, outside)] = None
        *others, found = options
        for at in reversed(range(len(others))):
            found = self._mapped(ps.switch, self._is(index, at, n), others[at], found)[0]
        return found

    def _is(self, index: Any, at: int, length: int) -> Elements:
        ends = [self._apply(ps.eq, index, ps.constant(n, "int64"))[0] for n in (at, at - length)]
        return _array(self._apply(ps.or_, *ends)[0])

    @singledispatchmethod
    def _computed(self, op: Any, node: Apply) -> list[Elements]:
        """The elements of the results of a node."""
        if isinstance(op, ps.ScalarOp):
            return self._mapped(op, *map(self.__getitem__, node.inputs))
        raise UnfitError

    @_computed.register(Elemwise)
    def _(self, op: Elemwise, node: Apply) -> list[Elements]:
        return self._mapped(op.scalar_op, *map(self.__getitem__, node.inputs))

    @_computed.register(OpFromGraph)
    def _(self, op: Any, node: Apply) -> list[Elements]:
        graph = op.fgraph
        known = dict(zip(graph.inputs, map(self.__getitem__, node.inputs), strict=True))
        inner = Numbers(known, self._looked_up)
        inner._made, inner._beyond = self._made, self._beyond
        return inner.of(graph.outputs)

    @_computed.register(ScalarFromTensor)
    @_computed.register(TensorFromScalar)
    @_computed.register(SpecifyShape)
    @_computed.register(ViewOp)
    def _(self, op: Any, node: Apply) -> list[Elements]:
        return [self[node.inputs[0]]]

    @_computed.register(DimShuffle)
    def _(self, op: Any, node: Apply) -> list[Elements]:
        given = self[node.inputs[0]]
        kept = [axis for axis in op.new_order if axis != "x"]
        dropped = tuple(axis for axis in range(given.ndim) if axis not in kept)
        left = [axis - sum(d < axis for d in dropped) for axis in kept]
        moved = given.squeeze(dropped).transpose(left)
        added = tuple(at for at, axis in enumerate(op.new_order) if axis == "x")
        return [np.expand_dims(moved, added)]

    @_computed.register(CAReduce)
    def _(self, op: Any, node: Apply) -> list[Elements]:
        given, out = self[node.inputs[0]], node.outputs[0]
        wide = getattr(op, "acc_dtype", None) or out.type.dtype
        axes = range(given.ndim) if op.axis is None else op.axis
        kept = [axis for axis in range(given.ndim) if axis not in axes]
        shape = tuple(given.shape[axis] for axis in kept)
        rows = self._cast(given.transpose([*kept, *axes]), wide).reshape(*shape, -1)
        if not rows.size:
            raise UnfitError
        found = [self._combined(op.scalar_op, rows[at]) for at in np.ndindex(*shape)]
        return [self._cast(_array(found, shape), out.type.dtype)]

    def _combined(self, op: Any, numbers: Iterable[Variable]) -> Variable:
        """The sum of numbers, or another reduction."""
        return reduce(lambda a, b: self._apply(op, a, b)[0], numbers)

    @_computed.register(Dot)
    def _(self, op: Any, node: Apply) -> list[Elements]:
        dtype = node.outputs[0].type.dtype
        a, b = (self._cast(self[v], dtype) for v in node.inputs)
        if not a.size:
            raise UnfitError
        rows, columns = np.atleast_2d(a), b.reshape(len(b), -1).T
        found = [
            self._combined(ps.add, self._mapped(ps.mul, row, column)[0])
            for row in rows
            for column in columns
        ]
        return [_array(found, a.shape[:-1] + b.shape[1:])]

    @_computed.register(MakeVector)
    def _(self, op: Any, node: Apply) -> list[Elements]:
        return [self._cast(_array([self[v][()] for v in node.inputs]), op.dtype)]

    @_computed.register(Join)
    def _(self, op: Any, node: Apply) -> list[Elements]:
        dtype = node.outputs[0].type.dtype
        return [np.concatenate([self._cast(self[v], dtype) for v in node.inputs], axis=op.axis)]

    @_computed.register(Split)
    def _(self, op: Any, node: Apply) -> list[Elements]:
        given, lengths = node.inputs
        ends = np.cumsum([_number(v) for v in self[lengths]])
        return np.split(self[given], ends[:-1], axis=op.axis)

    @_computed.register(Reshape)
    def _(self, op: Any, node: Apply) -> list[Elements]:
        given, lengths = node.inputs
        return [self[given].reshape([_number(v) for v in self[lengths]])]

    @_computed.register(Alloc)
    def _(self, op: Any, node: Apply) -> list[Elements]:
        value, *lengths = node.inputs
        shape = [_number(self[v][()]) for v in lengths]
        if math.prod(shape) > MOST_ELEMENTS:
            raise UnfitError
        return [np.broadcast_to(self[value], shape)]

    @_computed.register(Shape)
    def _(self, op: Any, node: Apply) -> list[Elements]:
        return [_array([ps.constant(n, "int64") for n in self[node.inputs[0]].shape])]

    @_computed.register(Shape_i)
    def _(self, op: Any, node: Apply) -> list[Elements]:
        return [_array([ps.constant(self[node.inputs[0]].shape[op.i], "int64")], ())]

    @_computed.register(Subtensor)
    def _(self, op: Any, node: Apply) -> list[Elements]:
        table, *numbers = node.inputs
        index = self._index(op, numbers)
        if table not in self._known and not is_short(_shape(table)):
            return [self._looked_up(table, index)]
        return [self._part(self[table], index)]

    @_computed.register(IncSubtensor)
    def _(self, op: Any, node: Apply) -> list[Elements]:
        given, value, *numbers = node.inputs
        index = self._index(op, numbers)
        part = self[value]
        if not op.set_instead_of_inc:
            part = self._mapped(ps.add, self._part(self[given], index), part)[0]
        return [self._with_part(self[given], index, self._cast(part, given.type.dtype))]

    def _index(self, op: Any, numbers: Sequence[Variable]) -> list[Any]:
        """The index of a part: integers, slices, and variables."""
        given: list[Any] = [self[v][()] for v in numbers]
        found = indices_from_subtensor(given, op.idx_list)
        return [
            slice(*map(_end, (i.start, i.stop, i.step))) if isinstance(i, slice) else _constant(i)
            for i in found
        ]

    def _part(self, given: Elements, index: Sequence[Any]) -> Elements:
        where = _variable(index)
        if where is None:
            return _array(given[tuple(index)])
        options = [self._part(given, i) for i in _options(given, index, where)]
        return self._chosen(index[where], options)

    def _with_part(self, given: Elements, index: Sequence[Any], part: Elements) -> Elements:
        where = _variable(index)
        if where is None:
            found = given.copy()
            found[tuple(index)] = part if part.ndim else part[()]
            return found
        options = [self._with_part(given, i, part) for i in _options(given, index, where)]
        return self._chosen(index[where], options)


def constants(variable: Variable) -> Elements:
    """The elements of a constant.

    Raises
    ------
    UnfitError
        It is long, or no constant.
    """
    if not isinstance(variable, Constant) or not is_short(_shape(variable)):
        raise UnfitError
    data = np.asarray(variable.data)
    return _each(lambda value: ps.constant(value, dtype=data.dtype.name), data)


def is_short(shape: Sequence[int | None]) -> bool:
    """Whether arrays of a shape are known to have few elements."""
    known = [n for n in shape if n is not None]
    return len(known) == len(shape) and math.prod(known) <= MOST_ELEMENTS


def _shape(variable: Variable) -> tuple[int | None, ...]:
    return getattr(variable.type, "shape", ())


def _array(values: Any, shape: tuple[int, ...] | None = None) -> Elements:
    """An array of objects; by default with the shape of the values."""
    if isinstance(values, np.ndarray):
        return values
    if not isinstance(values, Sequence):
        values, shape = [values], ()
    found = np.empty(len(values), object)
    found[:] = values
    return found if shape is None else found.reshape(shape)


def _each(change: Callable[[Any], Any], values: np.ndarray) -> Elements:
    return _array([change(v) for v in values.ravel()], values.shape)


def _to(dtype: str) -> ps.Cast:
    return ps.Cast(ps.get_scalar_type(dtype))


def _constant(number: Any) -> Any:
    """The value of a constant; other variables stay."""
    return int(number.data) if isinstance(number, Constant) else number


def _number(variable: Any) -> int:
    found = _constant(variable)
    if not isinstance(found, int):
        raise UnfitError
    return found


def _end(variable: Any) -> int | None:
    return None if variable is None else _number(variable)


def _variable(index: Sequence[Any]) -> int | None:
    """The position of the first variable in an index."""
    found: Iterator[int] = (at for at, i in enumerate(index) if isinstance(i, Variable))
    return next(found, None)


def _options(given: Elements, index: Sequence[Any], where: int) -> list[list[Any]]:
    """An index with each of the numbers that a variable in it may be."""
    return [[*index[:where], at, *index[where + 1 :]] for at in range(given.shape[where])]
