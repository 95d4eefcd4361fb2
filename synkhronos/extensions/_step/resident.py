"""Training with parameters, states and gradients in the memory of each GPU.

Each member has its own arrays of all parameters and states. The update overwrites them (JAX's
donation), so that there is one copy of each. The gradients of a member form one flat vector for
each dtype. The members sum these vectors in place; then each makes the same update.
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
from synkhronos._engine.commands.base import COMPUTE, COPY, REDUCE, SCATTER, UPDATE, WAIT, Stopwatch
from synkhronos._engine.commands.call import (
    check_combinable,
    compute_call,
    contribute_call,
    part_of,
)
from synkhronos._engine.commands.collectives import Collective
from synkhronos._engine.member import Member
from synkhronos._engine.replicas import configured
from synkhronos._engine.variables import Entry
from synkhronos.extensions._step.commands import check_votes, has_nan
from synkhronos.extensions._step.fused import Fused
from synkhronos.extensions._step.install import Install, MemberState, scalars
from synkhronos.extensions._step.resident_recipe import ResidentRecipe, summed_in
from synkhronos.extensions._step.update import Step, weights_of


class Resident(MemberState):
    """A member's parameters and states, and the program that updates them."""

    def __init__(
        self,
        recipe: ResidentRecipe,
        entries: list[Entry],
        leaves: list[np.ndarray],
        owned: dict[int, object],
    ) -> None:
        self.recipe = recipe
        self.entries = entries
        self.leaves = leaves
        self.fused: Fused | None = None
        # by the number of a variable, an array without other references: it may be overwritten
        self._owned = owned
        self._sizes = [int(np.prod(s, dtype=np.int64)) for s in recipe.of_places]
        kinds: list[Any] = [p.type for p in recipe.places]
        self._by_dtype = {
            d: [i for i, k in enumerate(kinds) if k.dtype == d] for d in recipe.dtypes
        }

    @property
    def joined(self) -> Sequence[tuple[Entry, None]]:
        """All variables that the update changes; each member has values of its own."""
        return [(entry, None) for entry in self.entries]

    def compile(self) -> None:
        """Compile the update's program, which overwrites the values."""
        with jax_backend.shared_cache():
            self._make_program()

    def _make_program(self) -> None:
        recipe = self.recipe
        flats = {d: pt.vector(f"gradients of {d}", dtype=summed_in(d)) for d in recipe.dtypes}
        pieces: dict[Variable, Variable] = {}
        for dtype, members in self._by_dtype.items():
            at = 0
            for i in members:
                piece: Any = flats[dtype][at : at + self._sizes[i]].reshape(recipe.of_places[i])
                place: Variable = recipe.places[i]
                typed = pt.cast(piece, dtype)
                pieces[place] = place.type.filter_variable(typed, allow_convert=True)
                at += self._sizes[i]
        changed = [v for v, _ in recipe.updates]
        values: list[Any] = [v.type() for v in changed]
        leaves: list[Variable] = [v.type() for v in recipe.leaves]
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
        """Copy values that are not on this device, or may not be overwritten."""
        copies = []
        for entry in self.entries:
            value = entry.storage[0]
            if value is not self._owned.get(entry.number):
                known = entry.seen is value
                mine = self._owned[entry.number] = jax_backend.held(value)
                copies.append(mine)
                entry.storage[0] = mine
                if known:
                    entry.seen = mine
                if entry.view is not None:  # in every member: the node has no common array any more
                    entry.lent, entry.view = entry.view, None
        jax_backend.ready(copies)  # until then JAX reads the host's memory

    def flat(self, gradients: Sequence[object] | None, weight: float) -> list[object]:
        """This member's gradients times its weight, one after the other; zeros without rows."""
        if gradients is None:
            return [
                jax_backend.blank((sum(self._sizes[i] for i in members),), summed_in(d))
                for d, members in self._by_dtype.items()
            ]
        return [
            jax_backend.flat([gradients[i] for i in members], summed_in(d), weight)
            for d, members in self._by_dtype.items()
        ]

    @contextlib.contextmanager
    def taken(self) -> Iterator[list[object]]:
        """The values, to be overwritten; a failure before the first write leaves them intact."""
        values = {entry.number: self._owned.pop(entry.number) for entry in self.entries}
        try:
            yield list(values.values())
        except BaseException:
            if not jax_backend.are_gone(values.values()):
                self._owned.update(values)
            raise

    @contextlib.contextmanager
    def writing(self, member: Member) -> Iterator[None]:
        """A context for an update of the variables' values: a failure in it leaves them torn.

        In a group of one, they are torn only if they have been overwritten.
        """
        member.changes.in_place = self.entries
        try:
            yield
        except BaseException:
            if member.size == 1 and all(entry.number in self._owned for entry in self.entries):
                member.changes.in_place = ()
            raise

    def keep(self, new: Sequence[object]) -> None:
        """Store the new values, once they are computed."""
        jax_backend.ready(new)
        for entry, value in zip(self.entries, new, strict=True):
            entry.storage[0] = self._owned[entry.number] = value

    def apply(self, flat: Sequence[object], leaves: Sequence[np.ndarray]) -> None:
        """Overwrite all values by the new ones."""
        with jax_backend.wide(), self.taken() as values:
            self.keep(self._update(*flat, *values, *leaves))


