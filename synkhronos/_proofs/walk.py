"""Goes through a graph from its inputs to its outputs, and keeps what is known of each variable.

The walk itself knows three things: the values of the scattered inputs, that a node with only Same
inputs is Same, and that a node without Rows inputs is Finished. Rules (`transfer`) say the rest,
one for each family of Ops, in the other modules of this folder. An Op without a rule is not an
error: it counts as one that mixes rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import singledispatch
from typing import Any, Literal

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import toposort
from pytensor.scalar.basic import Cast
from pytensor.tensor.basic import ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import Reshape
from pytensor.tensor.type import TensorType

from synkhronos._proofs.values import (
    Factor,
    Finished,
    Folded,
    LogSum,
    Position,
    Rows,
    Same,
    Stuck,
    Unknown,
    Value,
    is_zero,
)

Transferred = Value | Sequence[Value] | None
type Made = dict[tuple[object, Apply], Any]


class Walk:
    """The promises for the variables of one graph.

    `values` maps variables to promises. `inlined` maps a variable to another of the same value that
    depends on fewer inputs, or shows how it does: an output of an OpFromGraph to the variable
    inside, a fill of known shape to its filling, a value to what restates it. Fills with the shape
    of a Finished value, which a single member may not be able to compute, are in `unshaped`, too.
    `scalings` holds the inputs (node, index) at which a factor enters. Only there may it be
    replaced, since its variable may be a length elsewhere. `reached` holds what is computed from
    seeds that are not Same. `log_sums`, `made`: see `prove`.
    """

    def __init__(
        self, seeds: dict[Variable, Value], log_sums: bool = True, made: Made | None = None
    ) -> None:
        self.log_sums = log_sums
        self._made: Made = {} if made is None else made
        self.values: dict[Variable, Value] = {}
        self.inlined: dict[Variable, Variable] = {}
        self.unshaped: dict[Variable, Variable] = {}
        self.scalings: dict[tuple[Apply, int], None] = {}
        self.reached: set[Variable] = set()
        self.met: list[Variable] = []
        for variable, value in seeds.items():
            self._settle(variable, value, reached=not isinstance(value, Same))

    def read(self, variables: Sequence[Variable]) -> list[Value]:
        for node in list(toposort(variables, blockers=self.values.keys())):
            self._visit(node)
        return [self.value(v) for v in variables]

    def assume(self, variable: Variable, value: Value) -> None:
        """Take a promise for a variable on which nothing that was read depends."""
        self._settle(variable, value, reached=not isinstance(value, Same))

    def value(self, variable: Variable) -> Value:
        if variable not in self.values:
            self.values[variable] = _leaf(variable)
        return self.values[variable]

    def once[T](self, make: Callable[[Any, Apply], T], node: Apply) -> T:
        """The result of a function of an operation and its node, made once for all walks."""
        if (make, node) not in self._made:
            self._made[make, node] = make(node.op, node)
        found: T = self._made[make, node]
        return found

    def _visit(self, node: Apply) -> None:
        values = [self.value(v) for v in node.inputs]
        reached = any(v in self.reached for v in node.inputs)
        found = self._restated(node) if reached and self.log_sums else None
        found = found or self._across(node, values)
        each = found if isinstance(found, Sequence) else [found] * len(node.outputs)
        for output, value in zip(node.outputs, each, strict=True):
            self._settle(output, value, reached=reached)

    def _restated(self, node: Apply) -> Value | None:
        plain = self.once(restated, node)
        if plain is None or not isinstance(self.read([plain])[0], LogSum | Finished):
            return None
        self.inlined[node.outputs[0]] = plain
        return Finished()

    def _across(self, node: Apply, values: Sequence[Value]) -> Value | Sequence[Value]:
        """A node's values; one of a collective, or with collectives inside, has rules of its own.

        Such a node is computed by the members, as it stands: no factor before it is removed.
        """
        kind = over_members(node.op)
        if kind is None or (kind == "inside" and isinstance(node.op, OpFromGraph)):
            return _outcome(node, values, self)
        self.met += node.outputs
        if kind == "own":
            return Unknown(f"{name_of(node)} gives each member a value of its own")
        if kind == "equal" or all(isinstance(v, Same) for v in values):
            return Same()
        if not has_rows(values):
            return Unknown(f"{name_of(node)} contains collectives over members")
        found = _outcome(node, values, self)
        each = found if isinstance(found, Sequence) else [found] * len(node.outputs)
        return [
            Unknown(f"{name_of(node)} contains collectives") if getattr(v, "factors", ()) else v
            for v in each
        ]

    def _settle(self, variable: Variable, value: Value, *, reached: bool) -> None:
        if isinstance(value, Rows | Folded) and variable.type.shape[value.axis] is not None:
            value = Unknown(f"{name_of(variable)} has a fixed number of rows in its type")
        self.values[variable] = value
        if reached:
            self.reached.add(variable)


def seed(variable: Variable) -> Value:
    """The promise for a scattered input."""
    if not isinstance(variable.type, TensorType) or variable.type.ndim == 0:
        return Unknown(f"{name_of(variable)} has no rows")
    return Rows(axis=0)


@singledispatch
def transfer(op: Op, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    """The values of a node's outputs, from those of its inputs; None if nothing is known."""
    return None


