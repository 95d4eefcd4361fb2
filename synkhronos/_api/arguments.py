"""Arguments of a call of a function: bound to its inputs, checked, and divided."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pytensor.tensor.type import TensorType

from synkhronos._api.auto_slices import Temporaries
from synkhronos._api.data import Data
from synkhronos._api.scattered_data import ScatteredData
from synkhronos._api.unusable import aligned, is_masked, why_unusable
from synkhronos._checks import check_integer, shown
from synkhronos._engine.commands.call import portable
from synkhronos._engine.function_plan import Plan
from synkhronos._engine.group import Group
from synkhronos._engine.replicas import is_dense
from synkhronos._errors import BatchError, BatchWarning, InputError, InputTypeError
from synkhronos._plan.rows import Selection, Span, edges, per_member, select, where
from synkhronos._warnings import warn


class Arguments:
    """Reads the arguments of calls of one function; wrong ones raise before anything is sent."""

    def __init__(self, group: Group, plan: Plan, what: str) -> None:
        self._group = group
        self._plan = plan
        self._what = what
        self._temporaries: Temporaries | None = None
        # the inputs as the recipe has them: the scattered first
        self.order = sorted(range(len(plan.scattered)), key=lambda i: not plan.scattered[i])

    def index(self, name: str) -> int:
        """Which input has this name."""
        names = self._plan.names
        if name not in names:
            known = ", ".join(n for n in names if n)
            hint = ". To take some of the rows, pass batch=" if name.startswith("batch") else ""
            raise InputTypeError(f"{self._what} has no input {name!r}; it has: {known}{hint}")
        return names.index(name)

    def bind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[Any]:
        """The value of each input, checked, and of the input's dtype."""
        inputs = self._plan.inputs
        if len(args) > len(inputs):
            raise InputTypeError(f"{self._what} takes {len(inputs)} inputs, found {len(args)}")
        values: list[Any] = list(args) + [None] * (len(inputs) - len(args))
        given = [i < len(args) for i in range(len(inputs))]
        for name, value in kwargs.items():
            i = self.index(name)
            if given[i]:
                raise InputTypeError(f"{self._what}: input {name!r} is given twice")
            values[i], given[i] = value, True
        for i, option in enumerate(self._plan.options):
            if option.implicit and given[i]:
                raise InputTypeError(
                    f"{self._what}: input {self._label(i)} is implicit: its value is that of "
                    "In(..., value=). Set that variable, or leave value= out"
                )
            if not given[i]:
                if option.value is None:
                    raise InputTypeError(f"{self._what}: input {self._label(i)} is missing")
                values[i] = _default(option.value)
        return [self._checked(i, value) for i, value in enumerate(values)]

    def _label(self, index: int) -> str:
        return repr(self._plan.names[index]) if self._plan.names[index] else f"number {index}"

    def _checked(self, index: int, value: object) -> object:
        kind = self._plan.types[index]
        if isinstance(value, Data):
            if value.group is not self._group:
                other = "another" if value.group.alive else "a closed"
                raise InputError(
                    f"{self._what}: input {self._label(index)} is Data of {other} group: "
                    "synk.data(it) makes a copy in this one"
                )
            if value.dtype != np.dtype(kind.dtype) or value.ndim != kind.ndim:
                raise InputTypeError(
                    f"{self._what}: input {self._label(index)} {_kind(kind)}, found "
                    f"{value!r}: {_why(kind, value)}"
                )
            first = int(self._plan.scattered[index])  # `select` knows how many rows are used
            self._check_shape(index, value, value.shape[first:], first)
            return value
        dense = is_dense(kind)
        if dense and value is None:
            raise InputTypeError(f"{self._what}: input {self._label(index)} is None: give a value")
        option = self._plan.options[index]
        if is_masked(value):
            raise InputTypeError(
                f"{self._what}: input {self._label(index)}, found {shown(value)}: "
                f"{why_unusable(value)}"
            )
        if dense:
            value = aligned(value)
        try:
            filtered = kind.filter(
                value if option.strict or not dense else portable(value),
                strict=option.strict,
                allow_downcast=option.allow_downcast,
            )
        except (TypeError, ValueError, AttributeError, OverflowError, NotImplementedError) as exc:
            allow = "give the function allow_input_downcast=True"
            if not self._plan.bare[index]:
                allow = "allow the cast, In(..., allow_downcast=True)"
            why = _why(kind, value, exc, allow) if dense else str(exc)
            if dense and option.strict and not why_unusable(value):
                why = f"In(..., strict=True) takes only an array of numpy of this dtype. {why}"
            raise InputTypeError(
                f"{self._what}: input {self._label(index)} {_kind(kind) if dense else f'is {kind}'}"
                f", found {shown(value)}: {why}"
            ) from None
        if not dense:
            return filtered
        # strided or read-only arrays would make numba compile the function anew
        return np.require(filtered, requirements=["C", "W"])

    def _check_shape(self, index: int, value: Data, shape: Sequence[int], first: int) -> None:
        """Raise unless a shape, from axis `first` on, has the lengths that the input's type fixes.

        PyTensor compiles with these lengths, and checks them in no call.
        """
        kind = self._plan.types[index]
        for axis, length in enumerate(shape, first):
            fixed = kind.shape[axis]
            if fixed is not None and fixed != length:
                raise InputTypeError(
                    f"{self._what}: input {self._label(index)} has length {fixed} along axis "
                    f"{axis} by its type, {kind}; found {length}, of {value!r}: make the variable "
                    "with None there, for any length"
                )

    def select(self, given: list[Any], batch: object) -> tuple[dict[int, Selection], int | None]:
        """Which rows of each scattered input, and how many."""
        scattered = [i for i, s in enumerate(self._plan.scattered) if s]
        if not scattered:
            if batch is not None:
                raise InputError(f"{self._what} has no scattered inputs: batch= selects nothing")
            return {}, None
        mini = [i for i in scattered if isinstance(given[i], Data) and given[i].minibatch]
        lengths = {i: len(given[i]) for i in scattered if i not in mini}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{self._label(i)}: {n}" for i, n in lengths.items())
            empty = [i for i, n in lengths.items() if isinstance(given[i], Data) and not n]
            raise InputError(
                f"{self._what}: scattered inputs differ in length ({found}): "
                + (
                    f"give {', '.join(map(self._label, empty))} a value, by set_value"
                    if empty
                    else "name in bcast_inputs what every member needs whole"
                )
            )
        length = next(iter(lengths.values()), None)
        if batch is None and length is None:
            length = min(len(given[i]) for i in mini)
        selection = select(batch, length)
        if batch is not None and not len(selection):
            asked, there = reprlib.repr(batch), "the" if length is None else f"the {length}"
            warn(
                f"{self._what}: batch={asked} selects none of {there} rows: means are nan",
                BatchWarning,
            )
        rows = {i: selection for i in lengths}
        for i in mini:
            rows[i] = self._of_minibatch(i, given[i], selection, batch)
        for i in scattered:
            if isinstance(given[i], Data):
                self._check_shape(i, given[i], (len(selection),), 0)
        return rows, len(selection)

    def _of_minibatch(self, index: int, value: Data, rows: Selection, batch: object) -> Selection:
        """The rows of minibatch Data, which has only those of the batch, in the batch's order.

        A list goes by position. A slice is shifted, so that its lowest row is the first here: it
        may have a step, and the Data what lies between.
        """
        needed = len(rows)
        found: Selection = Span(0, needed)
        if isinstance(batch, slice):
            low = rows.lowest()
            needed, found = rows.highest() - low + 1, rows.shifted(low)
        if len(value) < needed or (batch is None and len(value) > needed):
            raise BatchError(
                f"{self._what}: minibatch input {self._label(index)} has {len(value)} rows, and "
                f"the batch needs {needed}"
            )
        return found

    def borders(
        self, rows: int, given: list[Any], selection: dict[int, Selection]
    ) -> tuple[int, ...]:
        """The borders of the members' parts: member r has rows borders[r] to borders[r + 1]."""
        size = self._group.size
        for i, picked in selection.items():
            if isinstance(given[i], ScatteredData):
                return where(picked, edges(len(given[i]), size))
        return edges(rows, size)

    def batch_s(self, batch_s: object) -> tuple[object, ...] | None:
        """The rows of each member's sliceable shared variables."""
        if batch_s is None:
            return None
        shareds = self._plan.recipe.sliceables
        if not shareds:
            raise InputError(f"{self._what} has no sliceable_shareds: batch_s selects nothing")
        found = per_member(batch_s, self._group.size)
        entries = [self._group.member.variables.find(s) for s in shareds]
        for rank, wanted in enumerate(found):
            alike = all(e is None or not e.differs for e in entries)
            if rank == self._group.rank or alike:
                select(wanted, len(shareds[0].container.storage[0]), "batch_s")
        return tuple([_copied(b) for b in found])

    def slices(
        self, num_slices: int | str, given: list[object], rows: int | None, subset: tuple[int, ...]
    ) -> int:
        """The number of slices of each member's part."""
        whole = self._plan.undivided(subset)
        if num_slices == "auto":
            if whole:
                return 1
            per_rank = None if rows is None else -(-rows // self._group.size)
            if self._temporaries is None:
                self._temporaries = Temporaries(self._plan.recipe)
            return self._temporaries.fewest_slices([_here(given[i]) for i in self.order], per_rank)
        if type(num_slices) is not int or num_slices < 1:  # spares calls the time of the check
            num_slices = check_integer("num_slices", num_slices, 1, rest=', or "auto"')
        if num_slices > 1 and whole:
            raise InputError(
                f"{self._what}: num_slices={num_slices}: no proof says how slices make {whole}. "
                "Pass num_slices=1"
            )
        return num_slices


def _kind(kind: TensorType) -> str:
    return f"is {kind.dtype} with {kind.ndim} dimension{'s' * (kind.ndim != 1)}"


def _why(kind: TensorType, value: object, exc: Exception | None = None, allow: str = "") -> str:
    """The fault of an argument of this type, and its cure."""
    unusable = why_unusable(value)
    if unusable:
        return unusable
    try:
        found = value if isinstance(value, Data) else np.asarray(value)
    except ValueError:
        return str(exc)  # a ragged list
    if found.ndim != kind.ndim:
        return "give an array of as many dimensions, such as by reshape"
    if found.dtype != np.dtype(kind.dtype):
        made = f'synk.data(array, dtype="{kind.dtype}", force_cast=True)'
        if isinstance(value, Data):
            return f"make it by {made}"
        array = "value" if isinstance(value, np.ndarray) else "np.asarray(value)"
        return f'cast it, {array}.astype("{kind.dtype}"); make Data of it once, {made}; or {allow}'
    return str(exc)


def _default(value: object) -> object:
    """An input's default now: In takes values, shared variables and their containers."""
    container = getattr(value, "container", value)
    return getattr(container, "storage", [value])[0]


def _copied(rows: object) -> object:
    """The rows of one member, of a type that each member knows, and safe from later changes."""
    plain = rows is None or isinstance(rows, int | np.integer | slice)
    return rows if plain else np.array(rows)


def _here(value: object) -> object:
    """The rows that this machine has."""
    return value.data if isinstance(value, Data) else value
