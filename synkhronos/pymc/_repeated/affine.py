"""Locations that are affine in parameters: which design, by row, multiplies which coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.scalar import basic as ps
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable as Tensor

from synkhronos._compiling.nodes import computes, in_batches


class Terms(Protocol):
    """Terms with the same rows: what is known of their variables."""

    def is_data(self, variable: Variable) -> bool:
        """Whether a variable depends on data alone."""

    def has_rows(self, variable: Variable) -> bool:
        """Whether a variable depends on data by row."""

    def shape(self, variable: Tensor) -> tuple[int, ...]:
        """The lengths of an array of parameters."""


@dataclass(frozen=True)
class Block:
    """A product of a design with coefficients."""

    coefficients: Tensor  # a vector of parameters
    length: int
    # by row, the number of the coefficient, below 0 if there is none; None if the row has a number
    # for each of them
    index: Tensor
    factor: Tensor  # by row, what the coefficient is multiplied by, or the row of a matrix
    # the placeholders in the index of lengths that can change, with these lengths
    lengths: tuple[tuple[Tensor, Tensor], ...] = ()


@dataclass
class Affine:
    """An affine function of parameters: the sum of its blocks, and of data."""

    blocks: list[Block] = field(default_factory=list)
    offsets: list[Tensor] = field(default_factory=list)

    def times(self, data: Tensor = None, parameter: Tensor = None) -> Affine:
        """The function multiplied by data of each row, and by a scalar parameter."""
        blocks, offsets = self.blocks, self.offsets
        if data is not None:
            data = _double(data)
            offsets = [v * data for v in offsets]
            blocks = [replace(b, factor=b.factor * _as_column(data, b.factor)) for b in blocks]
        if parameter is not None:
            scaled = [replace(b, coefficients=b.coefficients * parameter) for b in blocks]
            blocks = scaled + [Block(_vector(parameter), 1, None, _matrix(v)) for v in offsets]
            offsets = []
        return Affine(blocks, offsets)


def affine(location: Tensor, terms: Terms) -> Affine | None:
    """A location as an affine function of parameters; None if it is none as far as is known."""
    return _Reader(terms).read(location)


class _Reader:
    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def read(self, variable: Tensor) -> Affine | None:
        """Read a vector by row, or a scalar, from its last operation on."""
        if self._terms.is_data(variable):
            return Affine(offsets=[_double(variable)])
        if not self._terms.has_rows(variable):
            scalar = _scalar(variable)
            if scalar is None:
                return None
            return Affine([Block(_vector(scalar), 1, None, pt.ones((1, 1)))])
        node = variable.owner
        if node is None or variable.type.ndim != 1:
            return None
        if isinstance(node.op, Elemwise):
            return self._elementwise(node)
        if isinstance(node.op, AdvancedSubtensor):
            return self._chosen(node)
        return self._product(variable)

    def _elementwise(self, node: Apply) -> Affine | None:
        match node.op.scalar_op:
            case ps.Add():
                return _sum([self.read(v) for v in node.inputs])
            case ps.Sub():
                one, other = map(self.read, node.inputs)
                return _sum([one, other and other.times(pt.constant(-1.0))])
            case ps.Neg():
                found = self.read(node.inputs[0])
                return found and found.times(pt.constant(-1.0))
            case ps.Mul():
                return self._factors(node.inputs)
            case ps.TrueDiv():
                above, below = map(pt.as_tensor, node.inputs)
                return self._factors([above, pt.reciprocal(_double(below))])
        return None

    def _factors(self, factors: Sequence[Tensor]) -> Affine | None:
        """A product, of whose factors at most one has rows and parameters."""
        found = Affine(offsets=[_double(pt.constant(1.0))])
        data: list[Tensor] = []
        fixed: list[Tensor] = []
        mixed: list[Tensor] = []
        for v in factors:
            kind = data if self._terms.is_data(v) else mixed if self._terms.has_rows(v) else fixed
            kind.append(v)
        if len(mixed) > 1:
            return None
        if mixed:
            inner = self.read(mixed[0])
            if inner is None:
                return None
            found = inner
        scalars = [_scalar(v) for v in fixed]
        if any(s is None for s in scalars):
            return None
        for v in data:
            found = found.times(data=v)
        for s in scalars:
            found = found.times(parameter=s)
        return found

    def _chosen(self, node: Apply) -> Affine | None:
        """Elements of a vector or a table of parameters, chosen by data."""
        array, *indices = node.inputs
        if self._terms.has_rows(array) or not all(map(self._terms.is_data, indices)):
            return None
        whole = node.op.idx_list == tuple(range(len(indices)))
        if not whole or len(indices) != array.type.ndim or any(v.type.ndim != 1 for v in indices):
            return None
        if any(v.type.dtype == "bool" for v in indices):
            return None
        index, lengths = pt.constant(0, dtype="int64"), []
        for axis, v in enumerate(indices):
            n = array.type.shape[axis]
            if n is None:
                n = pt.lscalar("length")
                lengths.append((n, array.shape[axis]))
            place = v.astype("int64")  # numbers of small types overflow
            place = pt.switch(place < 0, place + n, place)
            # beyond one axis of a table it would be another element
            within = (index >= 0) & (place >= 0) & (place < n)
            index = pt.switch(within, index * n + place, -1)
        size = int(np.prod(self._shape(array)))
        return Affine([Block(array.ravel(), size, index, pt.ones((1,)), tuple(lengths))])

    def _product(self, variable: Tensor) -> Affine | None:
        """A matrix of data times a vector of parameters."""
        node = variable.owner
        if isinstance(node.op, DimShuffle) and tuple(node.op.new_order) == (0,):
            node = node.inputs[0].owner
        if node is None:
            return None
        if isinstance(node.op, Sum) and node.op.axis == (1,):
            return self._summed(node.inputs[0])
        if not isinstance(in_batches(node), Dot):
            return None
        matrix, vector = node.inputs
        if matrix.type.ndim != 2 or not self._terms.is_data(matrix):
            return None
        if self._terms.has_rows(vector):
            return None
        if vector.type.ndim == 2 and vector.type.shape[1] != 1:
            return None
        length = self._shape(vector)[0]
        return Affine([Block(vector.ravel(), length, None, matrix)])

    def _summed(self, product: Tensor) -> Affine | None:
        """The sums over columns of a matrix of data times a vector of parameters."""
        node = product.owner
        if not computes(node, ps.Mul):
            return None
        matrices = [v for v in node.inputs if self._terms.has_rows(v)]
        vectors = [v for v in node.inputs if not self._terms.has_rows(v)]
        if len(matrices) != 1 or not self._terms.is_data(matrices[0]) or not vectors:
            return None
        [matrix], vector = matrices, vectors[0] if len(vectors) == 1 else pt.mul(*vectors)
        length = self._shape(vector)[1]
        if matrix.type.shape[1] == 1 or length == 1 != matrix.type.shape[1]:
            return None
        return Affine([Block(vector.ravel(), length, None, matrix)])

    def _shape(self, variable: Tensor) -> tuple[int, ...]:
        return self._terms.shape(variable)


def _sum(parts: Sequence[Affine | None]) -> Affine | None:
    found = Affine()
    for part in parts:
        if part is None:
            return None
        found = Affine(found.blocks + part.blocks, found.offsets + part.offsets)
    return found


def _scalar(variable: Tensor) -> Tensor:
    """A scalar without its axes of length 1; None if it is not known to be one."""
    if any(n != 1 for n in variable.type.shape):
        return None
    return variable.dimshuffle() if variable.type.ndim else variable


def _double(variable: Tensor) -> Tensor:
    """Numbers as a location has them: PyTensor computes with those of small types in float32."""
    return variable.astype("float64")


def _vector(scalar: Tensor) -> Tensor:
    return scalar.dimshuffle("x")


def _matrix(data: Tensor) -> Tensor:
    """Data by row, as a matrix of one column."""
    return data.dimshuffle(0, "x") if data.type.ndim else data.dimshuffle("x", "x")


def _as_column(data: Tensor, factor: Tensor) -> Tensor:
    return _matrix(data) if factor.type.ndim == 2 else data
