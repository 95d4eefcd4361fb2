"""Regressions with normal errors: the sum of squares of all rows as one of few numbers.

A Normal whose value less its location is affine in parameters, with data as the rest, and which has
one scale, has a quadratic form (`synkhronos.pymc._repeated.least_squares`): a regression, or a time
series that follows from its own values before. A log-density gets it where that takes
less time, by its numbers of rows and coefficients. For other data in the same graph the form is
right too, whatever their lengths: all that follows from data is computed of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Sum
from pytensor.tensor.shape import Reshape
from pytensor.tensor.sharedvar import TensorSharedVariable
from pytensor.tensor.subtensor import Subtensor, indices_from_subtensor
from pytensor.tensor.variable import TensorVariable as Tensor

from synkhronos._compiling.data.computed import Computed
from synkhronos._compiling.data.lifted import Data
from synkhronos._compiling.lean.quadratics import ROWS, SquaresOfRows, packed, size_of
from synkhronos._compiling.nodes import without_axes
from synkhronos.pymc._repeated.affine import Affine, Block, affine
from synkhronos.pymc._repeated.families import HALF_LOG_2_PI, NORMAL
from synkhronos.pymc._repeated.least_squares import least_squares
from synkhronos.pymc._repeated.quadratic import Rows

_MOST = 64  # coefficients
# In units of 0.4 nanoseconds, the time of a number of a row. Measured for the gradients of
# 26 public models (benchmarks/pymc_corpora.py) of 12 to 12,573 rows: 0.05 microseconds for a form,
# and as much for each of several vectors of coefficients, which are joined.
_FORM, _VECTOR, _PRODUCT = 100, 130, 3
_ELEMENT = 60  # of a vector of coefficients: PyTensor's gradient by it is an array of its own


def with_regressions(graph: Tensor, stay: bool = False) -> Tensor:
    """A log-density in which such sums over rows are quadratic forms; the same one without any.

    Parameters
    ----------
    graph : TensorVariable
        Without arrays that are constants (`synkhronos._compiling.data.lifted`).
    stay : bool
        Whether shared variables keep their values too.
    """
    found = {node.outputs[0]: form for node, form in _forms(graph, stay) if form is not None}
    if not found:
        return graph
    changed: Tensor = clone_replace([graph], replace=found)[0]
    changed.name = graph.name
    return changed


def which(graph: Tensor) -> list[bool]:
    """Of each sum of a graph, in their order, whether it becomes a form if all data stay."""
    return [form is not None for _, form in _forms(graph, True)]


def _forms(graph: Tensor, stay: bool) -> Iterator[tuple[Apply, Tensor | None]]:
    """The sums over vectors of a graph, each with its form."""
    shared: list[Any] = [v for v in ancestors([graph]) if isinstance(v, TensorSharedVariable)]
    data = {
        v: Data(v.type, None, strict=None, name=v.name, container=v.container)
        for v in shared
        if stay and v.type.ndim and not isinstance(v, Data)
    }
    for node in toposort([graph]):
        if isinstance(node.op, Sum) and node.inputs[0].type.ndim == 1:
            yield node, _form_of(node, data)


def _form_of(node: Apply, data: Mapping[Variable, Data]) -> Tensor | None:
    """The quadratic form of a sum; None if it has none, or one that takes longer.

    Parameters
    ----------
    node : Apply
    data : mapping
        By shared variables, what has their values, and keeps them.
    """
    value: Any = node.inputs[0]
    checks: list[Apply] = []
    while value.owner is not None and isinstance(value.owner.op, CheckAndRaise | Alloc):
        if isinstance(value.owner.op, CheckAndRaise):
            checks.append(value.owner)
        value = value.owner.inputs[0]
    if value.type.broadcastable != (False,) or value.type.dtype != "float64":
        return None
    given = NORMAL.of(value)
    if given is None or given["value"].type.broadcastable != (False,):
        return None
    sigma: Any = without_axes(given["sigma"])
    if not all(sigma.type.broadcastable):
        return None
    sigma = sigma.dimshuffle().astype("float64")
    design = _design(*clone_replace([given["value"], given["mu"]], replace=data))
    if design is None:
        return None
    squares, _ = SquaresOfRows()(design.coefficients, sigma, design.numbers)
    rows = design.numbers[ROWS]
    total = pt.tensor_from_scalar(squares) - rows * (HALF_LOG_2_PI + pt.log(sigma))
    for check in reversed(checks):
        total = check.op(total, *check.inputs[1:])
    return total


class _UnfitError(Exception):
    """A location has no form."""


def _design(value: Tensor, location: Tensor) -> _Design | None:
    """The design of a regression; None if it has no form, or one that takes longer."""
    try:
        if _is_data(value):
            [rows] = map(int, _values([value.shape[0]]))
        else:  # such as innovations: only the square of the difference counts
            location, value = location - value, pt.constant(0.0)
            if not any(isinstance(v, Data) for v in _leaves(location)):
                return None  # a prior
            [rows] = map(int, _values([_without_parameters(location).shape[0]]))
        found = affine(location, _Terms(rows))
        design = _Design(value, found) if found is not None and found.blocks else None
    except Exception:  # also of data that do not fit together: PyTensor says so
        return None
    return design if design is not None and design.pays(rows) else None


class _Terms:
    """Expressions whose data by row have this number of rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def is_data(self, variable: Variable) -> bool:
        """Whether a variable depends on data alone."""
        return _is_data(variable)

    def has_rows(self, variable: Variable) -> bool:
        """Whether a variable depends on data by row."""
        data = [v for v in _leaves(variable) if isinstance(v, Constant | Data)]
        if any(self._rows in _shape(v) for v in data):  # a matrix may lie by columns
            return True
        nodes = [v.owner for v in ancestors([variable]) if v.owner is not None]
        parts = [node.outputs[0] for node in nodes if isinstance(node.op, Subtensor)]
        parts = [v for v in parts if _is_data(v)]
        return bool(parts) and any(self._rows in value.shape for value in _values(parts))

    def shape(self, variable: Tensor) -> tuple[int, ...]:
        """The lengths of an array of parameters."""
        if None in variable.type.shape:
            raise _UnfitError
        return variable.type.shape


