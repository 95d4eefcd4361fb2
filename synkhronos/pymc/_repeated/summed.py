"""Sums by group: the form for exponential families whose rows differ in the observed value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from synkhronos.pymc._reading.rewrites import rewritten
from synkhronos.pymc._repeated.columns import Columns, DataOf, RowTerms
from synkhronos.pymc._repeated.distinct import kinds_of, may_repeat
from synkhronos.pymc._repeated.families import FAMILIES, Family
from synkhronos.pymc._repeated.form import Form
from synkhronos.pymc._repeated.sums import GroupSums


@dataclass
class SumsByGroup(Form):
    """A group is the rows whose parameters read the same data; what is observed is summed."""

    family: Family
    columns: Columns
    observed: DataOf
    ndim: int

    @staticmethod
    def of(terms: RowTerms) -> Form | None:
        """The form of a term; None if it is of no known family, or the groups have few rows."""
        found = _family_of(terms)
        if found is None:
            return None
        family, given = found
        observed = [given.pop(name) for name in family.observed]
        holds = [] if terms.holds is None else [terms.holds]
        made = rewritten([*given.values(), *holds])
        columns = Columns.of(made, terms)
        data = columns.data.arrays(terms.rowed_data, terms.whole_data)
        if not may_repeat(data, terms.rows):
            return None
        left = len(kinds_of(data, terms.rows))
        [value] = terms.values
        form = SumsByGroup(
            places=columns.places,
            whole=terms.whole,
            total=None,
            holds=columns.outputs[-1] if holds else None,
            left=left,
            cost=left * terms.row_cost,
            family=family,
            columns=columns,
            observed=terms.data(observed),
            ndim=value.type.ndim,
        )
        _, sample = form._summed(terms.rowed_data, terms.whole_data, rows=2)
        lengths = _lengths(observed, form.ndim)
        kinds = [lengths[: s.ndim] for s in sample]
        places = [pt.tensor("sums", dtype="float64", shape=kind) for kind in kinds]
        shaped = [p if p.ndim == form.ndim else p[:, *[None] * (form.ndim - 1)] for p in places]
        parameters = dict(zip(given, columns.outputs, strict=False))
        form.total = family.log_density(*shaped, **parameters).sum()
        form.places = [*columns.places, *places]
        return form

    def arrays(
        self, rowed: Sequence[np.ndarray], whole: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The columns of each group, and its sums."""
        columns, sums = self._summed(rowed, whole)
        return [*columns, *sums], list(whole)

    def _summed(
        self, rowed: Sequence[np.ndarray], whole: Sequence[np.ndarray], rows: int | None = None
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The columns and the sums of the groups of all rows, or of the first."""
        rowed = [a[:rows] for a in rowed]
        count = len(rowed[0])
        columns = self.columns.data.arrays(rowed, whole)
        kinds = kinds_of(columns, count)
        observed = self.observed.arrays(rowed, whole)
        by_row = (count, *[1] * (self.ndim - 1))  # what is observed may be one number for all
        shape = np.broadcast_shapes(by_row, *[a.shape for a in observed])
        given = [np.broadcast_to(a, shape) for a in observed]
        sums = self.family.statistics(GroupSums(kinds), *given)
        return [c[kinds.first] for c in columns], sums

    @property
    def described(self) -> str:
        """A phrase on the rows."""
        return f"{self.left:,} distinct but for what is observed (sums by group)"


def _lengths(observed: Sequence[TensorVariable], ndim: int) -> tuple[int | None, ...]:
    """The lengths of sums as far as types know them: 1 where all that is observed has one entry."""
    lengths: list[int | None] = [None]
    for axis in range(1, ndim):
        there = [v.type.shape[axis - ndim] for v in observed if v.type.ndim >= ndim - axis]
        lengths.append(1 if all(n == 1 for n in there) else None)
    return tuple(lengths)


def _family_of(terms: RowTerms) -> tuple[Family, dict[str, TensorVariable]] | None:
    """The family of a single term with rows in front, and what its density is of."""
    if len(terms.values) > 1 or terms.axes != [0]:
        return None
    for family in FAMILIES:
        given = family.of(terms.values[0])
        if given is not None and all(terms.is_data(given[name]) for name in family.observed):
            return family, given
    return None
