"""Walking a graph from its inputs down and keeping what is known of every variable.

The walk itself knows only three things: what the scattered inputs are, that a node all of whose
inputs are Same is Same, and that a node none of whose inputs are Rows is Finished. What else
an Op does to rows is said by its rule (`transfer`), one per family of Ops, in the neighbours of
this file. An Op without a rule is no error: it mixes rows for all we know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import toposort
from pytensor.scalar.basic import Cast
from pytensor.tensor.basic import ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType

from synkhronos._plan.inference.values import (
    Factor,
    Finished,
    Rows,
    Same,
    Stuck,
    Unknown,
    Value,
    is_zero,
)

Transferred = Value | Sequence[Value] | None


class Walk:
    """What is known of the variables of one graph.

    `values` maps variables to promises. `inlined` maps variables to others of the same value that
    depend on less, or that show how they do: the outputs of OpFromGraph nodes to what is written
    inside, fills of known shape to what they are filled with. Those of them that take the shape of
    a Finished value, which a member alone may not be able to compute, are in `unshaped` as well.
    `scalings` holds the places (node, input) where a factor enters: only there may it be replaced,
    for its variable may serve as a length elsewhere. `reached` holds what is computed from seeds
    that aren't Same.
    """

    def __init__(self, seeds: dict[Variable, Value]) -> None:
        self.values: dict[Variable, Value] = {}
        self.inlined: dict[Variable, Variable] = {}
        self.unshaped: dict[Variable, Variable] = {}
        self.scalings: dict[tuple[Apply, int], None] = {}
        self.reached: set[Variable] = set()
        for variable, value in seeds.items():
            self._settle(variable, value, reached=not isinstance(value, Same))

    def read(self, variables: Sequence[Variable]) -> list[Value]:
        for node in list(toposort(variables, blockers=self.values.keys())):
            self._visit(node)
        return [self.value(v) for v in variables]

    def value(self, variable: Variable) -> Value:
        if variable not in self.values:
            self.values[variable] = _leaf(variable)
        return self.values[variable]

    def _visit(self, node: Apply) -> None:
        values = [self.value(v) for v in node.inputs]
        reached = any(v in self.reached for v in node.inputs)
        found = _outcome(node, values, self)
        each = found if isinstance(found, Sequence) else [found] * len(node.outputs)
        for output, value in zip(node.outputs, each, strict=True):
            self._settle(output, value, reached=reached)

    def _settle(self, variable: Variable, value: Value, *, reached: bool) -> None:
        if isinstance(value, Rows) and variable.type.shape[value.axis] is not None:
            value = Unknown(f"{name_of(variable)} has a fixed number of rows in its type")
        self.values[variable] = value
        if reached:
            self.reached.add(variable)


def seed(variable: Variable) -> Value:
    """What is promised of a scattered input."""
    if not isinstance(variable.type, TensorType) or variable.type.ndim == 0:
        return Unknown(f"{name_of(variable)} has no rows")
    return Rows(axis=0)


@singledispatch
def transfer(op: Op, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    """What a node's outputs are, given what its inputs are; None if there is nothing to say."""
    return None


@singledispatch
def gives_zero(op: Op, zeros: Sequence[bool]) -> bool:
    """Whether a node's outputs are zero, given which of its inputs are."""
    return False


def _outcome(node: Apply, values: Sequence[Value], walk: Walk) -> Value | Sequence[Value]:
    if any(isinstance(v.type, RandomType) for v in node.inputs):
        return Unknown(f"{name_of(node)} draws random numbers")
    for value in values:
        if isinstance(value, Unknown):
            return value
    if all(isinstance(v, Same) for v in values):
        return Same(zero=gives_zero(node.op, [is_zero(v) for v in values]))
    try:
        found = transfer(node.op, node, values, walk)
    except Stuck as stop:
        return Unknown(f"{name_of(node)}: {stop}") if has_rows(values) else Finished()
    if found is not None:
        return found
    return Unknown(f"{name_of(node)} may mix rows") if has_rows(values) else Finished()


def has_rows(values: Iterable[Value]) -> bool:
    return any(isinstance(v, Rows) for v in values)


def name_of(subject: Variable | Apply) -> str:
    """How a warning calls a variable or a node: its name if the user gave one."""
    if isinstance(subject, Apply):
        names = [v.name for v in subject.outputs if v.name]
        return f"{subject.op} ({names[0]})" if names else str(subject.op)
    return subject.name or str(subject)


def is_scalar(variable: Variable) -> bool:
    """Whether a tensor holds one number, whatever its ndim, by its type alone."""
    return all(length == 1 for length in variable.type.shape)


def as_factor(variable: Variable, *, inverse: bool = False, per_row: bool = False) -> Factor:
    if not per_row and not is_scalar(variable):
        raise Stuck("it combines single rows with a value over all rows")
    return Factor(variable, inverse, per_row)


def constant_of(variable: Variable) -> int | None:
    """The value of a constant whole number, seen through casts and added axes."""
    while variable.owner is not None and _keeps_number(variable.owner.op):
        variable = variable.owner.inputs[0]
    if not isinstance(variable, Constant) or np.ndim(variable.data) > 0:
        return None
    number = float(variable.data)
    return int(number) if number.is_integer() else None


def _keeps_number(op: Op) -> bool:
    if isinstance(op, Elemwise):
        return isinstance(op.scalar_op, Cast)
    return isinstance(op, DimShuffle | ScalarFromTensor | TensorFromScalar)


def _leaf(variable: Variable) -> Value:
    """What is promised of an input that isn't scattered, or of a constant."""
    if isinstance(variable.type, RandomType):
        return Unknown(f"{name_of(variable)} is a random state, each member has its own")
    if not isinstance(variable, Constant) or not isinstance(variable.type, TensorType):
        return Same()
    return Same(zero=not np.any(variable.data))
