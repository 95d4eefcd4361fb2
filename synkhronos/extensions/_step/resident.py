"""Training where JAX's arrays stay: parameters, states and gradients in the memory of each GPU.

Every member has all parameters and states, in arrays of their own which the update overwrites
(JAX's donation), so there is one copy of each. The gradients of a member make one flat vector for
each dtype, which the members sum in place; then each makes the same update of the same sum.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace

from synkhronos._backends import jax as jax_backend
from synkhronos._backends.compile_cache import while_compiling
from synkhronos._engine.commands.base import Command
from synkhronos._engine.commands.call import compute_call, contribute_call, part_of
from synkhronos._engine.commands.collectives import Collective
from synkhronos._engine.member import Member
from synkhronos._engine.replicas import configured
from synkhronos._engine.variables import Entry
from synkhronos._transport import serialization
from synkhronos.extensions._step.command import (
    PHASES,
    Clock,
    Step,
    check_votes,
    has_nan,
    scalars,
    shares_of,
)
from synkhronos.extensions._step.fused import Fused
from synkhronos.extensions._step.resident_recipe import ResidentRecipe, summed_in


class Resident:
    """A member's parameters and states, and what updates them.

    Attributes
    ----------
    entries : list of Entry
    leaves : list of array
        The rule's scalars, which the master sets before a step.
    clocks : list of array
        Each member's seconds by phase.
    owned : dict of array
        By the number of a variable, the array that nobody else holds: it may be overwritten.
    """

    def __init__(
        self,
        recipe: ResidentRecipe,
        entries: list[Entry],
        leaves: list[np.ndarray],
        clocks: list[np.ndarray],
        owned: dict[int, Any],
    ) -> None:
        self.recipe = recipe
        self.entries = entries
        self.leaves = leaves
        self.clocks = clocks
        self.fused: Fused | None = None
        self._owned = owned
        self._sizes = [int(np.prod(s, dtype=np.int64)) for s in recipe.of_places]
        kinds: list[Any] = [p.type for p in recipe.places]
        self._by_dtype = {
            d: [i for i, k in enumerate(kinds) if k.dtype == d] for d in recipe.dtypes
        }

    def compile(self) -> None:
        """Make the update's program, without a copy of what it updates."""
        recipe = self.recipe
        flats = {d: pt.vector(f"gradients of {d}", dtype=summed_in(d)) for d in recipe.dtypes}
        pieces: dict[Variable, Variable] = {}
        for dtype, members in self._by_dtype.items():
            at = 0
            for i in members:
                piece: Any = flats[dtype][at : at + self._sizes[i]].reshape(recipe.of_places[i])
                place: Any = recipe.places[i]
                typed = pt.cast(piece, dtype)
                pieces[place] = place.type.filter_variable(typed, allow_convert=True)
                at += self._sizes[i]
        changed = [v for v, _ in recipe.updates]
        values: list[Any] = [v.type() for v in changed]
        leaves: list[Any] = [v.type() for v in recipe.leaves]
        replace = pieces | dict(zip(recipe.leaves, leaves, strict=True))
        replace |= dict(zip(changed, values, strict=True))
        new = clone_replace([v for _, v in recipe.updates], replace=list(replace.items()))
        first = len(flats)
        with configured(recipe.config), jax_backend.wide():
            mode, programs = jax_backend.in_place(recipe.mode, range(first, first + len(values)))
            self._update = pytensor.function(
                [*flats.values(), *values, *leaves], new, mode=mode, on_unused_input="ignore"
            )
        self._update.trust_input = True
        lengths = [sum(self._sizes[i] for i in m) for m in self._by_dtype.values()]
        given: list[Any] = [((n,), summed_in(d)) for n, d in zip(lengths, flats, strict=True)]
        given += list(zip(recipe.shapes, [v.type.dtype for v in values], strict=True))
        given += [((), v.type.dtype) for v in leaves]
        [program] = programs
        program.compile((), given)

    def own(self) -> None:
        """See to it that the values lie here, in arrays that may be overwritten."""
        for entry in self.entries:
            value = entry.storage[0]
            if value is not self._owned.get(entry.number):
                known = entry.seen is value
                mine = self._owned[entry.number] = jax_backend.held(value)
                entry.storage[0] = mine
                if known:
                    entry.seen = mine

    def flat(self, gradients: Sequence[Any] | None, share: float) -> list[Any]:
        """This member's gradients times its share, end to end; zeros where it has none."""
        if gradients is None:
            return [
                jax_backend.blank((sum(self._sizes[i] for i in members),), summed_in(d))
                for d, members in self._by_dtype.items()
            ]
        return [
            jax_backend.flat([gradients[i] for i in members], summed_in(d), share)
            for d, members in self._by_dtype.items()
        ]

    @contextlib.contextmanager
    def taken(self, member: Member) -> Iterator[list[Any]]:
        """The values, to be overwritten; what fails before anybody has begun tears none."""
        values = {entry.number: self._owned.pop(entry.number) for entry in self.entries}
        try:
            yield list(values.values())
        except BaseException:
            if not jax_backend.are_gone(values.values()):
                self._owned.update(values)
                if member.size == 1:
                    member.in_place = ()
            raise

    def keep(self, new: Sequence[Any]) -> None:
        """The new values, once they are there."""
        jax_backend.ready(new)
        for entry, value in zip(self.entries, new, strict=True):
            entry.storage[0] = self._owned[entry.number] = value

    def apply(self, member: Member, flat: Sequence[Any], leaves: Sequence[np.ndarray]) -> None:
        """Overwrite all values by the new ones."""
        with jax_backend.wide(), self.taken(member) as values:
            self.keep(self._update(*flat, *values, *leaves))


