"""The vocabulary: everything that a master can ask of the members, itself included.

A command is a frozen value. `run(member)` does it in any member and returns that member's outcome;
`answer(member, own, reports)` makes, in the master, the result of the outcomes. A command that
changes variables does so through `member.change`, so that a failure anywhere undoes it everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from synkhronos._engine.calls import combine_call, held_as, run_call
from synkhronos._engine.replicas import Replica
from synkhronos._engine.variables import Entry, build, is_array, stream
from synkhronos._errors import InputError
from synkhronos._host.arena import Piece
from synkhronos._plan.reductions import Reduction
from synkhronos._plan.rows import Picks, Selection, slices
from synkhronos._transport import serialization
from synkhronos._transport.communicators import Join

if TYPE_CHECKING:
    from synkhronos._engine.member import Member


class Command:
    """The base of all commands."""

    repeats = False  # the very same object may be posted again, as one word
    pure = False  # it changes no variable in any member
    lent = False  # its answer keeps no array of the reports, so they need not be copied

    @property
    def foreign(self) -> bool:
        """Whether its class may be one that workers cannot import (it then travels by value)."""
        return not type(self).__module__.startswith("synkhronos.")

    def run(self, member: Member) -> Any:
        """Do it in a member; returns the member's outcome."""
        raise NotImplementedError

    def answer(self, member: Member, own: Any, reports: dict[int, Any]) -> Any:
        """In the master: the result, of its own outcome and the workers'."""
        del member, reports
        return own


@dataclass(frozen=True)
class Program(Command):
    """Several commands in one round; all of them stand, or none."""

    commands: tuple[Command, ...]
    repeats = True

    @property
    def foreign(self) -> bool:
        """Whether one of its commands is."""
        return any(command.foreign for command in self.commands)

    def run(self, member: Member) -> tuple[Any, ...]:
        """One after the other."""
        with member.nested():
            return tuple([command.run(member) for command in self.commands])

    def answer(self, member: Member, own: Any, reports: dict[int, Any]) -> list[Any]:
        """The answers of all."""
        return [
            command.answer(
                member,
                own[i],
                {r: o[i] for r, o in reports.items() if o[i] is not None},
            )
            for i, command in enumerate(self.commands)
        ]


@dataclass(frozen=True)
class Define(Command):
    """Make shared variables known to all members; the values of arrays follow by broadcast."""

    definitions: bytes
    arrays: tuple[int, ...]

    def run(self, member: Member) -> None:
        """Make the variables, as copies of the master's."""
        if member.rank != member.master:
            for definition in serialization.unpack_graph(self.definitions, _no_reference):
                value = definition.value
                entry = member.variables.add(build(definition), definition.number)
                if isinstance(value, np.random.Generator):
                    entry.storage[0] = stream(value, member.rank, member.master)
        member.take_masters([member.variables[n] for n in self.arrays], undo=False)


@dataclass(frozen=True)
class Replicate(Command):
    """Ship functions: each member makes its replicas, and compiles them when they are called."""

    recipes: bytes

    def run(self, member: Member) -> None:
        """Make the replicas (the master has its own)."""
        if member.rank != member.master:
            _, recipes = serialization.unpack_graph(self.recipes, _finder(member))
            for recipe in recipes:
                member.replicas[recipe.number] = Replica(recipe)


@dataclass(frozen=True)
class Forget(Command):
    """Drop functions (and scattered Data) and variables that the master's user has dropped."""

    functions: tuple[int, ...]
    variables: tuple[int, ...]

    def run(self, member: Member) -> None:
        """Drop the replicas."""
        for number in self.functions:
            member.replicas.pop(number, None)
            member.updates.pop(number, None)
            member.shares.pop(number, None)
        member.forget(self.variables)


def in_host(values: Sequence[Any] | None) -> list[np.ndarray] | None:
    """Results for the user: arrays of numpy's, that may be written to."""
    if values is None:
        return None
    return [v if isinstance(v, np.ndarray) else np.array(v) for v in values]


def _no_reference(pid: Any) -> Any:
    raise InputError(f"a definition refers to shared variable {pid}")


def _finder(member: Member) -> Any:
    return lambda pid: member.variables[pid].variable


@dataclass(frozen=True)
class Argument:
    """One input of a call: where its array is, and which rows of it.

    Attributes
    ----------
    source : Piece, FilePiece, Share, or a value
    rows : Selection, Piece of a list of rows, or None (all of them: it is not scattered)
    """

    source: Any
    rows: Selection | Piece | None = None

    def __reduce__(self) -> Any:
        return Argument, (self.source, self.rows)


