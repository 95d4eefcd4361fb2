"""Indices that data give: an error names the user's row, in any mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytensor
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable as Tensor

from synkhronos._compiling.python_mode import python_mode
from synkhronos.pymc._repeated.columns import DataOf, RowTerms

_PLAIN = python_mode()


class UnsettledIndexError(IndexError):
    """An index beyond the end of an array of data, which the user may set next."""


@dataclass
class Indices:
    """The indices by row in terms, and how many elements each chooses from.

    A form has other rows than the user's. Machine code of numba does not check indices: plain PyMC
    reads memory that is no element there.
    """

    indices: DataOf
    lengths: _Lengths
    of_data: list[bool]

    @staticmethod
    def of(terms: RowTerms) -> Indices:
        """The indices of these terms."""
        chosen: list[tuple[Tensor, Tensor]] = []
        for node in toposort(terms.values, blockers=[*terms.rowed, *terms.whole]):
            if isinstance(node.op, AdvancedSubtensor) and not terms.has_rows(node.inputs[0]):
                chosen += _axes(node)
        known = [(i, n) for i, n in chosen if terms.has_rows(i) and terms.is_data(i)]
        shapes = terms.parameters
        return Indices(
            terms.data([index for index, _ in known]),
            _Lengths([length for _, length in known], shapes, terms.whole),
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


@dataclass
class _Lengths:
    """Lengths of arrays of parameters or of data."""

    expressions: list[Tensor]
    parameters: dict[Tensor, tuple[int, ...]]
    whole: list[Tensor]
    _function: Callable[..., Sequence[np.ndarray]] | None = None

    def of(self, whole: Sequence[np.ndarray]) -> list[int]:
        """The lengths, where the data are these."""
        if not self.expressions:
            return []
        if self._function is None:
            self._function = pytensor.function(
                [*self.parameters, *self.whole],
                self.expressions,
                mode=_PLAIN,
                on_unused_input="ignore",
            )
        given = [np.zeros(shape, v.type.dtype) for v, shape in self.parameters.items()]
        with np.errstate(all="ignore"):
            return [int(n) for n in self._function(*given, *whole)]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_function": None}


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