@singledispatch
def over_members(op: Op) -> Literal["equal", "own", "inside"] | None:
    """Whether an Op is a collective over members, or contains some.

    "equal": it is one, and its outputs are the same in all members. "own": it gives each member a
    value of its own. "inside": its outputs depend on both the members' rows and collectives.
    """
    return None


@singledispatch
def restated(op: Op, node: Apply) -> Variable | None:
    """An equal value of which more can be known than of a node's output, as it is written."""
    return None


@singledispatch
def takes_folded(op: Op) -> bool:
    """Whether an Op treats the entries of any axis alike, so that Folded rows may be Rows to it."""
    return False


@singledispatch
def gives_zero(op: Op, zeros: Sequence[bool]) -> bool:
    """Whether a node's outputs are zero, from which of its inputs are."""
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
        found = _transferred(node, values, walk)
    except Stuck as stop:
        return Unknown(f"{name_of(node)}: {stop}") if has_rows(values) else Finished()
    if found is not None:
        return found
    return Unknown(f"{name_of(node)} may mix rows") if has_rows(values) else Finished()


def _transferred(node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    folds = {v.fold for v in values if isinstance(v, Folded)}
    if not folds or isinstance(node.op, Reshape | OpFromGraph):  # which read Folded themselves
        return transfer(node.op, node, values, walk)
    mixed = len(folds) > 1 or any(isinstance(v, Rows | Position) for v in values)
    if mixed or not takes_folded(node.op):
        raise Stuck("it may fold places of different rows together")
    [fold] = folds
    plain = [v.as_rows() if isinstance(v, Folded) else v for v in values]
    found = transfer(node.op, node, plain, walk)
    if isinstance(found, Sequence):
        return [Folded.of(v, fold) if isinstance(v, Rows) else v for v in found]
    return Folded.of(found, fold) if isinstance(found, Rows) else found


def has_rows(values: Iterable[Value]) -> bool:
    return any(isinstance(v, Rows | Folded) for v in values)


def name_of(subject: Variable | Apply) -> str:
    """The name of a variable or a node for warnings: the user's, if there is one."""
    if isinstance(subject, Apply):
        names = [v.name for v in subject.outputs if v.name]
        return f"{subject.op} ({names[0]})" if names else str(subject.op)
    return subject.name or str(subject)


def is_scalar(variable: Variable) -> bool:
    """Whether a tensor holds one number, of any ndim, by its type."""
    return all(length == 1 for length in variable.type.shape)


def as_factor(variable: Variable, *, per_row: bool = False) -> Factor:
    if not per_row and not is_scalar(variable):
        raise Stuck("it combines single rows with a value over all rows")
    return Factor(variable, per_row=per_row)


def constant_of(variable: Variable) -> int | None:
    """The value of an integer constant, also behind casts and added axes."""
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
    """The promise for an input that is not scattered, or for a constant."""
    if isinstance(variable.type, RandomType):
        return Unknown(f"{name_of(variable)} is a random state, each member has its own")
    if not isinstance(variable, Constant) or not isinstance(variable.type, TensorType):
        return Same()
    return Same(zero=not np.any(variable.data))
