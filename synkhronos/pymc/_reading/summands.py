"""Takes a scalar log-density apart into sums over arrays: a sum can be divided, the rest cannot.

The operations below are linear in the sums: addition, subtraction, negation, conversion between
floats, a factor or divisor that is a scalar. So each sum can be evaluated apart from the others.
PyMC gives scalar parameters axes of length 1; an array of one element is a scalar here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar import basic as ps
from pytensor.tensor import TensorVariable
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import Reshape, SpecifyShape

from synkhronos._compiling.nodes import computes, in_batches, without_axes
from synkhronos._errors import InputError
from synkhronos.pymc._reading.rows import all_of, always, without_checks

# what a term does to a sum, done to the elements of the sum
_Wrap = Callable[[TensorVariable], TensorVariable]


@dataclass(frozen=True)
class Summand:
    """A summand of a log-density."""

    value: TensorVariable  # the summand, or an array of summands
    # arrays, each of which sums up to the summand; empty if it is not a sum
    arrays: tuple[TensorVariable, ...] = ()


def summands_of(term: TensorVariable) -> list[Summand]:
    """Summands that add up to the sum of a term of a model's log-density.

    An array is one summand. Its rows may have been summed along other axes.
    """
    if not _is_scalar(term):
        return [Summand(term, tuple(_below_sums(term)))]
    linear = _linear_in_sums(term)
    found: list[Summand] = []
    stack: list[tuple[Variable, _Wrap]] = [(term, lambda x: x)]
    while stack:
        variable, wrap = stack.pop()
        summed = _summed(variable)
        if summed is not None:
            arrays = tuple(wrap(a) for a in _below_sums(summed))
            found.append(Summand(wrap(_scalar(variable)), arrays))
        elif variable in linear:
            stack += reversed(_summands(variable.owner, wrap, linear))
        else:
            found.append(Summand(wrap(_scalar(variable))))
    return found


def _is_scalar(variable: Variable) -> bool:
    shape = getattr(variable.type, "shape", (None,))
    return all(n == 1 for n in shape)


def _scalar(scalar: TensorVariable) -> TensorVariable:
    return scalar.dimshuffle() if scalar.type.ndim else scalar


def _below_sums(array: TensorVariable) -> list[TensorVariable]:
    found = [array]
    while array.owner is not None and isinstance(array.owner.op, Sum):
        array = array.owner.inputs[0]
        found.append(array)
    return found


def _summed(variable: Variable) -> TensorVariable | None:
    """The array whose elements a scalar sums; None if it is no sum."""
    node = variable.owner
    if node is None or not _is_scalar(variable):
        return None
    if isinstance(node.op, Sum):
        return None if _is_scalar(node.inputs[0]) else node.inputs[0]
    if isinstance(node.op, DimShuffle):  # a @ b is (1, n) times (n, 1), without its two axes
        node = node.inputs[0].owner
    if node is None or not isinstance(in_batches(node), Dot):
        return None
    a, b = node.inputs
    if (a.type.ndim, b.type.ndim) == (2, 2):
        a, b = a.dimshuffle(1), b.dimshuffle(0)
    return a * b if (a.type.ndim, b.type.ndim) == (1, 1) else None


def _linear_in_sums(term: TensorVariable) -> set[Variable]:
    """The scalars in the term's graph that are linear in sums."""
    found: set[Variable] = set()
    for node in toposort([term]):
        output = node.outputs[0]
        if not _is_scalar(output):
            continue
        if _summed(output) is not None or _carries(node, found):
            found.add(output)
    return found


def _carries(node: Apply, linear: set[Variable]) -> bool:
    """Whether a scalar is linear in the sums in its inputs."""
    inside = [v in linear for v in node.inputs]
    if isinstance(node.op, CheckAndRaise | DimShuffle | Sum | SpecifyShape):
        return inside[0]
    if not isinstance(node.op, Elemwise):
        return False
    match node.op.scalar_op:
        case ps.Add() | ps.Sub() | ps.Neg():
            return any(inside)
        case ps.Mul():
            return inside.count(True) == 1
        case ps.TrueDiv():
            return inside[0]
        case ps.Cast():
            return inside[0] and node.outputs[0].type.dtype.startswith("float")
    return False


def _summands(node: Apply, wrap: _Wrap, linear: set[Variable]) -> list[tuple[Variable, _Wrap]]:
    """The inputs of a node that `_carries` sums, each with what is done to it."""
    inputs = list(node.inputs)
    if isinstance(node.op, CheckAndRaise):
        return [(inputs[0], lambda x: wrap(node.op(x, *inputs[1:])))]
    if not isinstance(node.op, Elemwise):
        return [(inputs[0], wrap)]
    match node.op.scalar_op:
        case ps.Add():
            return [(v, wrap) for v in inputs]
        case ps.Sub():
            return [(inputs[0], wrap), (inputs[1], lambda x: wrap(-x))]
        case ps.Neg():
            return [(inputs[0], lambda x: wrap(-x))]
        case ps.TrueDiv():
            return [(inputs[0], lambda x: wrap(x / _scalar(inputs[1])))]
        case ps.Cast():
            return [(inputs[0], lambda x: wrap(pt.cast(x, node.outputs[0].type.dtype)))]
    [sums] = [v for v in inputs if v in linear]
    factors = [_scalar(v) for v in inputs if v is not sums]
    return [(sums, lambda x: wrap(pt.mul(x, *factors)))]


