"""The base of the commands that install an update, and of what each member then keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._engine.commands.base import Command
from synkhronos._engine.commands.clocks import Clocks
from synkhronos._engine.member import Member
from synkhronos._engine.variables import Entry
from synkhronos._host.arena import ArrayRef
from synkhronos._transport import serialization


class MemberState:
    """The base of what a member keeps of a training function: its update, and what that writes."""

    leaves: list[np.ndarray]  # the scalars of the update rule, which the master sets before a step

    @property
    def joined(self) -> Sequence[tuple[Entry, np.ndarray | None]]:
        """The variables that all members have in common, and their array on this node.

        None in place of the array: each member has a value of its own, equal to the others'.
        """
        raise NotImplementedError

    def compile(self) -> None:
        """Compile what a step calls."""
        raise NotImplementedError


@dataclass(frozen=True)
class Install(Command):
    """The base: give each member what it keeps of a training function, and compile the update."""

    recipe: bytes  # packed; the master has its own, as the command's input
    number: int  # of the training function

    def allocate(self, recipe: Any, member: Member) -> MemberState:
        """Allocate arrays, and map those of the other members."""
        raise NotImplementedError

    def run(self, member: Member) -> None:
        """Allocate; the master compiles first, then the others load from its cache."""
        comm, mine = member.communicator, member.rank == member.master
        kept = self.allocate(self._unpacked(member), member)
        if not mine:
            comm.barrier()
        with member.compiling():
            kept.compile()
        if mine:
            comm.barrier()
        member.measured.clocks[self.number] = Clocks(member)
        member.installed.keep(self.number, kept)

    def _unpacked(self, member: Member) -> Any:
        if member.rank == member.master:
            return member.master_input
        return serialization.unpack_graph(self.recipe, lambda n: member.variables[n].variable)


def scalars(member: Member, dtypes: Sequence[np.dtype]) -> list[np.ndarray]:
    """The rule's scalars: in the memory that the master writes, or this node's copy of it."""
    comm, mine = member.communicator, member.rank == member.master
    made = [comm.empty((), dtype) for dtype in dtypes] if mine else []
    if comm.nodes == 1:
        return comm.expose(made)[member.master]
    places = comm.broadcast([np.array(member.places(made), np.int64)], member.master)
    assert places is not None
    if mine:
        return made
    return [
        member.view(ArrayRef(int(at), (), dtype.str, 0))
        for at, dtype in zip(places[0], dtypes, strict=True)
    ]