@dataclass(frozen=True)
class InstallResidentUpdate(Install):
    """Make an update in each member's own memory."""

    def allocate(self, recipe: ResidentRecipe, member: Member) -> Resident:
        """Map the scalars."""
        types: list[Any] = [v.type for v in recipe.leaves]
        leaves = scalars(member, [np.dtype(t.dtype) for t in types])
        entries = [member.variables.of(v) for v, _ in recipe.updates]
        return Resident(recipe, entries, leaves, member.held.overwritable)


@dataclass(frozen=True)
class MakeEqual(Collective):
    """Give variables the master's values in all members of a group on GPUs."""

    # variables whose values may differ between members; unequal values raise InputError
    compared: tuple[int, ...]

    def act(self, member: Member) -> None:
        """Receive, and compare with the previous values."""
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
    """A training step in one round: gradients, their sum over members, the same update in all."""

    def run(self, member: Member) -> object:
        """Compute, sum, update."""
        update = member.installed.of(Resident, self.update)
        clock = member.measured.clocks[self.update].mine
        if Fused.serves(self.call, member):
            clock.start(counted=update.fused is not None)
            return self._alone(member, update, clock)
        clock.start(counted=not self.call.first and member.replicas[self.update].used)
        part, outputs = compute_call(self.call, member, lambda _: clock.lap(SCATTER))
        n = len(self.call.outputs)
        k = n + len(self.partials)
        rows = part.variant.rows
        weight = weights_of(part, member.size, self.average)[member.rank]
        update.own()
        clock.lap(COMPUTE)
        flat = update.flat(outputs[k:] if rows else None, weight)
        partials, outputs = outputs[n:k], outputs[:n] if rows else []  # lets go of the gradients
        clock.lap(COPY)
        check_combinable(self.call, member, part, outputs)
        with member.uninterrupted():
            leaves = self.with_partials(member, update.leaves, part, partials)
            with member.communicator.adding_up(flat):  # outputs are copied while NCCL sums
                contribution = contribute_call(self.call, member, part, outputs)
            clock.lap(REDUCE)
            member.communicator.enter()
            clock.lap(WAIT)
            with update.writing(member):
                update.apply(flat, leaves)
            clock.lap(UPDATE)
            member.communicator.barrier()
            member.changes.note_sent(update.entries)
            member.changes.in_place = ()
            clock.stop(WAIT, part.rows if rows else 0)
        return contribution

    def _alone(self, member: Member, update: Resident, clock: Stopwatch) -> object:
        """The step of a group of one: one program that computes and updates."""
        part = part_of(self.call, member)
        update.own()
        clock.lap(SCATTER)
        if update.fused is None:
            replica = member.replicas[self.call.function]
            update.fused = Fused(update.recipe, replica, self.call, self.partials)
        with member.uninterrupted():
            update.fused.prepare(member, part.arguments)
            n = len(self.call.outputs)
            changed = member.replicas[self.call.function].recipe.updates  # such as running means
            with update.writing(member), update.taken() as values:
                found = update.fused(part.arguments, values, update.leaves)
                update.keep(found[n + len(changed) :])
            for u, value in zip(changed, found[n:], strict=False):
                member.changes.set(member.variables.of(u.shared), value)
            member.changes.note_sent(update.entries)
            member.changes.in_place = ()
        clock.lap(COMPUTE)
        contribution = contribute_call(self.call, member, part, list(found[:n]))
        clock.stop(REDUCE, part.rows)
        return contribution
