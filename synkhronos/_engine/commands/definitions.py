"""Commands that send functions and shared variables to the members, or drop them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._engine.commands.base import Command
from synkhronos._engine.member import Member
from synkhronos._engine.replicas import Replica
from synkhronos._engine.variables import build, stream
from synkhronos._errors import InputError
from synkhronos._transport import serialization


@dataclass(frozen=True)
class Define(Command):
    """Send shared variables to all members; the values of arrays follow by broadcast."""

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
        member.receive_master_values([member.variables[n] for n in self.arrays], undo=False)


@dataclass(frozen=True)
class Replicate(Command):
    """Send functions: each member makes its replicas, and compiles them at their first call."""

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
            member.installed.forget(number)
            member.measured.clocks.pop(number, None)
            member.on_node.scattered_rows.pop(number, None)
        member.forget(self.variables)


def _no_reference(pid: object) -> object:
    raise InputError(f"a definition refers to shared variable {pid}")


def _finder(member: Member) -> Any:
    return lambda pid: member.variables[pid].variable
