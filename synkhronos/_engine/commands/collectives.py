"""Commands on shared variables: their values moved and combined between members."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from synkhronos._backends.jax import rounded
from synkhronos._engine.commands.base import Command
from synkhronos._engine.member import Member
from synkhronos._engine.variables import Entry, NewValues, is_array
from synkhronos._proofs.reductions import Reduction
from synkhronos._transport.communicators.communicator import Join


def in_host(values: Sequence[object] | None) -> list[np.ndarray] | None:
    """Results for the user: arrays of numpy that can be written to."""
    if values is None:
        return None
    return [v if isinstance(v, np.ndarray) else np.array(v) for v in values]


@dataclass(frozen=True)
class Collective(Command):
    """The base of commands on shared variables."""

    variables: tuple[int, ...]
    # values of them that the user has set in the master; the members take these first
    new: NewValues | None = field(default=None, kw_only=True)

    def run(self, member: Member) -> object:
        """Take the user's new values, then act."""
        if self.new is not None:
            member.take_new(self.new)
        return self.act(member)

    def act(self, member: Member) -> object:
        """Move or combine the values; returns the member's outcome."""
        raise NotImplementedError

    def entries(self, member: Member) -> list[Entry]:
        """The variables in this member."""
        return [member.variables[n] for n in self.variables]

    def arrays(self, member: Member) -> list[Any]:
        """Their values, in the form in which the communicator moves them."""
        return [member.array(e) for e in self.entries(member)]

    def change(self, member: Member, values: Iterable[object], differs: bool) -> None:
        """Set the variables; `differs`: the values of the members are different."""
        for entry, value in zip(self.entries(member), values, strict=True):
            member.changes.set(entry, value)
        self.mark(member, differs)

    def as_held(self, member: Member, values: Iterable[np.ndarray]) -> list[np.ndarray]:
        """Reduced values in the variables' own dtypes; averages of integers are rounded."""
        dtypes = [a.dtype for a in self.arrays(member)]
        return [rounded(v, d) for v, d in zip(values, dtypes, strict=True)]

    def mark(self, member: Member, differs: bool) -> None:
        """Record whether the members hold different values now."""
        for entry in self.entries(member):
            member.changes.mark(entry, differs)


@dataclass(frozen=True)
class Broadcast(Collective):
    """The master's values everywhere."""

    def act(self, member: Member) -> None:
        """Receive the values; the master first sets those of `master_input`."""
        if member.master_input is not None:
            self.change(member, [np.array(v) for v in member.master_input], differs=False)
        member.receive_master_values([e for e in self.entries(member) if is_array(e)])
        self.mark(member, differs=False)


@dataclass(frozen=True)
class Scatter(Collective):
    """Rows of the master's values, divided."""

    # for each variable, the first row of each member's part, and the end
    edges: tuple[tuple[int, ...], ...]

    def act(self, member: Member) -> None:
        """Receive this member's rows; values of one length move together."""
        values, parts = member.master_input, dict[int, np.ndarray]()
        for edges in dict.fromkeys(self.edges):
            chosen = [i for i, other in enumerate(self.edges) if other == edges]
            given = None if values is None else [values[i] for i in chosen]
            found = member.communicator.scatter(given, member.master, edges)
            parts.update(zip(chosen, found, strict=True))
        self.change(member, [parts[i] for i in range(len(parts))], differs=True)


@dataclass(frozen=True)
class Gather(Collective):
    """Everybody's values at the master."""

    join: Join

    def act(self, member: Member) -> list[np.ndarray] | None:
        """Contribute."""
        comm = member.communicator
        found = comm.gather(self.arrays(member), member.master, self.join)
        return in_host(found) if member.rank == member.master else None


@dataclass(frozen=True)
class AllGather(Collective):
    """Everybody's values, joined, everywhere."""

    def act(self, member: Member) -> None:
        """Contribute and receive."""
        joined = member.communicator.all_gather(self.arrays(member))
        self.change(member, joined, differs=False)


@dataclass(frozen=True)
class Reduce(Collective):
    """Reduced values at the master."""

    op: Reduction
    weights: tuple[float, ...] | None
    in_place: bool

    def act(self, member: Member) -> list[np.ndarray] | None:
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

    def act(self, member: Member) -> None:
        """Reduce this member's chunk for all; on GPUs, into fresh arrays."""
        entries = self.entries(member)
        if member.communicator.on_gpus:
            given = self.arrays(member)  # an undo needs the old ones
            values = [np.array(v, order="C") if isinstance(v, np.ndarray) else v for v in given]
            member.communicator.all_reduce(values, self.op, self.weights)
            self.change(member, values, differs=False)
            return
        arrays = [member.changes.adopt(e) for e in entries]

        def starting() -> None:
            member.changes.in_place = entries

        with member.changes.interrupts:  # Ctrl-C waits until all are here
            comm = member.communicator
            comm.all_reduce(arrays, self.op, self.weights, starting=starting)
            member.changes.in_place = ()
        self.mark(member, differs=False)


@dataclass(frozen=True)
class ReduceScatter(Collective):
    """Reduced values, divided by rows: each member's variables become its rows of them."""

    op: Reduction
    edges: tuple[int, ...]
    weights: tuple[float, ...] | None = None

    def act(self, member: Member) -> None:
        """Reduce this member's rows."""
        comm = member.communicator
        found = comm.reduce_scatter(self.arrays(member), self.op, self.edges, self.weights)
        self.change(member, self.as_held(member, found), differs=True)


@dataclass(frozen=True)
class Permute(Collective):
    """Each member gets the values of another one."""

    order: tuple[int, ...]  # for each rank, the rank whose values it gets

    def act(self, member: Member) -> None:
        """Send to the member that asks for this one's values, and receive; all take turns."""
        comm, own = member.communicator, self.arrays(member)
        got: list[Any] | None = None
        for rank, source in enumerate(self.order):
            if rank == source:
                continue
            given = own if comm.rank == source else None
            found = comm.broadcast(given, source, (min(rank, source), max(rank, source)))
            got = found if comm.rank == rank else got
        if got is not None:
            self.change(member, got, differs=True)
        self.mark(member, differs=True)


@dataclass(frozen=True)
class SetValue(Collective):
    """New values in one member."""

    rank: int

    def act(self, member: Member) -> None:
        """The one member receives."""
        pair = tuple(sorted({member.master, self.rank}))
        found = member.communicator.broadcast(member.master_input, member.master, pair)
        if member.rank == self.rank and found is not None:
            self.change(member, [np.array(v) for v in found], differs=True)
        self.mark(member, differs=True)


@dataclass(frozen=True)
class GetValue(Collective):
    """The values of one member."""

    rank: int

    def act(self, member: Member) -> list[np.ndarray] | None:
        """The one member sends."""
        pair = tuple(sorted({member.master, self.rank}))
        found = member.communicator.broadcast(self.arrays(member), self.rank, pair)
        if member.rank != member.master or found is None:
            return None
        return [np.array(a) for a in found]


@dataclass(frozen=True)
class Shapes(Collective):
    """The shapes of the values in each member."""

    def act(self, member: Member) -> tuple[tuple[int, ...], ...]:
        """This member's."""
        return tuple([a.shape for a in self.arrays(member)])

    def answer(
        self, member: Member, own: object, reports: dict[int, object]
    ) -> list[list[tuple[int, ...]]]:
        """For each variable, its shape in each rank."""
        by_rank = [own if r == member.master else reports[r] for r in range(member.size)]
        return [list(column) for column in zip(*by_rank, strict=True)]
