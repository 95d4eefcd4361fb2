"""Distinct rows with weights: the form for any likelihood that is a sum over rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from synkhronos.pymc._reading.rewrites import rewritten
from synkhronos.pymc._repeated.columns import Columns, RowTerms
from synkhronos.pymc._repeated.distinct import kinds_of, may_repeat
from synkhronos.pymc._repeated.form import Form


@dataclass
class DistinctRows(Form):
    """The first of each kind of equal rows; its log-density counts as often as there are such."""

    columns: Columns

    @staticmethod
    def of(terms: RowTerms) -> Form | None:
        """The form of these terms; None if few of their rows are equal."""
        holds = [] if terms.holds is None else [terms.holds]
        columns = Columns.of(rewritten([*terms.values, *holds]), terms)
        data = columns.data.arrays(terms.rowed_data, terms.whole_data)
        if not may_repeat(data, terms.rows):
            return None
        left = len(kinds_of(data, terms.rows))
        count: TensorVariable = pt.vector("count", dtype="float64")
        values = columns.outputs[: len(terms.values)]
        weighted = [_weighted(v, a, count) for v, a in zip(values, terms.axes, strict=True)]
        total = pt.add(*weighted) if len(weighted) > 1 else weighted[0]
        rest = columns.outputs[len(values) :]
        return DistinctRows(
            places=[*columns.places, count],
            whole=terms.whole,
            total=total,
            holds=rest[0] if rest else None,
            left=left,
            cost=left * terms.row_cost,
            columns=columns,
        )

    def arrays(
        self, rowed: Sequence[np.ndarray], whole: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The columns of the first row of each kind, and the numbers of rows."""
        data = self.columns.data.arrays(rowed, whole)
        kinds = kinds_of(data, len(rowed[0]))
        counts = kinds.counts.astype(np.float64)
        return [*(column[kinds.first] for column in data), counts], list(whole)

    @property
    def described(self) -> str:
        """A phrase on the rows."""
        return f"{self.left:,} distinct (with weights)"


def _weighted(value: TensorVariable, axis: int, count: TensorVariable) -> TensorVariable:
    """The sum of an array in which each row counts so often."""
    order = ["x" if i != axis else 0 for i in range(value.type.ndim)]
    return (value * count.astype(value.type.dtype).dimshuffle(order)).sum()
