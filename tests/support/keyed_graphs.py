"""Graphs by their names, and what their keys are: `python -P keyed_graphs.py` writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import synkhronos  # noqa: F401
from synkhronos._compiling.kept.keys import graph_key
from synkhronos._compiling.lean.mode import lean


class Scaled(Op):
    """An operation of the user, without `__props__`."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        outputs[0][0] = inputs[0] * self.factor


def scaled_by(factor: float) -> Callable[[Any], Any]:
    return lambda x: x * factor


X, Y = pt.vector("x", dtype="float64"), pt.vector("y", dtype="float64")


def shared(name: str = "w", dtype: str = "float64", value: float = 1.0) -> Any:
    return pytensor.shared(np.full(3, value, dtype), name=name)


def looped(steps: int = 3, factor: float = 2.0) -> Any:
    return pytensor.scan(
        lambda a: a * factor, outputs_info=[X], n_steps=steps, return_updates=False
    )


def inner(factor: float = 2.0) -> Any:
    a = pt.vector(dtype="float64")
    return OpFromGraph([a], [a * factor])(X)


def drawn(scale: float = 1.0) -> Any:
    return pt.random.shared_rng(seed=3).normal(0, scale, size=(2,))[1]


def key(output: Any, *more: object, inputs: Any = (X, Y)) -> str:
    return graph_key(inputs, [output], *more)


GRAPHS: dict[str, Callable[[], str]] = {
    "sum": lambda: key((X * Y).sum()),
    "loop": lambda: key(looped()),
    "inner graph": lambda: key(inner()),
    "random": lambda: key(drawn()),
    "shared": lambda: key(X @ shared()),
    "function": lambda: key(X, scaled_by(2.0)),
    "mode": lambda: key(X, lean("NUMBA")),
    "set": lambda: key(X, {"one", "two", "three"}, {"b": 1, "a": 2}),
    "gradient": lambda: key(pt.grad(pt.exp(X).sum(), X)),
}

if __name__ == "__main__":
    print(json.dumps({name: made() for name, made in GRAPHS.items()}))
