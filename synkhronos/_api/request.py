"""A call of a function as the user has written it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_NO_NAMES: Mapping[str, object] = MappingProxyType({})


# Each call makes one. `Final` lets mypy keep it frozen: a frozen dataclass takes 0.6 us more to
# make, a tenth of the shortest calls.
@dataclass(slots=True)
class Request:
    """A user's request to a function; nothing of it is bound, checked or copied yet.

    Attributes
    ----------
    args : sequence of object
        Inputs by position.
    kwargs : dict
        Inputs by name.
    subset : sequence of int (or keys), or None
        The wanted outputs, `output_subset`; None: all.
    batch : object
        Rows of the scattered inputs; None: all.
    batch_s : object
        Rows of each member's sliceable shared variables; None: all.
    slices : int or "auto"
        `num_slices`.
    """

    args: Final[Sequence[object]]
    kwargs: Final[Mapping[str, object]] = _NO_NAMES
    subset: Final[Sequence[object] | None] = None
    batch: Final[object] = None
    batch_s: Final[object] = None
    slices: Final[int | str] = 1
