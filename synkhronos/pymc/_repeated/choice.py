"""Which form is cheapest: a line for each form in a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from synkhronos.pymc._repeated.cells import Cells, OfCells
from synkhronos.pymc._repeated.columns import RowTerms
from synkhronos.pymc._repeated.form import Form
from synkhronos.pymc._repeated.indices import Indices
from synkhronos.pymc._repeated.quadratic import QuadraticForm
from synkhronos.pymc._repeated.summed import SumsByGroup
from synkhronos.pymc._repeated.weighted import DistinctRows

GAIN = 2.0  # a form is taken if its rows cost at most the user's by this
LEAST_ROWS = 100  # fewer cost less than a function call

# Of the forms in a line, the first that applies costs least: groups are made of distinct rows.
_FORMS: tuple[tuple[Callable[[RowTerms], Form | None], ...], ...] = (
    (SumsByGroup.of, DistinctRows.of),
    (QuadraticForm.of,),
)


def cheapest(terms: RowTerms) -> Form:
    """The form of these terms that costs least; that of the user's rows unless one pays."""
    cells = Cells.of(terms) if terms.rowed else None
    if cells is not None:
        terms = replace(terms, cells=cells.terms.rows // max(1, terms.rows))
    cost = terms.rows * terms.row_cost
    best = Form(terms.rowed, terms.whole, terms.total, terms.holds, terms.rows, cost)
    if terms.rows * terms.cells < LEAST_ROWS or not terms.rowed:
        return best
    indices = Indices.of(terms)
    indices.check(terms.rowed_data, terms.whole_data)
    allowed = cost / GAIN
    lines = [(terms, line) for line in _FORMS] if terms.rows >= LEAST_ROWS else []
    lines += [] if cells is None else [(cells.terms, _FORMS[0])]
    for of, line in lines:
        for form_of in line:
            found = form_of(of)
            if found is not None and found.cost <= allowed:
                best, allowed = found, found.cost
                if cells is not None and of is cells.terms:
                    best = OfCells.of(found, cells)
                best.indices = indices
                break
    return best
