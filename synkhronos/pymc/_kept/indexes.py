"""Indexes of a compiled model, made when they are first read: pandas takes longer than the rest."""

from __future__ import annotations

import functools
from typing import Any

from synkhronos._libraries.nutpie import NUTPIE

_NAMES = "_names_of_model"
_LATE = ("dims", "_coords")


@functools.cache
def late_indexes(kind: Any) -> Any:
    """A subclass of nutpie's compiled models, for `give_names`."""

    class LateIndexes(kind):
        def __getattr__(self, name: str) -> object:
            known = vars(self)
            if name not in _LATE or _NAMES not in known:
                raise AttributeError(f"{type(self).__name__} has no attribute {name}")
            prepare = NUTPIE.get("_prepare_dims_and_coords")
            found = prepare(known[_NAMES], self.shape_info, self.reparameterized_names)
            known.update(zip(_LATE, found, strict=True))
            return known[name]

    return LateIndexes


def give_names(compiled: Any, names: object) -> None:
    """Let dims and coordinates of a compiled model follow from these names once they are read."""
    for name in _LATE:
        del vars(compiled)[name]
    vars(compiled)[_NAMES] = names
