"""The operation that replaces the divided likelihood in a model's graph."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, grad_not_implemented
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op

from synkhronos._errors import GroupError
from synkhronos.pymc._rows import is_smooth

_numbers = itertools.count()
_evaluators: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class DividedLogp(Op):
    """theta, latents -> log-density, its gradient by theta, its gradients by latents.

    One evaluation gives value and gradient; PyTensor merges the two uses into one.

    Parameters
    ----------
    evaluator : callable
        ``evaluator(theta, latents) -> (flat, gradients)``, see `GroupLikelihood`.
    """

    __props__ = ("number",)

    def __init__(self, evaluator: Any) -> None:
        self.evaluator = evaluator
        self.number = next(_numbers)
        _evaluators[self.number] = evaluator

    def __getstate__(self) -> dict[str, Any]:
        return {"evaluator": self.evaluator}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["evaluator"])

    def make_node(self, *theta_and_latents: Any) -> Apply:
        inputs = [pt.as_tensor(v) for v in theta_and_latents]
        outputs = [pt.dscalar(), *[v.type() for v in inputs if is_smooth(v)]]
        return Apply(self, inputs, outputs)

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        for storage, value in zip(output_storage, evaluate(self.number, *inputs), strict=True):
            storage[0] = value

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> list[Any]:
        smooth = [s for s, v in zip(shapes, node.inputs, strict=True) if is_smooth(v)]
        return [(), *smooth]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """All outputs depend on the inputs: `pullback` refuses second derivatives."""
        return [[is_smooth(v)] * len(node.outputs) for v in node.inputs]

    def pullback(
        self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]
    ) -> list[Variable]:
        """Return the gradients, which the evaluation has computed."""
        if any(not isinstance(c.type, DisconnectedType) for c in cotangents[1:]):
            return [
                grad_not_implemented(self, i, v, "a divided likelihood has no second derivatives")
                for i, v in enumerate(inputs)
            ]
        return pulled_back(outputs, cotangents[0], map(is_smooth, inputs))


def pulled_back(outputs: Sequence[Any], cotangent: Any, smooth: Iterable[bool]) -> list[Variable]:
    """The gradients by the inputs of an operation: value -> itself, gradients by smooth inputs."""
    found = iter(outputs[1:])
    return [
        (cotangent * (g := next(found))).astype(g.type.dtype) if each else DisconnectedType()()
        for each in smooth
    ]


def evaluate(number: int, theta: np.ndarray, *latents: np.ndarray) -> tuple[Any, ...]:
    """Evaluate the likelihood with this number, in this process."""
    evaluator = _evaluators.get(number)
    if evaluator is None:
        raise GroupError(
            f"the divided likelihood {number} no longer exists: synk.pymc.parallel was closed "
            "before this function was called. Compile and call the function inside the `with` "
            "block, or compile it again after it"
        )
    flat, gradients = evaluator(theta, latents)
    return np.asarray(flat[0]), flat[1:], *gradients