def with_exact_checks(array: TensorVariable) -> TensorVariable:
    """The array with PyMC's checks of parameters as choices, where a failure may not give -inf.

    Where a check fails, PyMC replaces what is below it by -inf. A member instead returns -inf for
    all its rows. The sum is the same for a check whose value is added to others, but not for one
    whose value is negated, or put into another function: log(exp(a) + exp(-inf)) is a.

    Raises
    ------
    InputError
        A check that raises an error instead.
    """
    checks = checks_in(array)
    for variable in checks:
        if not _gives_ninf(variable):
            raise InputError(f"it raises an error if a condition fails ({variable.owner.op})")
    return _with_choices(array, checks)


def with_exact_checks_without_rows(
    array: TensorVariable, has_rows: Callable[[Variable], bool]
) -> TensorVariable:
    """The same for checks none of whose conditions has rows; the others stay.

    So a component of a mixture is left out where one of its parameters is not possible. A member
    cannot look at a condition on the rows of others. `has_rows` is asked of arrays whose elements
    all have to be true.
    """
    chosen = set()
    for variable in filter(_gives_ninf, checks_in(array)):
        every = [c for given in variable.owner.inputs[1:] for c in all_of(given)]
        conditions = [without_checks(condition) for condition in every]
        can_fail = [c for c in conditions if not isinstance(c, Constant) and not always(c)]
        if can_fail and not any(map(has_rows, conditions)):
            chosen.add(variable)
    return _with_choices(array, chosen)


def checks_in(array: TensorVariable) -> set[Variable]:
    """The variables in a graph that are checked."""
    return {v for v in ancestors([array]) if v.owner and isinstance(v.owner.op, CheckAndRaise)}


def _gives_ninf(check: Variable) -> bool:
    op = check.owner.op
    return isinstance(op, CheckParameterValue) and op.can_be_replaced_by_ninf


def _with_choices(array: TensorVariable, checks: set[Variable]) -> TensorVariable:
    """The array with these checks as choices, but those whose value is added to others."""
    inside = checks & set(ancestors(_not_added(array)))
    if not inside:
        return array
    made: dict[Variable, Variable] = {}
    for node in toposort([array]):
        if node.outputs[0] in inside:
            value, *conditions = [made.get(v, v) for v in node.inputs]
            holds = pt.all(conditions) if len(conditions) > 1 else conditions[0]
            chosen = pt.switch(holds, value, -np.inf)
            made[node.outputs[0]] = pt.cast(chosen, value.type.dtype)
        else:
            _rebuild(node, made)
    return made.get(array, array)


def rebuilt(array: TensorVariable, made: dict[Variable, Variable]) -> TensorVariable:
    """The array with other variables in the place of some; what does not depend on them stays.

    `made` takes up what is rebuilt.
    """
    for node in toposort([array]):
        if not any(v in made for v in node.outputs):
            _rebuild(node, made)
    return made.get(array, array)


def _rebuild(node: Apply, made: dict[Variable, Variable]) -> None:
    """Apply a node's operation to what has been made of its inputs, if something has."""
    inputs = [made.get(v, v) for v in node.inputs]
    if inputs != list(node.inputs):
        again = node.clone_with_new_inputs(inputs, strict=False)
        made.update(zip(node.outputs, again.outputs, strict=True))


def _not_added(array: TensorVariable) -> list[TensorVariable]:
    """The variables that do more to their inputs than to add them and to spread them."""
    found, stack = [], [array]
    while stack:
        variable = stack.pop()
        node = variable.owner
        op = None if node is None else node.op
        if isinstance(op, CheckAndRaise | Alloc | DimShuffle | SpecifyShape | Reshape | Sum):
            stack.append(node.inputs[0])
            found += node.inputs[1:]
        elif computes(node, ps.Add | ps.Cast):
            stack += node.inputs
        elif computes(node, ps.Mul):
            others = [v for v in node.inputs if not _is_positive(v)]
            if len(others) == 1:
                stack += others
            else:
                found.append(variable)
        else:
            found.append(variable)
    return found


def _is_positive(variable: TensorVariable) -> bool:
    variable = without_axes(variable)
    return isinstance(variable, Constant) and bool(np.all(np.asarray(variable.data) > 0))