@dataclass(frozen=True)
class InstallResident(Command):
    """Make every member's part of an update in its own memory; one compiles, then the others."""

    recipe: bytes
    number: int

    def run(self, member: Member) -> None:
        """Share the scalars, compile."""
        comm, mine = member.communicator, member.rank == member.master
        recipe: ResidentRecipe
        if mine:
            recipe = member.master_input
        else:
            recipe = serialization.unpack_graph(self.recipe, lambda n: member.variables[n].variable)
        clock = comm.empty((len(PHASES),), np.dtype(np.float64))
        clock[...] = 0
        clocks = [e[0] for e in comm.expose([clock])]
        types: list[Any] = [v.type for v in recipe.leaves]
        leaves = scalars(member, [np.dtype(t.dtype) for t in types])
        entries = [member.variables.of(v) for v, _ in recipe.updates]
        update = Resident(recipe, entries, leaves, clocks, member.owned)
        if not mine:
            comm.barrier()
        with member.compiling(), while_compiling(True):
            update.compile()
        if mine:
            comm.barrier()
        member.updates[self.number] = update


@dataclass(frozen=True)
class JoinResident(Collective):
    """Give variables the master's values in all members.

    Attributes
    ----------
    compared : tuple of int
        Variables whose values the members may hold differently: they must be equal.
    """

    compared: tuple[int, ...]

    def act(self, member: Member) -> None:
        """Receive, and compare with what was there."""
        compared = [member.variables[n] for n in self.compared]
        held = [np.asarray(e.storage[0]) for e in compared]
        member.receive_master_values(self.entries(member))
        now = [np.asarray(e.storage[0]) for e in compared]
        check_votes(
            member,
            compared,
            [np.array_equal(a, b, equal_nan=has_nan(a)) for a, b in zip(held, now, strict=True)],
        )
        self.mark(member, differs=False)


@dataclass(frozen=True)
class ResidentStep(Step):
    """A training step in one round: gradients, their sum over the members, everybody's update."""

    def run(self, member: Member) -> Any:
        """Compute, sum, update."""
        update: Resident = member.updates[self.update]
        clock = Clock(update.clocks[member.communicator.home.rank])
        if Fused.serves(self.call, member):
            return self._alone(member, update, clock)
        part, outputs = compute_call(self.call, member, lambda: clock.lap("scatter"))
        n = len(self.call.outputs)
        k = n + len(self.partials)
        rows = part.variant.rows
        share = shares_of(part, member.size, self.average)[member.rank]
        update.own()
        clock.lap("compute")
        flat = update.flat(outputs[k:] if rows else None, share)
        partials, outputs = outputs[n:k], outputs[:n] if rows else []  # and no gradients any more
        clock.lap("copy")
        with member.uninterrupted():
            leaves = self.with_partials(member, update.leaves, part, partials)
            with member.adding_up(flat):  # outputs go home while the gradients are on their way
                contribution = contribute_call(self.call, member, part, outputs)
            clock.lap("reduce")
            member.communicator.enter()
            clock.lap("wait")
            member.in_place = update.entries
            update.apply(member, flat, leaves)
            clock.lap("update")
            member.communicator.barrier()
            for entry in update.entries:
                entry.seen = entry.storage[0]
            member.in_place = ()
            clock.lap("wait")
        return contribution

    def _alone(self, member: Member, update: Resident, clock: Clock) -> Any:
        """The step of a group of one: a program that computes and updates."""
        part = part_of(self.call, member)
        update.own()
        clock.lap("scatter")
        if update.fused is None:
            replica = member.replicas[self.call.function]
            update.fused = Fused(update.recipe, replica, self.call, self.partials)
        with member.uninterrupted():
            update.fused.prepare(member, part.arguments, update.entries)
            member.in_place = update.entries
            n = len(self.call.outputs)
            with update.taken(member) as values:
                found = update.fused(part.arguments, values, update.leaves)
                update.keep(found[n:])
            for entry in update.entries:
                entry.seen = entry.storage[0]
            member.in_place = ()
        clock.lap("compute")
        return contribute_call(self.call, member, part, list(found[:n]))
