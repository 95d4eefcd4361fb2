"""Loops of scalar operations in Python, in which all elements of an array make a step at once.

PyTensor's derivatives of the incomplete gamma and beta functions, and of others, are loops of up to
some thousand steps for each number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import cast

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.scalar.loop import ScalarLoop
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

_STEP = Mode(linker="py", optimizer="None")


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
