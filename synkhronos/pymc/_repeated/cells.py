"""The cells of an array as rows, where each is computed by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.scalar import basic as ps
from pytensor.tensor import TensorVariable
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import All
from pytensor.tensor.subtensor import AdvancedSubtensor

from synkhronos.pymc._repeated.columns import DataOf, RowTerms
from synkhronos.pymc._repeated.form import Form


class _TogetherError(Exception):
    """Something is not computed for each cell by itself."""


@dataclass
class Cells:
    """A term with a row for each cell of its array."""

    terms: RowTerms
    data: DataOf  # of the placeholders by cell, as arrays of several axes

    @staticmethod
    def of(terms: RowTerms) -> Cells | None:
        """The cells of a single term; None if it has one axis, or cells depend on others."""
        if terms.axes != [0] or terms.values[0].type.ndim < 2:
            return None
        reader = _Reader(terms)
        try:
            value = reader.by_cell(terms.values[0])
            shaping = len(reader.places)
            holds = None if terms.holds is None else reader.check(terms.holds)
        except _TogetherError:
            return None
        if not shaping or not value.type.ndim:
            return None
        data = terms.data(list(reader.places))
        found = data.arrays(terms.rowed_data, terms.whole_data)
        shape = np.broadcast_shapes(*[a.shape for a in found[:shaping]])
        if shape != np.broadcast_shapes(*[a.shape for a in found]):
            return None
        cells = RowTerms(
            names=terms.names,
            rows=int(np.prod(shape)),
            total=value.sum(),
            values=[value],
            axes=[0],
            holds=holds,
            rowed=list(reader.places.values()),
            whole=terms.whole,
            parameters=terms.parameters,
            shapes=terms.shapes,
            rowed_data=_flat(found),
            whole_data=terms.whole_data,
        )
        return Cells(cells, data)


@dataclass
class OfCells(Form):
    """A form of the cells."""

    inner: Form
    data: DataOf

    @staticmethod
    def of(inner: Form, cells: Cells) -> OfCells:
        """The form of the rows whose cells have this form."""
        return OfCells(
            inner.places,
            inner.whole,
            inner.total,
            inner.holds,
            inner.left,
            inner.cost,
            inner,
            cells.data,
            instead_of=cells.terms.rows,
        )

    def arrays(
        self, rowed: Sequence[np.ndarray], whole: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The arrays of the form of the cells."""
        return self.inner.arrays(_flat(self.data.arrays(rowed, whole)), whole)

    @property
    def described(self) -> str:
        """A phrase on the cells."""
        return f"{self.instead_of:,} cells, {self.inner.described}"


def _flat(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    shape = np.broadcast_shapes(*[a.shape for a in arrays])
    return [np.broadcast_to(a, shape).reshape(-1) for a in arrays]


class _Reader:
    """Makes graphs by cell of graphs by row.

    Attributes
    ----------
    places : dict
        Expressions of data alone, each with its placeholder by cell.
    """

    def __init__(self, terms: RowTerms) -> None:
        self._terms, self._ndim = terms, terms.values[0].type.ndim
        self.places: dict[Variable, TensorVariable] = {}
        self._known: dict[Variable, TensorVariable] = {}

    def by_cell(self, variable: TensorVariable) -> TensorVariable:
        """A vector with an entry for each cell, or a number for all."""
        if variable not in self._known:
            self._known[variable] = self._made(variable)
        return self._known[variable]

    def _made(self, variable: TensorVariable) -> TensorVariable:
        terms, node = self._terms, variable.owner
        if all(variable.type.broadcastable) and not terms.has_rows(variable):
            return variable.dimshuffle() if variable.type.ndim else variable
        if terms.is_data(variable):
            return self._place(variable)
        if node is not None and isinstance(node.op, Elemwise):
            given = [self.by_cell(v) for v in node.inputs]
            made: TensorVariable = node.op.make_node(*given).outputs[node.outputs.index(variable)]
            return made
        if node is not None and isinstance(node.op, AdvancedSubtensor):
            array, *index = node.inputs
            if array.type.ndim == len(index) == 1 and not terms.has_rows(array):
                chosen: TensorVariable = array[self._place(index[0])]
                return chosen
        raise _TogetherError

    def _place(self, variable: TensorVariable) -> TensorVariable:
        if variable.type.ndim != self._ndim or not self._terms.is_data(variable):
            raise _TogetherError
        if variable not in self.places:
            self.places[variable] = pt.vector("cell", dtype=variable.type.dtype)
        return self.places[variable]

    def check(self, holds: TensorVariable) -> TensorVariable:
        """Whether conditions hold for all cells."""
        node = holds.owner
        if not self._terms.has_rows(holds):
            return holds
        if node is not None and isinstance(node.op, Elemwise):
            if isinstance(node.op.scalar_op, ps.AND):
                both: TensorVariable = node.op(*map(self.check, node.inputs))
                return both
        elif node is not None and isinstance(node.op, All):
            [condition] = node.inputs
            if condition.type.ndim == self._ndim == len(node.op.axis or range(self._ndim)):
                return pt.all(self.by_cell(condition))
        raise _TogetherError
