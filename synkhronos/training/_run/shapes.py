"""Shapes and dtypes of rows against those of inputs and networks, before anything compiles.

These rules hold here:

* Only what is certainly wrong is refused. Where PyTensor's inference refuses, the operation must
  also fail for zeros of these shapes. A run that would work must never be refused.
* No row is read: rows only tell their shapes and dtypes.
* The check takes at most 2 s, since it is there to save the time of compiling. Operations that come
  later are not looked at.
* A message has both shapes, and the change of the rows that makes them fit.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import toposort
from pytensor.tensor.type import TensorType

from synkhronos._errors import InputError, InputTypeError

type Shape = tuple[int, ...]

SECONDS = 2.0  # for the operations of a network; those that come later are not looked at
_FEW_AXES = 4  # of a row, whose orders are tried
_ROWS = 2  # of values that stand for any number of rows


def check_rows(
    given: Sequence[object], inputs: Sequence[Variable], what: str, casts: bool = True
) -> None:
    """Compare the rows of arrays, Data and sources with what the inputs declare.

    Parameters
    ----------
    given : sequence
        Something with ``shape`` and ``dtype`` for each input. Other values are left out.
    inputs : sequence of Variable
    what : str
        The begin of messages.
    casts : bool
        Arrays of numpy get the dtype of the input later, so that of these is not looked at.

    Raises
    ------
    InputError, InputTypeError
        The message has both shapes or both dtypes, and what to do.
    """
    for value, variable in zip(given, inputs, strict=True):
        found, kind = row_shape(value), variable.type
        if found is None or not isinstance(kind, TensorType) or not kind.ndim:
            continue
        wanted = kind.shape[1:]
        if not _fits(found, wanted):
            error = InputTypeError if len(found) != len(wanted) else InputError
            raise error(
                f"{what}: a row for {variable} is {_text(found)}, and {variable} takes "
                f"{_text(wanted)}: {_cure(found, wanted, kind.dtype)}"
            )
        dtype = getattr(value, "dtype", None)
        if dtype is None or (casts and isinstance(value, np.ndarray)):
            continue  # numpy would take None for float64
        if dtype != np.dtype(kind.dtype):
            raise InputTypeError(
                f"{what}: rows for {variable} are {dtype}, and {variable} takes {kind.dtype}: give "
                f'an array, rows[:].astype("{kind.dtype}"), or make the input {dtype}'
            )


def row_shape(value: object) -> Shape | None:
    """The shape of a row, where a value tells it."""
    shape = getattr(value, "shape", None)
    known = isinstance(shape, tuple) and len(shape) > 0 and all(isinstance(n, int) for n in shape)
    return tuple(shape[1:]) if known and shape is not None else None


def shapes_of(
    given: Sequence[object], inputs: Sequence[Variable], of: Sequence[Variable]
) -> dict[Variable, Shape]:
    """The shapes of rows by their inputs, where they are known, for some of the inputs."""
    pairs = ((v, row_shape(value)) for value, v in zip(given, inputs, strict=True) if v in of)
    return {v: shape for v, shape in pairs if shape is not None}


def check_network(outputs: Sequence[Variable], rows: Mapping[Variable, Shape], what: str) -> None:
    """Follow the shapes of rows through the operations of a network.

    Parameters
    ----------
    outputs : sequence of Variable
        Such as the loss.
    rows : mapping
        The shape of a row, for each input of which it is known.
    what : str
        The begin of messages.

    Raises
    ------
    InputError
        An operation does not take values of these shapes. The message has them, and what to do.

    Notes
    -----
    PyTensor infers the shapes, so no value is computed, but those of an operation that refuses: it
    must also fail for zeros of these shapes. Cost: about 0.1 ms for each operation, and at most
    2 s. Nothing is looked at if all inputs declare the shapes of their rows.
    """
    if all(None not in v.type.shape[1:] for v in rows):
        return
    fault = _fault(outputs, rows)
    if fault is None:
        return
    names = ", ".join(f"{v}: {_text(shape)}" for v, shape in rows.items())
    raise InputError(
        f"{what}: rows of these shapes do not go through the network ({names}): {fault}: "
        f"{_turned(outputs, rows)}"
    )


def _fits(found: Shape, wanted: Sequence[int | None]) -> bool:
    return len(found) == len(wanted) and all(
        n is None or n == m for n, m in zip(wanted, found, strict=True)
    )


def _cure(found: Shape, wanted: Sequence[int | None], dtype: str) -> str:
    """The cure: a transposition, or another network."""
    orders = itertools.permutations(range(len(found))) if len(found) <= _FEW_AXES else ()
    for order in orders:
        if _fits(tuple(found[i] for i in order), wanted):
            return _transpose(order)
    if len(found) == len(wanted) + 1 and found[-1] > 1 and dtype[0] in "iu":
        return "give labels, not a column for each class: array.argmax(axis=-1)"
    length = int(np.prod(found))
    known = [n for n in wanted if n is not None]
    left = int(np.prod(known))
    if len(known) == len(wanted) and left == length:
        return f"reshape them, array.reshape({', '.join(['-1', *map(str, known)])})"
    if len(known) == len(wanted) - 1 and left and length % left == 0:
        parts = [str(length // left if n is None else n) for n in wanted]
        return f"reshape them, array.reshape({', '.join(['-1', *parts])})"
    return "give rows of this shape, or make the network for those"


def _transpose(order: Sequence[int]) -> str:
    return f"transpose them, array.transpose(0, {', '.join(str(i + 1) for i in order)})"


def _text(shape: Sequence[int | None]) -> str:
    """A shape as people write it."""
    if not shape:
        return "a single value"
    if len(shape) == 1:
        return "a vector of any length" if shape[0] is None else f"a vector of {shape[0]}"
    return " x ".join("any" if n is None else str(n) for n in shape)


def _turned(outputs: Sequence[Variable], rows: Mapping[Variable, Shape]) -> str:
    """The cure: transpose rows of images, if they then go through the network."""
    for variable, shape in rows.items():
        for order in ((2, 0, 1), (1, 2, 0)) if len(shape) == 3 else ():
            turned = tuple(shape[i] for i in order)
            if turned != shape and _fault(outputs, {**rows, variable: turned}) is None:
                return _transpose(order)
    return "give rows of the shape for which the network was made, or make it for these"


def _fault(outputs: Sequence[Variable], rows: Mapping[Variable, Shape]) -> str | None:
    """The complaint of an operation about the shapes that follow from those of rows."""
    ended = time.monotonic() + SECONDS
    typed: dict[Variable, Variable] = {
        v: v.type.clone(shape=(v.type.shape[0], *shape))(v.name) for v, shape in rows.items()
    }
    for node in toposort(outputs, blockers=rows):
        if time.monotonic() > ended:
            return None
        given = [_with_shape(v, typed) for v in node.inputs]
        if all(new.type == old.type for new, old in zip(given, node.inputs, strict=True)):
            continue
        try:
            made = node.clone_with_new_inputs(given, strict=False)
        except Exception as exc:
            if _also_fails(node, given):
                return f"{node.op} of {', '.join(map(_described, given))} fails ({exc})"
            continue
        typed.update(zip(node.outputs, made.outputs, strict=True))
    return None


def _with_shape(variable: Variable, typed: Mapping[Variable, Variable]) -> Variable:
    """A variable whose type has the shape that is known by now."""
    if variable in typed:
        return typed[variable]
    if isinstance(variable, SharedVariable) and isinstance(variable.type, TensorType):
        shape = np.shape(variable.get_value(borrow=True))
        return variable.type.clone(shape=shape)(variable.name)
    return variable


def _described(variable: Variable) -> str:
    shape = ", ".join("any" if n is None else str(n) for n in getattr(variable.type, "shape", ()))
    name = variable.name or ("a constant" if variable.owner is None else "a value")
    return f"{name} ({shape})"


def _also_fails(node: Apply, given: Sequence[Variable]) -> bool:
    """Whether Python cannot compute an operation of zeros of these shapes."""
    kinds: list[Any] = [v.type for v in given]
    if isinstance(node.op, HasInnerGraph) or not all(isinstance(k, TensorType) for k in kinds):
        return False
    if any(None in k.shape[1:] for k in kinds):
        return False
    values = [
        v.data
        if isinstance(v, Constant)
        else np.zeros([_ROWS if n is None else n for n in v.type.shape], v.type.dtype)
        for v in given
    ]
    storage: list[list[object]] = [[None] for _ in node.outputs]
    try:
        with np.errstate(all="ignore"):
            node.op.perform(node, values, storage)
    except (ValueError, TypeError, IndexError):
        return True
    except Exception:  # Python has no code for it
        return False
    return False
