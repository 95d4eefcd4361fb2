"""The operation that replaces the divided likelihood in a model's graph."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.mode import optdb
from pytensor.gradient import DisconnectedType, grad_not_implemented
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import graph_rewriter
from pytensor.tensor import TensorVariable

from synkhronos._compiling.graph_types import Inputs
from synkhronos._errors import GroupError
from synkhronos.pymc._reading.facts import is_smooth

Shape = tuple[Variable, ...]
Storage = list[list[np.ndarray | None]]  # where an operation puts its outputs


class Evaluation(Protocol):
    """Evaluates a likelihood; see `GroupLikelihood`."""

    failure: BaseException | None  # the error that all later evaluations raise

    def __call__(
        self, theta: np.ndarray, latents: Sequence[np.ndarray], gradient: bool = True
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """[log-density, gradient by theta], and the gradients by latents."""


_numbers = itertools.count()
_evaluators: weakref.WeakValueDictionary[int, Evaluation] = weakref.WeakValueDictionary()


class DividedLogp(Op):
    """theta, latents -> log-density, its gradient by theta, its gradients by latents.

    One evaluation gives value and gradient; PyTensor merges the two uses into one. Where a compiled
    function needs the value alone, it gets the operation without gradients.
    """

    __props__ = ("number", "gradient")
    is_of_process = True  # another one has the number for another likelihood: no graph is kept

    def __init__(self, evaluator: Evaluation, gradient: bool = True) -> None:
        # ``evaluator(theta, latents, gradient) -> (flat, gradients)``, see `GroupLikelihood`
        self.evaluator = evaluator
        self.gradient = gradient
        self.number = next(_numbers)
        _evaluators[self.number] = evaluator

    def __getstate__(self) -> dict[str, object]:
        return {"evaluator": self.evaluator, "gradient": self.gradient}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def make_node(self, *theta_and_latents: Variable) -> Apply:
        inputs = [pt.as_tensor(v) for v in theta_and_latents]
        outputs = [pt.dscalar(), *[v.type() for v in inputs if self.gradient and is_smooth(v)]]
        return Apply(self, inputs, outputs)

    def perform(self, node: Apply, inputs: Sequence[np.ndarray], output_storage: Storage) -> None:
        found = evaluate(self.number, self.gradient, *inputs)
        for storage, value in zip(output_storage, found, strict=True):
            storage[0] = value

    def infer_shape(self, node: Apply, shapes: Sequence[Shape]) -> list[Shape]:
        smooth = [s for s, v in zip(shapes, node.inputs, strict=True) if is_smooth(v)]
        return [(), *smooth] if self.gradient else [()]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """All outputs depend on the inputs: `pullback` refuses second derivatives."""
        return [[is_smooth(v)] * len(node.outputs) for v in node.inputs]

    def pullback(self, inputs: Inputs, outputs: Inputs, cotangents: Inputs) -> list[Variable]:
        """Return the gradients, which the evaluation has computed."""
        if any(not isinstance(c.type, DisconnectedType) for c in cotangents[1:]):
            return [
                grad_not_implemented(self, i, v, "a divided likelihood has no second derivatives")
                for i, v in enumerate(inputs)
            ]
        return pulled_back(outputs, cotangents[0], map(is_smooth, inputs))


def pulled_back(
    outputs: Sequence[Variable], cotangent: TensorVariable, smooth: Iterable[bool]
) -> list[Variable]:
    """The gradients by the inputs of an operation: value -> itself, gradients by smooth inputs."""
    found = iter(outputs[1:])
    return [
        (cotangent * (g := next(found))).astype(g.type.dtype) if each else DisconnectedType()()
        for each in smooth
    ]


def evaluators() -> list[Evaluation]:
    """All evaluators of this process."""
    return list(_evaluators.values())


def evaluate(
    number: int, gradient: bool, theta: np.ndarray, *latents: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Evaluate the likelihood with this number, in this process; with its gradient, if asked."""
    evaluator = _evaluators.get(number)
    if evaluator is None:
        raise GroupError(
            f"the divided likelihood {number} no longer exists: synk.pymc.parallel was closed "
            "before this function was called. Compile and call the function inside the `with` "
            "block, or compile it again after it"
        )
    flat, gradients = evaluator(theta, latents, gradient)
    value = np.asarray(flat[0])
    return (value, flat[1:], *gradients) if gradient else (value,)


@graph_rewriter  # type: ignore[untyped-decorator]
def _without_gradients(fgraph: FunctionGraph) -> None:
    """A likelihood whose gradients nobody reads is evaluated without them."""
    for node in fgraph.toposort():
        op, (value, *gradients) = node.op, node.outputs
        if (
            isinstance(op, DividedLogp)
            and op.gradient
            and not any(map(fgraph.clients.get, gradients))
        ):
            found = DividedLogp(op.evaluator, gradient=False)(*node.inputs)
            fgraph.replace(value, found, reason="without_gradients")


# After all nodes are merged. JAX differentiates what it gets: its mode leaves fusions out.
optdb.register(
    "synkhronos_without_gradients",
    _without_gradients,
    "fast_run",
    "fast_compile",
    "fusion",
    position=49.2,
)