class _Design:
    """The coefficients of a location, and its data.

    Attributes
    ----------
    width : int
        The number of coefficients.
    pieces : list of (int, int, bool)
        As `Numbers` has them.
    """

    def __init__(self, value: Tensor, found: Affine) -> None:
        self.width, self.pieces = 0, list[tuple[int, int, bool]]()
        self._starts: dict[Tensor, int] = {}  # the first coefficient of each vector
        self._elements = 0  # the pieces that read one element of a vector
        residual: Tensor = value.astype("float64") - sum(found.offsets, start=pt.constant(0.0))
        if residual.type.broadcastable != (False,):
            raise _UnfitError
        self._data = [residual]
        elements = [_element(block) for block in found.blocks]
        used = Counter(vector for vector, _ in elements)
        for block, (vector, place) in zip(found.blocks, elements, strict=True):
            if block.lengths or block.coefficients.type.dtype != "float64":
                raise _UnfitError
            if vector.type.shape[0] > 2 * used[vector] * block.length:  # most are not read
                vector, place = block.coefficients, 0
            self._elements += vector.type.shape[0] > block.length
            self.pieces.append((self._start(vector) + place, block.length, block.index is not None))
            self._data += [block.factor] if block.index is None else [block.index, block.factor]
            if block.index is not None:
                _check_within(block.index, block.length)
        by_row = [v.shape[0] for v in self._data if not v.type.broadcastable[0]]
        if len(set(map(int, _values(by_row)))) > 1:
            raise _UnfitError  # PyTensor says what is wrong

    def _start(self, vector: Tensor) -> int:
        if vector not in self._starts:
            self._starts[vector] = self.width
            self.width += vector.type.shape[0]
        return self._starts[vector]

    def pays(self, rows: int) -> bool:
        """Whether the form takes less time than this number of rows."""
        numbers = 1 + sum(1 if indexed else length for _, length, indexed in self.pieces)
        saved = rows * numbers + _ELEMENT * self._elements
        joined = len(self._starts) if len(self._starts) > 1 else 0
        taken = _FORM + _VECTOR * joined + _PRODUCT * self.width**2
        return self.width <= _MOST and saved >= taken

    @property
    def coefficients(self) -> Tensor:
        """All coefficients as one vector."""
        vectors = list(self._starts)
        return vectors[0] if len(vectors) == 1 else pt.concatenate(vectors)

    @property
    def numbers(self) -> Tensor:
        """The numbers of the form, which follow from data alone."""
        found: Tensor = Numbers(tuple(self.pieces), self.width)(*self._data)
        return found


