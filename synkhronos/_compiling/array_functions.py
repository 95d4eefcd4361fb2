"""Functions and loops of arrays, for operations of which PyTensor has those of one number only.

PyTensor's derivatives of the incomplete gamma and beta functions, and of others, are loops of up to
some thousand steps for each number. Here all elements of an array make a step at once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.scalar.loop import ScalarLoop
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

_LOG_HALF = float(np.log(0.5))
_STEP = Mode(linker="py", optimizer="None")


def softplus(x: np.ndarray) -> Any:
    """log(1 + exp(x)).

    >>> softplus(np.array([-800.0, 0.0, 800.0])).round(6).tolist()
    [0.0, 0.693147, 800.0]
    """
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def log1mexp(x: np.ndarray) -> Any:
    """log(1 - exp(x)), for x below 0.

    >>> log1mexp(np.array([-800.0, -0.1])).round(6).tolist()
    [-0.0, -2.352168]
    """
    return np.where(x < _LOG_HALF, np.log1p(-np.exp(x)), np.log(-np.expm1(x)))


def clip(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> Any:
    """The values between two limits; the lower one counts where it is above the other.

    >>> clip(np.array([0.0, 2.0, 9.0]), 1.0, 3.0).tolist()
    [1.0, 2.0, 3.0]
    """
    return np.where(x < low, low, np.where(x > high, high, x))


def trigamma(x: np.ndarray) -> Any:
    """The second derivative of the logarithm of the gamma function.

    >>> trigamma(np.array([1.0])).round(6).tolist()
    [1.644934]
    """
    return importlib.import_module("scipy.special").polygamma(1, x)


class ArrayLoop(Op):
    """A loop for each element: the number of steps, initial states, constants -> last states."""

    __props__ = ("loop",)

    def __init__(self, loop: ScalarLoop) -> None:
        self.loop = loop

    def make_node(self, *inputs: Variable) -> Apply:
        node = Elemwise(self.loop).make_node(*inputs)
        return Apply(self, node.inputs, [v.type() for v in node.outputs])

    def perform(
        self, node: Apply, inputs: Sequence[np.ndarray], output_storage: list[list[object]]
    ) -> None:
        steps, *given = (np.ravel(v) for v in np.broadcast_arrays(*inputs))
        count = len(self.loop.outputs) - self.loop.is_while
        states, constants = [np.array(v) for v in given[:count]], given[count:]
        done = np.ones(len(steps), bool)  # without a step it is
        left, made = np.flatnonzero(steps > 0), 0
        with np.errstate(all="ignore"):
            while left.size:
                found = self._step(*[v[left] for v in (*states, *constants)])
                for state, value in zip(states, found, strict=False):
                    state[left] = value
                made += 1
                more = steps[left] > made
                if self.loop.is_while:
                    done[left] = found[-1]
                    more &= ~found[-1]
                left = left[more]
        shape = np.broadcast_shapes(*[np.shape(v) for v in inputs])
        for storage, value in zip(output_storage, [*states, done], strict=False):
            storage[0] = value.reshape(shape)

    @cached_property
    def _step(self) -> Callable[..., list[np.ndarray]]:
        """A step of vectors: states and constants -> states, and whether it is the last one."""
        graph = self.loop.fgraph
        known: dict[Variable, Variable] = {
            v: TensorType(v.type.dtype, (None,))() for v in graph.inputs
        }
        places = list(known.values())
        for node in graph.toposort():
            given = [known[v] if v in known else _constant(v) for v in node.inputs]
            op = ArrayLoop(node.op) if isinstance(node.op, ScalarLoop) else Elemwise(node.op)
            known.update(zip(node.outputs, op.make_node(*given).outputs, strict=True))
        outputs = [known[v] if v in known else _constant(v) for v in graph.outputs]
        made = pytensor.function(places, outputs, mode=_STEP, on_unused_input="ignore")
        return cast(Callable[..., list[np.ndarray]], made)


def _constant(variable: Variable) -> Variable:
    assert isinstance(variable, Constant)
    return pt.constant(variable.data, dtype=variable.type.dtype)
