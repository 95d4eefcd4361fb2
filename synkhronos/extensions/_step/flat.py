"""What a node-shared update is made of, and the flat vectors that hold its values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._transport.communicators.communicator import Communicator
from synkhronos.extensions._step.layout import Band, band, share_out
from synkhronos.extensions._step.partition import Parting


@dataclass(frozen=True)
class FlatRecipe:
    """All that a member needs to make its part of a node-shared update.

    Attributes
    ----------
    shapes : dict of tuple
        Of every parameter and state.
    bands : tuple of Band
        One for each loop, then one for each parameter of the units that are updated whole.
    owners : tuple of int
        The member of the node that updates each whole unit.
    members : int
        Of the node.
    compress : {"fp16", "bf16"} or None
        How gradients travel between nodes.
    """

    parting: Parting
    shapes: dict[SharedVariable, tuple[int, ...]]
    bands: tuple[Band, ...]
    owners: tuple[int, ...]
    members: int
    mode: Any
    config: dict[str, Any]
    compress: str | None

    def for_node(self, members: int) -> FlatRecipe:
        """The same on a node of another number of members."""
        if members == self.members:
            return self
        return lay_out(self.parting, self.shapes, members, self.mode, self.config, self.compress)


def shapes_of(parting: Parting) -> dict[SharedVariable, tuple[int, ...]]:
    """The shape of every parameter and state."""
    return {v: v.get_value(borrow=True).shape for unit in parting.units for v in unit.everything}


def lay_out(
    parting: Parting,
    shapes: dict[SharedVariable, tuple[int, ...]],
    members: int,
    mode: Any,
    config: dict[str, Any],
    compress: str | None = None,
) -> FlatRecipe:
    """Decide where everything lies on a node of so many members."""

    def size(unit: int, k: int) -> int:
        return int(np.prod(shapes[parting.units[unit].everything[k]], dtype=np.int64))

    turns = itertools.count()
    bands = [
        band(
            [(u.unit, parting.units[u.unit].params[0], size(u.unit, 0)) for u in loop.uses],
            members,
            next(turns),
        )
        for loop in parting.loops
    ]
    for whole in parting.wholes:
        for k, param in enumerate(parting.units[whole.unit].params):
            bands.append(band([(whole.unit, param, size(whole.unit, k))], members, next(turns)))
    sizes = [
        sum(size(w.unit, k) for k in range(len(parting.units[w.unit].params)))
        for w in parting.wholes
    ]
    owners = tuple(share_out(sizes, members))
    return FlatRecipe(parting, shapes, tuple(bands), owners, members, mode, config, compress)


class Arrays:
    """The flat vectors: this member's gradients, and the values, which are the node's."""

    def __init__(self, recipe: FlatRecipe) -> None:
        units = recipe.parting.units
        self.bands = recipe.bands
        self.gradient_dtypes = []
        self.roles: list[list[np.dtype]] = []  # of each band
        for b in recipe.bands:
            unit = units[b.tenants[0].unit]
            first = unit.everything[unit.params.index(b.tenants[0].param)]
            self.gradient_dtypes.append(np.dtype(first.type.dtype))
            self.roles.append([np.dtype(v.type.dtype) for v in unit.variables])
        self.loose = [v for unit in units for v in unit.loose]
        self._shapes = recipe.shapes
        self.leaf_dtypes = [np.dtype(v.type.dtype) for v in recipe.parting.leaves]
        self._units = units

    def gradients(self, comm: Communicator) -> list[np.ndarray]:
        """Allocate this member's gradients."""
        return [
            comm.empty((b.length,), d)
            for b, d in zip(self.bands, self.gradient_dtypes, strict=True)
        ]

    def values(self, comm: Communicator) -> list[np.ndarray]:
        """Allocate the node's values: role after role of each band, then the loose ones."""
        flat = [
            comm.empty((b.length,), d)
            for b, roles in zip(self.bands, self.roles, strict=True)
            for d in roles
        ]
        return flat + [comm.empty(self._shapes[v], np.dtype(v.type.dtype)) for v in self.loose]

    def sorted(
        self, values: Sequence[np.ndarray]
    ) -> tuple[list[list[np.ndarray]], dict[SharedVariable, np.ndarray]]:
        """The values of each band by role, and the view of every variable."""
        rest = iter(values)
        by_band = [[next(rest) for _ in roles] for roles in self.roles]
        views = {}
        for b, roles in zip(self.bands, by_band, strict=True):
            for tenant in b.tenants:
                for v, vector in zip(self._units[tenant.unit].variables, roles, strict=True):
                    piece = vector[tenant.start : tenant.start + tenant.size]
                    views[v] = piece.reshape(self._shapes[v])
        views |= dict(zip(self.loose, rest, strict=True))
        return by_band, views
