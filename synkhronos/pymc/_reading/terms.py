"""Finds the terms of a log-density that can be divided, and the axis of each."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor import TensorVariable
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    indices_from_subtensor,
)

from synkhronos._errors import InputError
from synkhronos._proofs.walk import name_of
from synkhronos._warnings import log
from synkhronos.pymc._reading.facts import Facts, Lengths
from synkhronos.pymc._reading.rows import Reader, RowReading, Term
from synkhronos.pymc._reading.summands import (
    Summand,
    rebuilt,
    with_exact_checks,
    with_exact_checks_without_rows,
)

Found = list[tuple[Summand, Term | None]]  # each summand, and the term that it is, if it is one


@dataclass(frozen=True)
class Factor:
    """The log-density of an observed variable or of a Potential."""

    name: str
    graph: TensorVariable  # the log-density, element by element
    op: Op | None  # what the variable is computed by, such as a distribution
    data: Variable | None = None  # the values of an observed variable; None for a Potential
    shape: Lengths = ()  # the shape of these values
    axis: int | None = None  # their axis with the dimension that the user has named
    rows: int | None = None  # the length of that dimension


class Finder:
    """Finds, for each log-density, the terms that can be divided."""

    def __init__(self, facts: Facts, dim: str | None) -> None:
        self._facts = facts  # of the variables of these log-densities, and of their summands
        self._dim = dim  # the dimension that the user has named

    def terms_of(self, factor: Factor, summands: Sequence[Summand]) -> Found | None:
        """The summands of a log-density; None if it has no rows of data.

        Raises
        ------
        InputError
            It cannot be divided, with the reason.
        """
        if factor.data is not None:
            return self._of_observed(factor, summands)
        chosen = self._apart(factor, summands, factor.rows)
        if any(term is not None for _, term in chosen):
            return chosen
        if self._dim is None and self._has_rows(summands):
            raise InputError(
                f"the Potential {factor.name} cannot be divided: it is not a sum over rows of "
                "data that are computed apart from one another, as far as its graph tells. If it "
                f'is one, declare it: row_wise=["{factor.name}"]'
            )
        return None

    def _of_observed(self, factor: Factor, summands: Sequence[Summand]) -> Found | None:
        data, found = factor.shape, self._facts.shapes[factor.graph]
        rows = factor.rows
        if factor.axis is not None:
            axes = [factor.axis]
            by_row = factor.axis < len(found) and found[factor.axis] == rows
        elif 0 in data or max(data, default=1) == 1:
            return None
        else:
            longest_first = sorted(range(len(found)), key=lambda a: -found[a])
            axes = [a for a in longest_first if found[a] > 1 and found[a] in data]
            by_row = max(found, default=1) > 1 and max(found) in data
        if by_row:
            if found[axes[0]] == 1:
                return None
            term = self._along(factor, axes)
            return [(Summand(term.variable), term)]
        chosen = self._apart(factor, summands, rows)
        if all(term is None for _, term in chosen):
            how = f"along {self._dim!r}" if self._dim else "by row"
            raise InputError(_joint(factor, found, how))
        return chosen

    def _along(self, factor: Factor, axes: Sequence[int]) -> Term:
        """The term along the first of these axes whose entries are computed apart."""
        reasons: list[InputError] = []
        for axis in axes:
            rows = self._facts.shapes[factor.graph][axis]
            term = self._exact_but_rows(Term(factor.name, factor.graph, axis, rows))
            try:
                self._read(term, factor)
            except InputError as exc:
                reasons.append(exc)
                continue
            if reasons:
                log.info("%s is divided along axis %d: %s", factor.name, axis, reasons[0])
            return term
        raise reasons[0]

    def _has_rows(self, summands: Sequence[Summand]) -> bool:
        """Whether data that are not constants of a few numbers take part."""
        free, shapes = self._facts.free, self._facts.shapes
        return any(
            v not in free and v.owner is None and max(shapes.get(v, ()), default=0) > 8
            for v in ancestors([summand.value for summand in summands])
        )

    def _apart(self, factor: Factor, summands: Sequence[Summand], rows: int | None) -> Found:
        return [(summand, self._term(factor, summand, rows)) for summand in summands]

    def _term(self, factor: Factor, summand: Summand, rows: int | None) -> Term | None:
        """The summand as a term along its longest axis that can be divided; None if none can be."""
        as_written = ((array, False) for array in summand.arrays)
        for array, moved in itertools.chain(self._moved(factor.name, summand.arrays), as_written):
            if array not in self._facts.free or not array.type.dtype.startswith("float"):
                continue
            lengths = self._facts.shapes[array]
            for axis in sorted(range(len(lengths)), key=lambda a: -lengths[a]):
                length = lengths[axis]
                if length < 2 or array.type.shape[axis] == 1 or rows not in (None, length):
                    continue
                try:
                    term = self._exact(Term(factor.name, array, axis, length))
                    reading = self._read(term, factor)
                except InputError:
                    continue
                if any(a is not None and self._is_data(v, moved) for v, a in reading.sources):
                    return term
        return None

    def _moved(
        self, name: str, arrays: Sequence[TensorVariable]
    ) -> Iterator[tuple[TensorVariable, bool]]:
        """The arrays that choose rows, with the choice moved to their sources."""
        for array in arrays:
            with contextlib.suppress(InputError):
                exact = self._exact(Term(name, array, 0, 0)).variable
                moved = _with_chosen_sources(exact, self._facts)
                if moved is not exact:
                    self._facts.note({name: [moved]})
                    yield moved, True

    def _is_data(self, variable: Variable, moved: bool) -> bool:
        """Whether an array is data, or imputed values beside data.

        Or rows that data choose, where the choice was `moved` to the sources.
        """
        free = self._facts.free
        if variable not in free:
            return True
        node = variable.owner
        if node is None:
            return False
        joins = isinstance(node.op, IncSubtensor | AdvancedIncSubtensor)
        if joins and any(v not in free for v in node.inputs[:2]):
            return True
        return moved and isinstance(node.op, AdvancedSubtensor)

    def _exact(self, term: Term) -> Term:
        """The term with checks as choices where they have to be."""
        if not self._facts.checked:
            return term
        exact = with_exact_checks(term.variable)
        if exact is term.variable:
            return term
        self._facts.note({term.name: [exact]})
        return replace(term, variable=exact)

    def _exact_but_rows(self, term: Term) -> Term:
        """The term with checks as choices where they have to be, and no row decides."""
        if not self._facts.checked:
            return term
        shapes = self._facts.shapes
        exact = with_exact_checks_without_rows(
            term.variable, lambda condition: term.rows in shapes.get(condition, ())
        )
        if exact is term.variable:
            return term
        self._facts.note({term.name: [exact]})
        return replace(term, variable=exact)

    def _read(self, term: Term, factor: Factor) -> RowReading:
        """Read a term alone; raise if it mixes observed rows before it computes each density.

        The rest of such a term could be divided, but its costly first part would run in one
        process.
        """
        reading = Reader(term.rows, self._facts).read([term])
        if factor.data is None:
            return reading
        inner = {
            variable
            for variable, axis in reading.sources
            if axis is not None and variable in self._facts.free and variable.owner is not None
        }
        for variable in inner & set(ancestors([term.variable])):
            if isinstance(variable.owner.op, IncSubtensor | AdvancedIncSubtensor):
                continue  # puts imputed values beside the observed ones
            if any(_is_same(v, factor.data) for v in ancestors([variable])):
                raise InputError(
                    f"the log-density of {term.name} cannot be divided into its {term.rows} rows: "
                    f"{name_of(variable.owner)} mixes rows of the observed data"
                )
        return reading


def _with_chosen_sources(array: TensorVariable, facts: Facts) -> TensorVariable:
    """The same array, computed from chosen rows of its sources; itself if it chooses none.

    A density of all rows is often computed first, and some of its rows are chosen afterwards, as in
    ``logp[seen]``: animals that were seen, cases that are censored. Members would need the whole
    density to choose from. Where each row is computed from the same row of data and parameters,
    these are chosen instead.
    """
    made: dict[Variable, TensorVariable] = {}
    for node in toposort([array]):
        chosen = _selection(node, facts)
        if chosen is None or node.outputs[0] not in facts.free:
            continue
        axis, entry = chosen
        whole, some = node.inputs[0], node.outputs[0]
        rows = facts.shapes[whole][axis]
        if facts.shapes[some][axis] > rows:  # repeats rows: to compute each once costs less
            continue
        with contextlib.suppress(InputError):
            found = Reader(rows, facts).read([Term("", whole, axis, rows)], checked=False)
            sources = {
                placeholder: v if a is None else pt.moveaxis(v[(slice(None),) * a + (entry,)], a, 0)
                for (v, a), placeholder in found.sources.items()
            }
            made[some] = rebuilt(found.values[0], sources)
    return rebuilt(array, made)


def _selection(node: Apply, facts: Facts) -> tuple[int, slice | TensorVariable] | None:
    """The axis of which a node chooses entries, and its index, if it is data; None otherwise."""
    if not isinstance(node.op, Subtensor | AdvancedSubtensor):
        return None
    indices = node.inputs[1:]
    if any(v in facts.free for v in indices):
        return None
    entries = indices_from_subtensor(indices, node.op.idx_list)
    chosen = [(i, entry) for i, entry in enumerate(entries) if entry != slice(None)]
    if len(chosen) != 1:
        return None
    [(axis, entry)] = chosen
    return (axis, entry) if isinstance(entry, slice) or entry.type.ndim == 1 else None


def _joint(factor: Factor, found: Lengths, how: str) -> str:
    """The message for an observed variable whose rows depend on one another."""
    kind = getattr(factor.op, "_print_name", ("",))[0] or str(factor.op)
    what = (
        f"{factor.name} ({kind}) cannot be divided {how}: its data have shape {factor.shape} and "
        f"its log-density has shape {found}, so it is not a sum over rows. "
    )
    if isinstance(factor.op, CustomDistRV | CustomSymbolicDistRV) and max(found, default=1) == 1:
        return what + (
            "Let logp return one value per row. A sum of them at its end can be read through, "
            "other operations behind the sum only if they add, or multiply by a scalar"
        )
    return what + (
        "The rows depend on one another (time series, a Gaussian process, one multivariate "
        "observation). If another dimension has independent entries, name it with dim="
    )


def _is_same(variable: Variable, observed: Variable | None) -> bool:
    """Whether both are the same data. PyTensor merges constants of equal values."""
    if variable is observed:
        return True
    if not (isinstance(variable, Constant) and isinstance(observed, Constant)):
        return False
    one, other = variable.data, observed.data
    return one is other or bool(
        isinstance(one, np.ndarray)
        and isinstance(other, np.ndarray)
        and one.size > 1
        and np.array_equal(one, other)
    )
