"""Indices that are arrays: which axes of a table have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from synkhronos._compiling.direct.arrays import Shape, View
from synkhronos._compiling.direct.unfit import UnfitError


def chosen(
    op: Any, indices: Sequence[View], table: View, shape: Shape
) -> tuple[list[View], tuple[int | None, ...], tuple[int, ...]]:
    """The indices by element, which axes of the table have them, and those of the others."""
    first = _first_indexed(op, len(indices))
    common = np.broadcast_shapes(*[v.shape for v in indices])
    if any(np.dtype(v.dtype).kind not in "iu" for v in indices):
        raise UnfitError(f"{op} by {indices[0].dtype}")
    after = len(table.shape) - first - len(indices)
    order = [*range(len(common))]
    wide = [
        v.broadcast(common).moved([*["x"] * first, *order, *["x"] * after]).broadcast(shape)
        for v in indices
    ]
    placed = (*[None] * first, *range(len(indices)), *[None] * after)
    begin = first + len(common)
    return wide, placed, (*range(first), *range(begin, begin + after))


def chosen_shape(op: Any, indices: Sequence[View], table: Shape) -> Shape:
    """The shape of the elements of a table that indices name."""
    first = _first_indexed(op, len(indices))
    return (
        *table[:first],
        *np.broadcast_shapes(*[v.shape for v in indices]),
        *table[first + len(indices) :],
    )


def _first_indexed(op: Any, count: int) -> int:
    """The first axis that has an index: the indices are next to each other, all others whole.

    Raises
    ------
    UnfitError
    """
    places = getattr(op, "idx_list", None)
    if places is None:
        return 0
    kinds = [isinstance(each, slice) for each in places]
    if any(isinstance(s, slice) and s != slice(None) for s in places):
        raise UnfitError(f"{op}")
    first = kinds.index(False)
    if kinds[first : first + count] != [False] * count or not all(kinds[first + count :]):
        raise UnfitError(f"{op}")
    return first
