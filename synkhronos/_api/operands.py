"""The variables of a collective and the values for them, as the user gives them, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._api.data import Data, as_literal
from synkhronos._api.unusable import aligned, why_unusable
from synkhronos._checks import shown
from synkhronos._compiling.graph_types import tensor_type
from synkhronos._engine.commands import collectives as commands
from synkhronos._engine.group import Group, current
from synkhronos._engine.shipping import distribute_in, share_variables
from synkhronos._engine.variables import Entry, NewValues, is_array, new_values
from synkhronos._errors import InputError, InputTypeError
from synkhronos._plan.rows import Picks, Selection
from synkhronos._proofs.reductions import NAMES, Reduction, check_adds, parse

Variables = SharedVariable | str | Sequence[SharedVariable | str]

_REPLACING = ("scatter", "set_value")  # members lose the values that they hold


def is_single(shared_vars: Variables) -> bool:
    """Whether the user has given one variable, and not a list."""
    return isinstance(shared_vars, SharedVariable | str)


@dataclass
class Operands:
    """The variables of a collective, known to all members."""

    group: Group
    what: str
    entries: list[Entry]
    single: bool  # the user has passed one variable, and not a list
    # values that the user has set in the master; they travel with the command
    new: NewValues | None

    @property
    def numbers(self) -> tuple[int, ...]:
        """As commands name the variables."""
        return tuple([e.number for e in self.entries])

    def reduction(self, op: str) -> Reduction:
        """The reduction that a user has named, checked for each variable."""
        kind = reduction(op, self.what)
        if kind is Reduction.SUM:
            for entry in self.entries:
                variable: Any = entry.variable
                if variable.type.dtype == "bool":
                    check_adds(kind, "bool", f"{self.what}: {entry.label}")
        return kind

    def run(
        self, command: type[commands.Collective], *args: object, master_input: object = None
    ) -> Any:
        """Run a collective of this kind."""
        return self.group.runner.run(
            command(self.numbers, *args, new=self.new), self.what, master_input=master_input
        )


def reserved(what: str, timeout: float | None) -> AbstractContextManager[Any]:
    """Reserve the runner of the current group, for a collective of this name."""
    called = f"synk.{what}"
    return current(called).runner.reserved(called, timeout)


def operands(shared_vars: Variables, what: str, arrays: bool = True) -> Operands:
    """The variables asked for; new ones are shipped. `arrays`: all values must be arrays."""
    group = current(f"synk.{what}")
    single = is_single(shared_vars)
    given: Any = shared_vars
    if not single and not isinstance(given, list | tuple):
        raise InputTypeError(
            f"{what}: {shown(given)} is not a shared variable, a name, or a list of them"
        )
    asked = [given] if single else list(given)
    if any(not (f.shipped or f.refused) for f in group.inventory.functions.values()):
        distribute_in(group, ())
    variables = [_variable(group, v, what) for v in asked]
    if len({v.container for v in variables}) < len(variables):
        raise InputError(f"{what}: a variable is listed twice")
    known = group.member.variables
    if any([known.find(v) is None for v in variables]):
        share_variables(group, variables)
    entries = [known.of(v) for v in variables]
    wrong = [e.label for e in entries if not is_array(e)]
    if arrays and wrong:
        raise InputTypeError(
            f"{what}: the values of {wrong} are not arrays; only broadcast takes them"
        )
    # broadcast sends all values, whether they are new or not
    replaces = what in _REPLACING
    new = None if what == "broadcast" else new_values(entries, lambda entry: replaces)
    return Operands(group, what, entries, single, new)


def _variable(group: Group, asked: object, what: str) -> SharedVariable:
    if isinstance(asked, str):
        return group.member.variables.named(asked).variable
    if isinstance(asked, SharedVariable):
        return asked
    raise InputTypeError(f"{what}: {shown(asked)} is not a shared variable and not the name of one")


def check_lengths(entries: Sequence[Entry], what: str, lengths: set[int] | None) -> None:
    """A variable whose type fixes its length cannot take another length."""
    for entry in entries:
        kind = tensor_type(entry.variable)
        if kind.ndim and kind.shape[0] is not None and lengths != {kind.shape[0]}:
            raise InputError(
                f"{what}: the type of {entry.label} fixes its length at {kind.shape[0]}, and "
                "members would get another length: make it without a shape"
            )


def values_of(
    found: Operands, values: object, own: bool = False, rows: bool = False
) -> list[np.ndarray]:
    """One array for each variable, of its dtype and shape; `own`: None is the master's own value.

    `rows`: members get rows of it, so it may have another length than the type fixes.
    """
    what, n = found.what, len(found.entries)
    if found.single or (n == 1 and not isinstance(values, list | tuple)):
        values = [values]
    if not isinstance(values, list | tuple):
        raise InputTypeError(f"{what}: give a list with a value for each of the variables")
    if len(values) != n:
        raise InputError(f"{what}: {n} variables and {len(values)} values")
    return [
        _value(e, e.storage[0] if own and v is None else v, what, rows)
        for e, v in zip(found.entries, values, strict=True)
    ]


def _value(entry: Entry, value: object, what: str, rows: bool) -> np.ndarray:
    kind = tensor_type(entry.variable)
    if rows and kind.ndim:
        kind = kind.clone(shape=(None, *kind.shape[1:]))
    if value is None:
        raise InputTypeError(
            f"{what}: the value of {entry.label} is None: give an array. To give all members the "
            f"master's own value, synk.broadcast({entry.label})"
        )
    try:
        given = value.readable if isinstance(value, Data) else as_literal(value, kind.numpy_dtype)
        found = kind.filter(aligned(given), allow_downcast=None)
    except (TypeError, ValueError, AttributeError) as exc:
        raise InputTypeError(
            f"{what}: {entry.label} is {kind}, found {shown(value)}: {why_unusable(value) or exc}"
        ) from None
    return np.ascontiguousarray(found) if np.ndim(found) else np.asarray(found)


def rows_of(array: np.ndarray, rows: Selection) -> np.ndarray:
    """The selected rows of an array."""
    if isinstance(rows, Picks):
        return array[rows.rows]
    return array[rows.start : rows.stop]


def reduction(op: str, what: str) -> Reduction:
    """The reduction that a user has named."""
    found = NAMES.get(op) if isinstance(op, str) else None
    if found is None:
        found = parse(op, f"{what}: reduction")
    if found is None or found is Reduction.GATHER:
        raise InputError(f"{what}: op={shown(op)} combines nothing; use avg, sum, prod, min or max")
    return found


def as_weights(
    weights: Sequence[float] | None, op: Reduction, group: Group
) -> tuple[float, ...] | None:
    """A user's weights, checked: one for each rank."""
    size = group.size
    if weights is None:
        return None
    if op is not Reduction.AVG:
        raise InputError(f"weights are for averages; op={str(op)!r} takes none")
    try:
        found = tuple(float(w) for w in weights)
    except (TypeError, ValueError):
        raise InputTypeError(
            f"weights={shown(weights)} is not a list of numbers: give one for each of the {size} "
            "ranks"
        ) from None
    if len(found) != size or min(found) < 0 or not 0 < sum(found) < math.inf:
        raise InputError(
            f"weights={list(weights)}: give one for each of the {size} ranks, none negative and "
            "not all 0"
        )
    return found
