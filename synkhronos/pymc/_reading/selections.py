"""Moves a selection of rows, such as ``logp[seen]``, to what the rows are computed from.

A density of all rows is often computed first, and some of its rows are chosen afterwards: animals
that were seen, cases that are censored. Members would need the whole density to choose from. Where
each row is computed from the same row of data and parameters, these are chosen instead.
"""

from __future__ import annotations

import contextlib

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor import TensorVariable
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor, indices_from_subtensor

from synkhronos._errors import InputError
from synkhronos.pymc._reading.facts import Facts
from synkhronos.pymc._reading.rows import Reader, Term
from synkhronos.pymc._reading.summands import rebuilt


def with_chosen_sources(array: TensorVariable, facts: Facts) -> TensorVariable:
    """The same array, computed from chosen rows of its sources; itself if it chooses none."""
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
