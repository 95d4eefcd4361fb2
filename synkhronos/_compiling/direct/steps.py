"""The steps of a function: each computes numbers for the elements of an array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from synkhronos._compiling.direct.arrays import Shape, View


@dataclass(eq=False)
class Step:
    """A computation for each element of a space.

    Attributes
    ----------
    space : tuple of int
        The lengths of the loops.
    reads : list of View
        The operands, with the axes of the space.
    """

    space: Shape
    reads: list[View]

    @property
    def writes(self) -> list[View]:
        raise NotImplementedError


@dataclass(eq=False)
class Map(Step):
    """An operation on numbers, for each element."""

    op: Any
    into: list[View]

    @property
    def writes(self) -> list[View]:
        return self.into


@dataclass(eq=False)
class Gather(Step):
    """Elements of a table.

    Attributes
    ----------
    table : View
        Its axes have an index each, or are those of the space in `rest`.
    placed : tuple of int or None
        For each axis of the table, the number of the index; None: the next axis of `rest`.
    rest : tuple of int
        Axes of the space that other axes of the table have.
    """

    table: View
    placed: tuple[int | None, ...]
    rest: tuple[int, ...]
    into: View

    @property
    def writes(self) -> list[View]:
        return [self.into]


@dataclass(eq=False)
class Scatter(Step):
    """Numbers that are added to elements of a table, or set; the last operand."""

    table: View
    placed: tuple[int | None, ...]
    rest: tuple[int, ...]
    adds: bool

    @property
    def writes(self) -> list[View]:
        return [self.table]


@dataclass(eq=False)
class Reduce(Step):
    """A reduction; the result has strides of 0 along the axes that it has no more.

    Attributes
    ----------
    op : ScalarOp
    within : str
        The dtype that numbers are combined in.
    """

    op: Any
    within: str
    into: View
    reduced: tuple[int, ...]

    @property
    def writes(self) -> list[View]:
        return [self.into]


@dataclass(eq=False)
class Accumulate(Step):
    """Sums, or products, of all elements up to one along an axis."""

    op: Any
    axis: int
    into: View

    @property
    def writes(self) -> list[View]:
        return [self.into]


@dataclass(eq=False)
class Check(Step):
    """Conditions that must hold."""

    @property
    def writes(self) -> list[View]:
        return []


@dataclass(eq=False)
class Whole(Step):
    """An operation on whole arrays, which shares no loop.

    Attributes
    ----------
    write : callable
        Appends its instructions: of `code.Code`, the operands and the results.
    into : list of View
        The results, and memory that it needs.
    batch : tuple of int
        The first axes of all operands and results, for each of whose elements it is done.
    """

    write: Callable[..., Any]
    into: list[View]
    batch: Shape

    @property
    def writes(self) -> list[View]:
        return self.into
