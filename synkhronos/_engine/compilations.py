"""The variants of a function that members have compiled; in JAX, the lengths of slices as well."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pytensor.graph.basic import Variable

from synkhronos._engine.commands.call import Call
from synkhronos._engine.replicas import Recipe, Slicing
from synkhronos._plan.lengths import Lengths
from synkhronos._plan.rows import slices
from synkhronos._proofs import Proof, depends_on, prove
from synkhronos._proofs.reductions import Reduction, parse

SliceLengths = tuple[tuple[int, ...], ...]  # for each member, the lengths that its part is cut into
Outputs = tuple[int, ...]


@dataclass(frozen=True)
class Cut:
    """How the parts of a call are computed."""

    # the lengths of each member's slices, if they are not the requested ones
    slice_lengths: SliceLengths | None
    first: bool  # whether some member must compile


class Compilations:
    """The variants of a function that the members of a group have compiled.

    JAX compiles for each length of a part. Where it is proved how the values of slices make those
    of a part, parts of any length are computed in pieces of a few.
    """

    def __init__(self, recipe: Recipe, infer: bool) -> None:
        self._recipe = recipe
        self._infer = infer
        self._compiled: set[tuple[Outputs, bool, int, int]] = set()  # ..., by slices, rank, length
        self._lengths: dict[tuple[Outputs, int], Lengths] = defaultdict(Lengths)
        self._proved: dict[Outputs, bool] = {}

    def cut(self, outputs: Outputs, num_slices: int, borders: Sequence[int] | None) -> Cut:
        """Decide how the parts between these borders are computed."""
        asked = self._asked(num_slices, borders)
        pieces = tuple(
            tuple([n for rows in lengths for n in self._lengths[outputs, rank].pieces(rows)])
            for rank, lengths in enumerate(asked)
        )
        if pieces == asked or not self._may_cut(outputs):
            return Cut(None, not self._needed(outputs, num_slices, asked) <= self._compiled)
        return Cut(pieces, not self._needed(outputs, num_slices, pieces) <= self._compiled)

    def note(self, call: Call) -> None:
        """Record that the members have computed this call."""
        outputs = call.outputs + call.extra
        asked = self._asked(call.slices, call.edges)
        self._compiled |= self._needed(outputs, call.slices, call.slice_lengths or asked)
        for rank, lengths in enumerate(asked):
            for rows in lengths:
                self._lengths[outputs, rank].note(rows)

    def _asked(self, num_slices: int, borders: Sequence[int] | None) -> SliceLengths:
        """The requested lengths of each member's slices; empty if lengths do not matter."""
        if borders is None or not self._recipe.jax:
            return ()
        return tuple(
            tuple([stop - start for start, stop in slices(hi - lo, num_slices)])
            for lo, hi in itertools.pairwise(borders)
        )

    def _needed(
        self, outputs: Outputs, num_slices: int, pieces: SliceLengths
    ) -> set[tuple[Outputs, bool, int, int]]:
        found = set()
        for rank, lengths in enumerate(pieces or [(0,)]):
            by_slices = self._recipe.has_slice_graphs(outputs, num_slices > 1 or len(lengths) > 1)
            found |= {(outputs, by_slices, rank, n) for n in lengths}
        return found

    def _may_cut(self, outputs: Outputs) -> bool:
        """Whether a member's part may be computed from any slices.

        Not where numbers are drawn: those of a group of one are to be the serial function's, and
        pieces depend on what has come before, so that a resumed run would draw other numbers.
        """
        if outputs not in self._proved:
            recipe = self._recipe
            rows = [*recipe.inputs[: recipe.n_scattered], *recipe.places]
            values = [(recipe.outputs[i], recipe.slicing[i]) for i in outputs]
            values += [(u.new, u.slicing) for u in recipe.updates]
            self._proved[outputs] = (
                self._infer
                and not recipe.streams
                and not recipe.has_collectives
                and all(_exact(v, s, rows) for v, s in values)
            )
        return self._proved[outputs]


def _exact(value: Variable, slicing: Slicing, rows: list[Variable]) -> bool:
    """Whether it is proved, and not only named by the user, how slices make a value."""
    integer = np.dtype(getattr(value.type, "dtype", float)).kind in "biu"
    if integer and Reduction.AVG in slicing.reductions:
        return False  # their mean is not an integer
    if not depends_on(value, rows):
        return not {Reduction.SUM, Reduction.PROD, Reduction.GATHER} & set(slicing.reductions)
    proof = prove(value, rows)
    if not isinstance(proof, Proof):
        return False
    if proof.finished is not None or slicing.finish is not None:
        return proof.finished is not None and slicing.finish is not None
    return parse(proof.partials[0].reduction) is slicing.reductions[0]
