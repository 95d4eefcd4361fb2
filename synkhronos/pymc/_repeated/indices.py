"""Indices that data give: an error names the user's row, in any mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable as Tensor

from synkhronos.pymc._repeated.columns import DataOf, Lengths, RowTerms


class UnsettledIndexError(IndexError):
    """An index beyond the end of an array of data, which the user may set next."""


@dataclass
class Indices:
    """The indices by row in terms, and how many elements each chooses from.

    A form has other rows than the user's. Machine code of numba does not check indices: plain PyMC
    reads memory that is no element there.
    """

    indices: DataOf
    lengths: Lengths
    of_data: list[bool]

    @staticmethod
    def of(terms: RowTerms) -> Indices:
        """The indices of these terms."""
        chosen: list[tuple[Tensor, Tensor]] = []
        for node in toposort(terms.values, blockers=[*terms.rowed, *terms.whole]):
            if isinstance(node.op, AdvancedSubtensor) and not terms.has_rows(node.inputs[0]):
                chosen += _axes(node)
        known = [(i, n) for i, n in chosen if terms.has_rows(i) and terms.is_data(i)]
        return Indices(
            terms.data([index for index, _ in known]),
            terms.lengths([length for _, length in known]),
            [terms.is_data(length) for _, length in known],
        )

    def check(self, rowed: Sequence[np.ndarray], whole: Sequence[np.ndarray]) -> None:
        """Raise IndexError for the first row whose index chooses no element."""
        found = self.indices.arrays(rowed, whole)
        lengths = self.lengths.of(whole)
        for index, length, of_data in zip(found, lengths, self.of_data, strict=True):
            if not index.size or (index.min() >= -length and index.max() < length):
                continue
            first = tuple(int(i) for i in np.argwhere((index < -length) | (index >= length))[0])
            error = UnsettledIndexError if of_data else IndexError
            raise error(
                f"index {index[first]} of row {first[0]} is out of bounds for {length} elements"
            )


def _axes(node: Apply) -> list[tuple[Tensor, Tensor]]:
    """The index arrays of a choice, each with the length of the axis that it chooses from."""
    array, *given = node.inputs
    found = []
    for axis, entry in enumerate(node.op.idx_list):
        if isinstance(entry, int):
            index: Variable = given[entry]
            if index.type.ndim and index.type.dtype != "bool":
                found.append((index, array.shape[axis]))
            elif index.type.ndim:
                break  # a mask takes as many axes as it has
    return found