@dataclass(frozen=True)
class Call(Command):
    """Run a function.

    Attributes
    ----------
    edges : tuple of int, or None
        Where the parts of the selected rows begin and end; None without scattered inputs.
    outputs, reductions : tuples
        Which outputs of the recipe, and how their partial values combine.
    slices : int
        The number of slices of each part.
    pieces : tuple of tuples of int, or None
        The lengths of each member's slices, where these are not `slices` about equal ones.
    batch_s : tuple, or None
        For each member, the rows of its sliceable shared variables.
    changed : tuple of int
        Shared variables that the user has set: the master's values travel with the call.
    sent : tuple of (int, value)
        The same for values that are no arrays.
    first : bool
        Not compiled yet: one member compiles and runs first, the others load from the cache.
    extra : tuple of int
        Outputs that are computed with the others and stay in the members.
    """

    lent = True

    function: int
    arguments: tuple[Argument, ...]
    edges: tuple[int, ...] | None
    outputs: tuple[int, ...]
    reductions: tuple[Reduction | None, ...]
    slices: int = 1
    batch_s: tuple[Any, ...] | None = None
    changed: tuple[int, ...] = ()
    sent: tuple[tuple[int, Any], ...] = ()
    first: bool = False
    pure: bool = False
    extra: tuple[int, ...] = ()
    pieces: tuple[tuple[int, ...], ...] | None = None

    @property
    def sliced(self) -> bool:
        """Whether the values of parts are put together from those of slices."""
        return self.slices > 1 or self.pieces is not None

    def lengths(self, rank: int, rows: int) -> tuple[int, ...]:
        """The lengths of the slices of a member's part."""
        if self.pieces is not None:
            return self.pieces[rank]
        return tuple([hi - lo for lo, hi in slices(rows, self.slices)])

    def __reduce__(self) -> Any:  # half the time and size of a dataclass's own
        return _call, (*[getattr(self, name) for name in _CALL_FIELDS],)

    @property
    def repeats(self) -> bool:  # type: ignore[override]
        """Calls with index lists seldom do."""
        return not any([isinstance(a.rows, Picks) for a in self.arguments])

    def run(self, member: Member) -> Any:
        """Compute this member's part; returns what it contributes to the outputs."""
        return run_call(self, member)

    def answer(self, member: Member, own: Any, reports: dict[int, Any]) -> list[Any]:
        """Combine the contributions in the order of ranks."""
        return combine_call(self, member, own, reports)


_CALL_FIELDS = tuple(f.name for f in fields(Call))


def _call(*values: Any) -> Call:
    return Call(*values)


@dataclass(frozen=True)
class Collective(Command):
    """The base of commands on shared variables."""

    variables: tuple[int, ...]

    def entries(self, member: Member) -> list[Entry]:
        """The variables in this member."""
        return [member.variables[n] for n in self.variables]

    def arrays(self, member: Member) -> list[Any]:
        """Their values, as the communicator moves them."""
        return [member.array(e) for e in self.entries(member)]

    def change(self, member: Member, values: Iterable[Any], differs: bool) -> None:
        """Give the variables new values; `differs`: each member other ones."""
        for entry, value in zip(self.entries(member), values, strict=True):
            member.change(entry, value)
        self.mark(member, differs)

    def as_held(self, member: Member, values: Iterable[np.ndarray]) -> list[np.ndarray]:
        """Reduced values in the variables' own dtypes; averages of integers are rounded."""
        dtypes = [a.dtype for a in self.arrays(member)]
        return [held_as(v, d) for v, d in zip(values, dtypes, strict=True)]

    def mark(self, member: Member, differs: bool) -> None:
        """Note whether the members now hold different values."""
        for entry in self.entries(member):
            member.mark(entry, differs)


@dataclass(frozen=True)
class Broadcast(Collective):
    """The master's values everywhere."""

    def run(self, member: Member) -> None:
        """Receive; the master takes new values from its hand first."""
        if member.hand is not None:
            self.change(member, [np.array(v) for v in member.hand], differs=False)
        member.take_masters([e for e in self.entries(member) if is_array(e)])
        self.mark(member, differs=False)


@dataclass(frozen=True)
class Send(Collective):
    """Values that are no arrays (generators): the master's everywhere."""

    values: tuple[Any, ...]

    def run(self, member: Member) -> None:
        """Take them, each member its own stream of a generator."""
        for entry, value in zip(self.entries(member), self.values, strict=True):
            if isinstance(value, np.random.Generator):
                value = stream(value, member.rank, member.master)
            if member.rank != member.master:
                member.change(entry, value)
            member.mark(entry, differs=False)


