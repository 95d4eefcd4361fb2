"""The data of each row as columns: what a term depends on, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor import TensorVariable
from pytensor.tensor.math import All

from synkhronos._compiling.python_function import PythonFunction
from synkhronos.pymc._reading.facts import Shapes
from synkhronos.pymc._reading.rewrites import of_data_alone, replaced

PRODUCTS = 16  # of a product of a matrix and a vector take as long as a row without any


@dataclass
class RowTerms:
    """Terms with the same rows, in which only data have rows."""

    names: list[str]
    rows: int
    total: TensorVariable  # the sum of the terms
    # each of the terms, on placeholders of the data and the parameters
    values: list[TensorVariable]
    axes: list[int]  # the row axis of each term
    holds: TensorVariable | None  # whether all checks of parameters hold
    # the placeholders of data by row, and of data that each row needs whole
    rowed: list[TensorVariable]
    whole: list[TensorVariable]
    parameters: list[TensorVariable]  # the placeholders of parameters
    shapes: Shapes  # of the parameters
    rowed_data: list[np.ndarray]  # the data
    whole_data: list[np.ndarray]
    cells: int = 1  # numbers of a row that are computed by themselves

    @property
    def row_cost(self) -> float:
        """The time of a row, in that of one number without products with a matrix of data."""
        numbers = sum(math.prod(a.shape[1:]) for a in self.rowed_data if a.ndim > 1)
        return max(self.cells, 1 + numbers / PRODUCTS)

    def is_data(self, variable: Variable) -> bool:
        """Whether a variable depends on data alone."""
        given = {*self.rowed, *self.whole}
        leaves = [v for v in ancestors([variable]) if v.owner is None]
        return all(v in given or isinstance(v, Constant) for v in leaves)

    def has_rows(self, variable: Variable) -> bool:
        """Whether a variable depends on data by row."""
        return not set(self.rowed).isdisjoint(ancestors([variable]))

    def data(self, expressions: Sequence[Variable]) -> DataOf:
        """The arrays of expressions of data."""
        return DataOf(expressions, self.rowed, self.whole)

    def lengths(self, expressions: Sequence[Variable]) -> Lengths:
        """The values of lengths of data that are needed whole, and of parameters."""
        return Lengths(expressions, self.parameters, self.shapes, self.whole)

    def shape(self, variable: TensorVariable) -> tuple[int, ...]:
        """The lengths of an array of parameters."""
        lengths = [variable.shape[axis] for axis in range(variable.type.ndim)]
        return self.lengths(lengths).of(self.whole_data)


class DataOf:
    """Expressions of data as arrays; those that are data themselves are not copied."""

    def __init__(
        self,
        expressions: Sequence[Variable],
        rowed: Sequence[TensorVariable],
        whole: Sequence[TensorVariable],
    ) -> None:
        self._expressions, self._data = list(expressions), [*rowed, *whole]
        derived = [v for v in self._expressions if v not in {*self._data}]
        self._derived = PythonFunction(self._data, derived)

    def arrays(self, rowed: Sequence[np.ndarray], whole: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The values of the expressions, where the data are these."""
        given = dict(zip(self._data, [*rowed, *whole], strict=True))
        computed = iter(self._derived(*given.values()))
        return [given[v] if v in given else np.asarray(next(computed)) for v in self._expressions]


class Lengths:
    """Lengths of arrays of parameters or of data."""

    def __init__(
        self,
        expressions: Sequence[Variable],
        parameters: Sequence[TensorVariable],
        shapes: Shapes,
        whole: Sequence[TensorVariable],
    ) -> None:
        self._dtypes, self._shapes = [v.type.dtype for v in parameters], shapes
        self._measured = PythonFunction([*parameters, *whole], expressions)
        self._any = bool(expressions)

    def of(self, whole: Sequence[np.ndarray]) -> tuple[int, ...]:
        """The lengths, where the data are these."""
        if not self._any:
            return ()
        shapes = self._shapes.now()
        given = [np.zeros(s, dtype) for s, dtype in zip(shapes, self._dtypes, strict=True)]
        with np.errstate(all="ignore"):
            return tuple(map(int, self._measured(*given, *whole)))


@dataclass
class Columns:
    """The columns that graphs read, and the graphs on placeholders of these.

    A column is data by row as the user gives them, or a largest expression of data alone. Data of
    which several expressions are read are a column themselves: a row has the same expressions if it
    has the same data.
    """

    outputs: list[TensorVariable]
    places: list[TensorVariable]  # the placeholders of the columns
    data: DataOf
    whole: list[TensorVariable] = field(default_factory=list)

    @staticmethod
    def of(outputs: Sequence[TensorVariable], terms: RowTerms) -> Columns:
        """Find the columns of these graphs."""
        found = of_data_alone(outputs, terms.rowed, terms.whole, ends=(All,))
        direct = set(ancestors(replaced(outputs, terms.rowed, terms.whole, found).outputs))
        leaves = {v: set(terms.rowed) & set(ancestors([v])) for v in found}
        alone = [next(iter(of)) for of in leaves.values() if len(of) == 1]
        raw = {v for v in terms.rowed if v in direct or alone.count(v) > 1}
        wanted = [v for v in found if not leaves[v] <= raw]
        made = replaced(outputs, terms.rowed, terms.whole, wanted)
        read = set(ancestors(made.outputs))
        kept = [v for v in terms.rowed if v in read]
        return Columns(
            made.outputs, [*kept, *made.rows], terms.data([*kept, *wanted]), list(terms.whole)
        )
