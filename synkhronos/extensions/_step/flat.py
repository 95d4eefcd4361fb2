"""The recipe of a node-shared update, and the flat vectors that hold its values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._compiling.graph_types import ModeLike
from synkhronos._transport.communicators.communicator import Communicator
from synkhronos.extensions._step.exchanges import Exchange, TopK
from synkhronos.extensions._step.layout import Bucket, assign_owners, bucket
from synkhronos.extensions._step.partition import Partition


@dataclass(frozen=True)
class FlatRecipe:
    """Everything that a member needs to make a node-shared update."""

    partition: Partition
    shapes: dict[SharedVariable, tuple[int, ...]]  # of every parameter and state
    # one for each loop, then one for each parameter of the units that are updated whole
    buckets: tuple[Bucket, ...]
    owners: tuple[int, ...]  # the member of the node that updates each whole unit
    members: int  # of the node
    mode: ModeLike
    config: dict[str, object]
    exchange: Exchange | None = None  # how gradients travel between nodes
    # what the exchange keeps from step to step: residuals, by parameter; or a count of steps
    kept: tuple[SharedVariable, ...] = ()
    # which gradients are told of while the others are computed, one group after the other; empty if
    # none is
    order: tuple[tuple[int, ...], ...] = ()

    def for_node(self, members: int) -> FlatRecipe:
        """The same for a node with another number of members."""
        if members == self.members:
            return self
        how = self.mode, self.config, self.exchange, self.kept, self.order
        return lay_out(self.partition, self.shapes, members, *how)

    @property
    def sparse(self) -> TopK | None:
        """The exchange, if it is sparse: then gradients are added up on one node, too."""
        return self.exchange if isinstance(self.exchange, TopK) else None


def shapes_of(partition: Partition) -> dict[SharedVariable, tuple[int, ...]]:
    """The shape of every parameter and state."""
    return {v: v.get_value(borrow=True).shape for unit in partition.units for v in unit.everything}


def lay_out(
    partition: Partition,
    shapes: dict[SharedVariable, tuple[int, ...]],
    members: int,
    mode: ModeLike,
    config: dict[str, object],
    exchange: Exchange | None = None,
    kept: tuple[SharedVariable, ...] = (),
    order: tuple[tuple[int, ...], ...] = (),
) -> FlatRecipe:
    """Lay out all variables for a node with this number of members."""

    def size(unit: int, k: int) -> int:
        return int(np.prod(shapes[partition.units[unit].everything[k]], dtype=np.int64))

    numbers = itertools.count()
    buckets = [
        bucket(
            [(u.unit, partition.units[u.unit].params[0], size(u.unit, 0)) for u in loop.uses],
            members,
            next(numbers),
        )
        for loop in partition.loops
    ]
    for whole in partition.whole_updates:
        for k, param in enumerate(partition.units[whole.unit].params):
            buckets.append(
                bucket([(whole.unit, param, size(whole.unit, k))], members, next(numbers))
            )
    sizes = [
        sum(size(w.unit, k) for k in range(len(partition.units[w.unit].params)))
        for w in partition.whole_updates
    ]
    owners = tuple(assign_owners(sizes, members))
    layout = tuple(buckets), owners, members
    return FlatRecipe(partition, shapes, *layout, mode, config, exchange, kept, order)


Empty = Callable[[tuple[int, ...], np.dtype], np.ndarray]


class Arrays:
    """The flat vectors: gradients of this member, values of the node."""

    def __init__(self, recipe: FlatRecipe) -> None:
        units = recipe.partition.units
        self.buckets = recipe.buckets
        self.gradient_dtypes = []
        self.roles: list[list[np.dtype]] = []  # of each bucket
        for b in recipe.buckets:
            unit = units[b.placements[0].unit]
            first = unit.everything[unit.params.index(b.placements[0].param)]
            self.gradient_dtypes.append(np.dtype(first.type.dtype))
            self.roles.append([np.dtype(v.type.dtype) for v in unit.variables])
        self.loose = [v for unit in units for v in unit.loose]
        self._shapes = recipe.shapes
        self._kept = recipe.kept
        self.leaf_dtypes = [np.dtype(v.type.dtype) for v in recipe.partition.leaves]
        self._units = units

    def gradients(self, empty: Empty) -> list[np.ndarray]:
        """Allocate this member's gradients."""
        return [
            empty((b.length,), d) for b, d in zip(self.buckets, self.gradient_dtypes, strict=True)
        ]

    def accumulated(self, comm: Communicator) -> np.ndarray:
        """Allocate the node's sum of gradient and residual, which has one dtype."""
        dtype = np.result_type(np.float32, *self.gradient_dtypes)
        return comm.empty((sum(b.length for b in self.buckets),), dtype)

    def values(self, comm: Communicator) -> list[np.ndarray]:
        """Allocate the node's values: role after role of each bucket, then all others."""
        flat = [
            comm.empty((b.length,), d)
            for b, roles in zip(self.buckets, self.roles, strict=True)
            for d in roles
        ]
        others = [*self.loose, *self._kept]
        return flat + [comm.empty(self._shapes[v], np.dtype(v.type.dtype)) for v in others]

    def sorted(
        self, values: Sequence[np.ndarray]
    ) -> tuple[list[list[np.ndarray]], dict[SharedVariable, np.ndarray]]:
        """The values of each bucket by role, and the view of every variable."""
        rest = iter(values)
        by_bucket = [[next(rest) for _ in roles] for roles in self.roles]
        views = {}
        for b, roles in zip(self.buckets, by_bucket, strict=True):
            for placement in b.placements:
                for v, vector in zip(self._units[placement.unit].variables, roles, strict=True):
                    piece = vector[placement.start : placement.start + placement.size]
                    views[v] = piece.reshape(self._shapes[v])
        views |= dict(zip((*self.loose, *self._kept), rest, strict=True))
        return by_bucket, views
