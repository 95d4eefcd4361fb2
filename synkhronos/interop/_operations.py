"""Operations that call a function of JAX on rows and weights, and their gradient by the weights.

The function belongs to a `Model`, a value that can be pickled: each member makes the function
itself when it compiles the graph. Mode JAX alone has these operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pytensor.tensor as pt
from pytensor.gradient import disconnected_type, grad_not_implemented
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.tensor.exceptions import ShapeError

from synkhronos._compiling.late_imports import import_late
from synkhronos._errors import InputError
from synkhronos._proofs.values import Rows, Value, summed
from synkhronos._proofs.walk import Transferred, Walk, transfer

import_late("interop", "jax")


class Model(Protocol):
    """A model that computes: two equal ones compute the same."""

    def function(self, what: str) -> Callable[..., Any]:
        """The function of JAX of this name, from all inputs of the operation to one array."""
        ...


class _Call(Op):
    """Inputs: first those with rows, then the trainable weights, then other values."""

    __props__: tuple[str, ...] = ("model", "what", "rows", "weights")

    def __init__(self, model: Model, what: str, rows: int, weights: int) -> None:
        self.model, self.what, self.rows, self.weights = model, what, rows, weights

    def perform(self, node: Apply, inputs: Sequence[object], output_storage: object) -> None:
        """Refuse: the function is one of JAX."""
        raise InputError(
            f'a model of another framework ({self.what}) runs only in mode JAX: pass mode="JAX" '
            "to the function or to fit"
        )


class Called(_Call):
    """The value of the function; with rows, if an input has some.

    Parameters
    ----------
    model : Model
    what : str
        The name of the function.
    rows, weights : int
        The numbers of inputs that have rows, and of those with a gradient.
    kind : TensorType
        Of the value.
    """

    __props__ = ("model", "what", "rows", "weights", "kind")

    def __init__(self, model: Model, what: str, rows: int, weights: int, kind: Any) -> None:
        super().__init__(model, what, rows, weights)
        self.kind = kind

    def make_node(self, *inputs: Any) -> Apply:
        return Apply(self, [pt.as_tensor(v) for v in inputs], [self.kind()])

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> list[Any]:
        """Rows as in the first input; the other axes as the type says."""
        static = self.kind.shape
        first = [shapes[0][0]] if self.rows else []
        if None in static[len(first) :]:
            raise ShapeError("the model leaves an axis open")
        return [(*first, *map(pt.constant, static[len(first) :]))]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Numbers are connected to the value, but for those after the weights."""
        last = self.rows + self.weights
        return [[v.type.dtype in _REAL and i < last] for i, v in enumerate(node.inputs)]

    def pullback(
        self, inputs: Sequence[Any], outputs: Sequence[object], cotangents: Sequence[object]
    ) -> list[Variable]:
        """Call the function's derivative by the weights."""
        first, last = self.rows, self.rows + self.weights
        derivative = Pulled(self.model, self.what, self.rows, self.weights)
        found: Any = derivative(*inputs, cotangents[0], return_list=True)
        why = "only weights have a gradient in a model of another framework"
        before = [
            grad_not_implemented(self, i, v, why) if v.type.dtype in _REAL else disconnected_type()
            for i, v in enumerate(inputs[:first])
        ]
        return [*before, *found, *(disconnected_type() for _ in inputs[last:])]


class Pulled(_Call):
    """The inputs of `Called`, and the gradient by its value -> that by each weight."""

    def make_node(self, *inputs: Any) -> Apply:
        given = [pt.as_tensor(v) for v in inputs]
        by = given[self.rows : self.rows + self.weights]
        return Apply(self, given, [v.type() for v in by])

    def infer_shape(self, node: Apply, shapes: Sequence[object]) -> list[Any]:
        """Those of the weights."""
        return list(shapes[self.rows : self.rows + self.weights])


_REAL = ("float16", "bfloat16", "float32", "float64")


@transfer.register
def _called(op: Called, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    return Rows(0) if _are_rows(values[: op.rows]) else None


@transfer.register
def _pulled(op: Pulled, node: Apply, values: Sequence[Value], walk: Walk) -> Transferred:
    *_, sent = values
    if not _are_rows(values[: op.rows]) or not isinstance(sent, Rows) or sent.axis:
        return None
    return [summed(sent.factors, v.type.dtype, zero=sent.zero) for v in node.outputs]


def _are_rows(values: Sequence[Value]) -> bool:
    return all(isinstance(v, Rows) and v.axis == 0 and not v.factors for v in values)
