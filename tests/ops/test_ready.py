"""Functions that tell of a value before they end."""

from __future__ import annotations

import threading

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from pytensor.graph.traversal import ancestors
from selection import thorough

from synkhronos._engine.ready_values import listening
from synkhronos._engine.replicas import compiled
from synkhronos.ops._ready import Ready, in_order

MODES = [FAST, "FAST_COMPILE", *thorough("NUMBA", "CVM")]


def layers(count: int) -> tuple[pt.TensorVariable, list[pt.TensorVariable], list[np.ndarray]]:
    """An input, the gradients of so many layers, and rows."""
    rng = np.random.default_rng(2)
    x, params = pt.matrix("x", dtype="float64"), []
    h = x
    for i in range(count):
        params.append(pytensor.shared(rng.normal(size=(5, 5)), name=f"w{i}"))
        h = pt.tanh(h @ params[-1])
    return x, pt.grad((h**2).sum(), params), rng.normal(size=(4, 5))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode if isinstance(mode, str) else "fast")
def test_the_last_layers_gradient_is_told_first(mode: object) -> None:
    """Each is the function's value, told in one order, with or without a listener."""
    x, gradients, rows = layers(4)
    outputs, order = in_order(gradients)
    assert order == [3, 2, 1, 0]
    f = compiled([x], outputs, mode=mode)
    plain = compiled([x], gradients, mode=mode)
    told: list[tuple[int, np.ndarray]] = []
    with listening(lambda number, value: told.append((number, np.array(value)))):
        found = f(rows)
    for a, b, c in zip(found, plain(rows), f(rows), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    assert [number for number, _ in told] == [0, 1, 2, 3]
    for (_, value), i in zip(told, order, strict=True):
        np.testing.assert_array_equal(value, found[i])


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA", *thorough("CVM")])
def test_nothing_is_computed_before_that_a_value_does_not_need(mode: object) -> None:
    """Between two tellings there is only what the second one needs."""
    x, gradients, _ = layers(5)
    outputs, _ = in_order(gradients)
    f = compiled([x], [pt.exp(x).sum(), *outputs], mode=mode)
    done: set[object] = set()
    for node in f.maker.fgraph.toposort():
        if isinstance(node.op, Ready):
            needed = {v.owner for v in ancestors(node.inputs) if v.owner is not None}
            assert done <= needed, (node, done - needed)
        done.add(node)
    assert sum(isinstance(n.op, Ready) for n in done) == 5


def test_who_is_told() -> None:
    """The innermost listener of the thread, and an exception of his ends the function."""
    x, gradients, rows = layers(1)
    f = compiled([x], in_order(gradients)[0], mode=FAST)
    outer: list[int] = []
    inner: list[int] = []
    with listening(lambda number, _: outer.append(number)):
        with listening(lambda number, _: inner.append(number)):
            f(rows)
            other = threading.Thread(target=f, args=(rows,))
            other.start()
            other.join()
        with listening(None):
            f(rows)
        f(rows)
    assert (outer, inner) == ([0], [0])

    def refuse(number: int, value: np.ndarray) -> None:
        raise LookupError(f"no {number}")

    with listening(refuse), pytest.raises(LookupError, match="no 0"):
        f(rows)