@dataclass(frozen=True)
class Scatter(Collective):
    """Rows of the master's values, divided."""

    edges: tuple[int, ...]

    def run(self, member: Member) -> None:
        """Receive this member's rows."""
        parts = member.communicator.scatter(member.hand, member.master, self.edges)
        self.change(member, parts, differs=True)


@dataclass(frozen=True)
class Gather(Collective):
    """Everybody's values at the master."""

    join: Join

    def run(self, member: Member) -> list[np.ndarray] | None:
        """Contribute."""
        comm = member.communicator
        found = comm.gather(self.arrays(member), member.master, self.join)
        return in_host(found) if member.rank == member.master else None


@dataclass(frozen=True)
class AllGather(Collective):
    """Everybody's values, joined, everywhere."""

    def run(self, member: Member) -> None:
        """Contribute and receive."""
        joined = member.communicator.all_gather(self.arrays(member))
        self.change(member, joined, differs=False)


@dataclass(frozen=True)
class Reduce(Collective):
    """Reduced values at the master."""

    op: Reduction
    weights: tuple[float, ...] | None
    in_place: bool

    def run(self, member: Member) -> list[np.ndarray] | None:
        """Contribute."""
        comm = member.communicator
        found = comm.reduce(self.arrays(member), self.op, member.master, self.weights)
        if not self.in_place:
            return in_host(found)
        if found is not None:
            self.change(member, self.as_held(member, found), differs=True)
        return None


@dataclass(frozen=True)
class AllReduce(Collective):
    """Reduced values everywhere, in place."""

    op: Reduction
    weights: tuple[float, ...] | None = None
    repeats = True

    def run(self, member: Member) -> None:
        """Reduce this member's chunk for all; on GPUs, into fresh arrays."""
        entries = self.entries(member)
        if member.on_gpus:
            given = self.arrays(member)  # numpy's are overwritten: the old ones are the way back
            values = [np.array(v, order="C") if isinstance(v, np.ndarray) else v for v in given]
            member.communicator.all_reduce(values, self.op, self.weights)
            self.change(member, values, differs=False)
            return
        arrays = [member.adopt(e) for e in entries]

        def starting() -> None:
            member.in_place = entries

        with member.uninterrupted():
            comm = member.communicator
            comm.all_reduce(arrays, self.op, self.weights, starting=starting)
            member.in_place = ()
        self.mark(member, differs=False)


@dataclass(frozen=True)
class ReduceScatter(Collective):
    """Reduced values, divided by rows: each member's variables become its rows of them."""

    op: Reduction
    edges: tuple[int, ...]
    weights: tuple[float, ...] | None = None

    def run(self, member: Member) -> None:
        """Reduce this member's rows."""
        comm = member.communicator
        found = comm.reduce_scatter(self.arrays(member), self.op, self.edges, self.weights)
        self.change(member, self.as_held(member, found), differs=True)


@dataclass(frozen=True)
class SetValue(Collective):
    """New values in one member."""

    rank: int

    def run(self, member: Member) -> None:
        """The one member receives."""
        pair = tuple(sorted({member.master, self.rank}))
        found = member.communicator.broadcast(member.hand, member.master, pair)
        if member.rank == self.rank and found is not None:
            self.change(member, [np.array(v) for v in found], differs=True)
        self.mark(member, differs=True)


@dataclass(frozen=True)
class GetValue(Collective):
    """The values of one member."""

    rank: int

    def run(self, member: Member) -> list[np.ndarray] | None:
        """The one member sends."""
        pair = tuple(sorted({member.master, self.rank}))
        found = member.communicator.broadcast(self.arrays(member), self.rank, pair)
        if member.rank != member.master or found is None:
            return None
        return [np.array(a) for a in found]


@dataclass(frozen=True)
class Shapes(Collective):
    """The shapes of the values in each member."""

    def run(self, member: Member) -> tuple[tuple[int, ...], ...]:
        """This member's."""
        return tuple([a.shape for a in self.arrays(member)])

    def answer(
        self, member: Member, own: Any, reports: dict[int, Any]
    ) -> list[list[tuple[int, ...]]]:
        """For each variable, its shape in each rank."""
        by_rank = [own if r == member.master else reports[r] for r in range(member.size)]
        return [list(column) for column in zip(*by_rank, strict=True)]


__all__ = [
    "AllGather",
    "AllReduce",
    "Argument",
    "Broadcast",
    "Call",
    "Collective",
    "Command",
    "Define",
    "Forget",
    "Gather",
    "GetValue",
    "Program",
    "Reduce",
    "ReduceScatter",
    "Replicate",
    "Scatter",
    "Send",
    "SetValue",
    "Shapes",
]
