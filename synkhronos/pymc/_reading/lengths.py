"""Arrays that are made with given lengths: filled ones, and folded ones.

Each member has other rows, so the length of the axis with the rows becomes the number of those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor import TensorVariable
from pytensor.tensor.basic import Alloc, MakeVector
from pytensor.tensor.shape import Reshape

from synkhronos._proofs.walk import constant_of
from synkhronos.pymc._reading.facts import Lengths


def at_axis[T](each: Sequence[T], axis: int) -> tuple[T, list[T]]:
    """The part that belongs to an axis, and those of the others."""
    return each[axis], [one for i, one in enumerate(each) if i != axis]


def _allocated(node: Apply, axis: int, shapes: Mapping[Variable, Lengths]) -> int | None:
    """The row axis of the value that fills an Alloc along its row axis."""
    filling, output = node.inputs[0], node.outputs[0]
    inner = axis - len(shapes[output]) + filling.type.ndim
    return inner if inner >= 0 and filling.type.shape[inner] != 1 else None


def _folded(node: Apply, axis: int, shapes: Mapping[Variable, Lengths]) -> int | None:
    """The row axis before a Reshape: leading rows stay in front."""
    before, after = shapes[node.inputs[0]], shapes[node.outputs[0]]
    return 0 if axis == 0 and before and before[0] == after[0] else None


# By operation, the row axis of the value that it is given, from that of its result.
ROW_AXIS: dict[type, Callable[[Apply, int, Mapping[Variable, Lengths]], int | None]] = {
    Alloc: _allocated,
    Reshape: _folded,
}


def lengths_of(node: Apply) -> list[Variable]:
    """The lengths that an Alloc or Reshape is given; -1 in a Reshape stands for what is left."""
    if isinstance(node.op, Alloc):
        return list(node.inputs[1:])
    vector = node.inputs[1]
    if isinstance(vector, Constant):
        return [pt.constant(n) for n in vector.data]
    if vector.owner is not None and isinstance(vector.owner.op, MakeVector):
        return list(vector.owner.inputs)
    return [vector[i] for i in range(node.outputs[0].type.ndim)]


def stays(length: Variable) -> bool:
    """Whether a length stays what it is whatever data are set: parameters keep their shapes."""
    return not any(isinstance(v, SharedVariable) for v in ancestors([length]))


def relengthened(
    node: Apply, axis: int, inputs: Sequence[TensorVariable], shapes: Mapping[Variable, Lengths]
) -> TensorVariable:
    """An Alloc or Reshape for any number of rows, instead of the number of all rows."""
    array, shape = inputs[0], list(shapes[node.outputs[0]])
    stay = len(inputs) == 1
    folded = isinstance(node.op, Reshape)
    given = [*inputs[1:]] if stay or not folded else [inputs[1][i] for i in range(len(shape))]
    known_shape = node.outputs[0].type.shape
    lengths: list[Variable | int] = []
    for i, (length, n) in enumerate(zip(lengths_of(node), shape, strict=True)):
        number = constant_of(length)
        if i == axis:
            lengths.append(array.shape[0 if folded else axis - len(shape) + array.type.ndim])
        elif known_shape[i] is not None or (stay and number != -1):
            lengths.append(int(n))
        else:
            lengths.append(given[i] if number is None else number)
    if folded:
        return array.reshape(lengths)
    known = list(shapes[node.inputs[0]])
    others = shape[:axis] + shape[axis + 1 :]
    if stay and len(known) == len(shape) and known[:axis] + known[axis + 1 :] == others:
        return array
    return pt.alloc(array, *lengths)
