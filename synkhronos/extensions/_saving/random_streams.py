"""The states of random generators, in every member, as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from synkhronos._engine.commands.collectives import Collective
from synkhronos._engine.group import Group
from synkhronos._engine.member import Member
from synkhronos._engine.shipping import share_variables
from synkhronos._engine.variables import new_values, stream
from synkhronos._errors import InputError

_DTYPES = ("uint32", "uint64")  # of what states have
_POOL = 1 << 16  # words of a seed (numpy's default is 4); a larger number is an attack


@dataclass(frozen=True)
class FetchStates(Collective):
    """The state of each generator in each member."""

    @property
    def pure(self) -> bool:  # type: ignore[override]
        """Unless it carries new values."""
        return self.new is None

    def act(self, member: Member) -> tuple[str, ...]:
        """This member's."""
        return tuple([describe(e.storage[0]) for e in self.entries(member)])

    def answer(self, member: Member, own: Any, reports: dict[int, Any]) -> list[tuple[str, ...]]:
        """By rank."""
        return [own if r == member.master else reports[r] for r in range(member.size)]


@dataclass(frozen=True)
class SetStates(Collective):
    """Give each member's generators their states."""

    # one row for each rank; or only the master's row, from which the other streams follow
    states: tuple[tuple[str, ...], ...]

    def act(self, member: Member) -> None:
        """Set this member's."""
        own = len(self.states) == member.size
        row = self.states[member.rank if own else 0]
        for entry, text in zip(self.entries(member), row, strict=True):
            made = rebuild(text)
            member.changes.set(entry, made if own else stream(made, member.rank, member.master))
            member.changes.mark(entry, differs=False)


def fetch_states(group: Group | None, variables: Sequence[Any]) -> list[tuple[str, ...]]:
    """By rank, the states of shared generators; without a group there is one rank.

    Notes
    -----
    Cost: one round.
    """
    if group is None or not variables:
        return [tuple([describe(v.get_value(borrow=True)) for v in variables])]
    with group.runner.reserved("save"):
        known = share_variables(group, variables)
        entries = [known[v] for v in variables]
        command = FetchStates(tuple([e.number for e in entries]), new=new_values(entries))
        found: list[tuple[str, ...]] = group.runner.run(command, "save")
    return found


def set_states(
    group: Group | None, variables: Sequence[Any], states: Sequence[Sequence[str]]
) -> None:
    """Set shared generators from one row for each rank, or from only the master's row.

    Notes
    -----
    Cost: one round.
    """
    if not variables:
        return
    if group is None:
        for variable, text in zip(variables, states[0], strict=True):
            variable.set_value(rebuild(text), borrow=True)
        return
    with group.runner.reserved("restore"):
        known = share_variables(group, variables)
        numbers = tuple([known[v].number for v in variables])
        command = SetStates(numbers, tuple([tuple(row) for row in states]))
        group.runner.run(command, "restore")


def describe(generator: np.random.Generator) -> str:
    """The complete state of a generator, as JSON.

    >>> draws = np.random.default_rng(5)
    >>> _ = draws.normal(size=3)
    >>> rebuild(describe(draws)).normal() == draws.normal()
    True
    """
    bits = generator.bit_generator
    name = type(bits).__name__
    if getattr(np.random, name, None) is not type(bits):
        raise InputError(f"the state of a {type(bits)} cannot be saved: use one of numpy")
    found: dict[str, Any] = {"kind": name, "state": bits.state}
    seeds = bits.seed_seq
    if isinstance(seeds, np.random.SeedSequence):  # what the generator's `spawn` goes on from
        found["seeds"] = seeds.state
    return json.dumps(found, default=_plain)


def rebuild(text: str) -> np.random.Generator:
    """Make the generator that a description describes; raises for any other text."""
    found = json.loads(text, object_hook=_array)
    kind = getattr(np.random, found["kind"])
    if not issubclass(kind, np.random.BitGenerator):
        raise ValueError(f"{found['kind']} is not a bit generator of numpy")
    bits = kind(_seeds(found.get("seeds")))
    bits.state = found["state"]
    return np.random.Generator(bits)


def _seeds(state: dict[str, Any] | None) -> np.random.SeedSequence:
    if state is None:
        return np.random.SeedSequence(0)
    if state["pool_size"] > _POOL:
        raise ValueError(f"a seed's pool of {state['pool_size']} words")
    return np.random.SeedSequence(**state)


def _plain(value: Any) -> object:
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": value.dtype.name}
    return value.item()


def _array(found: dict[str, object]) -> object:
    if found.keys() == {"array", "dtype"}:
        if found["dtype"] not in _DTYPES:
            raise ValueError(f"{found['dtype']} in the state of a generator")
        return np.array(found["array"], found["dtype"])
    return found