def _element(block: Block) -> tuple[Tensor, int]:
    """The vector that a block's coefficients are, or of which they are one element, and its place.

    The gradient by a whole vector takes less time than those by its elements.
    """
    bare: Any = block.coefficients
    while bare.owner is not None and isinstance(bare.owner.op, DimShuffle | Reshape):
        bare = bare.owner.inputs[0]
    if bare.type.shape == (block.length,):
        return bare, 0
    if bare.type.ndim == 0 and bare.owner is not None and isinstance(bare.owner.op, Subtensor):
        vector, *numbers = bare.owner.inputs
        places = indices_from_subtensor(numbers, bare.owner.op.idx_list)
        if len(places) == 1 and isinstance(places[0], Constant):
            [length], place = vector.type.shape, int(places[0].data)
            if length is not None and -length <= place < length:
                return vector, place % length
    return pt.specify_shape(block.coefficients, (block.length,)), 0


class Numbers(Op):
    """Values by row, and the data of a design -> the numbers of the quadratic form.

    Parameters
    ----------
    pieces : tuple of (int, int, bool)
        Parts of the design: the first of their coefficients, how many these are, and whether each
        row has the number of one of them, and its factor. Else it has a factor for each of them.
    width : int
        The number of coefficients.
    """

    __props__ = ("pieces", "width")

    def __init__(self, pieces: tuple[tuple[int, int, bool], ...], width: int) -> None:
        self.pieces, self.width = pieces, width

    def make_node(self, *inputs: Any) -> Apply:
        made = pt.tensor(dtype="float64", shape=(size_of(self.width),))
        return Apply(self, list(inputs), [made])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        value, *data = inputs
        for v, array in zip(node.inputs[1:], data, strict=True):
            if len(array) != len(value) and not v.type.broadcastable[0]:
                raise ValueError(f"data have {len(array)} rows, and there are {len(value)} values")
        infinite, given = np.isinf(value), iter(data)
        parts = [
            (start, Rows(length, next(given) if indexed else None, next(given), len(value)))
            for start, length, indexed in self.pieces
        ]

        def design(begin: int, end: int) -> np.ndarray:
            found = np.zeros((end - begin, self.width))
            for start, rows in parts:
                columns = rows.between(begin, end)
                found[:, start : start + columns.shape[1]] += columns
            return found

        found = least_squares(design, np.where(infinite, 0.0, value), self.width)
        outside = np.inf if infinite.any() else 0.0
        is_apart = np.array_equal(found.joined, np.eye(self.width))
        head = [len(value), outside, is_apart, found.rest[-1]]
        arrays = found.joined, found.centre, found.root[:-1], found.rest[:-1]
        output_storage[0][0] = packed(head, *arrays)


def _check_within(index: Tensor, length: int) -> None:
    [numbers] = _values([index])
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < length:
        raise _UnfitError  # PyTensor says what is wrong


def _leaves(variable: Variable) -> list[Variable]:
    return [v for v in ancestors([variable]) if v.owner is None]


def _is_data(variable: Variable) -> bool:
    """Whether a variable depends on constants and on data that stay as they are."""
    return all(isinstance(v, Constant | Data) for v in _leaves(variable))


def _without_parameters(variable: Tensor) -> Tensor:
    """With zeros for the parameters, whose lengths are known."""
    free = [v for v in _leaves(variable) if not isinstance(v, Constant | Data)]
    zeros = {v: pt.constant(np.zeros(v.type.shape, v.type.dtype)) for v in free}
    found: Tensor = clone_replace([variable], replace=zeros)[0]
    return found


def _values(variables: Sequence[Variable]) -> list[np.ndarray]:
    """The values of variables that are data."""
    given: list[Any] = [v for v in ancestors(variables) if isinstance(v, Data)]
    found = Computed(given, variables)(*[v.get_value(borrow=True) for v in given])
    return [np.asarray(value) for value in found]


def _shape(leaf: Any) -> tuple[int, ...]:
    value = leaf.data if isinstance(leaf, Constant) else leaf.get_value(borrow=True)
    return np.shape(value)
