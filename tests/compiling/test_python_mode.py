"""Functions of more values than numpy's functions take."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from modes import FAST
from pytensor.compile.mode import Mode
from pytensor.scalar.loop import ScalarLoop
from pytensor.tensor.elemwise import Elemwise
from selection import thorough

import synkhronos as synk
from synkhronos._compiling.array_functions import ArrayLoop
from synkhronos._compiling.python_mode import MOST_OPERANDS, python_mode
from synkhronos.extensions import make_train_function, updates
from synkhronos.training import guarded


@pytest.mark.parametrize(
    "count", [1, MOST_OPERANDS, MOST_OPERANDS + 1, MOST_OPERANDS**2 + MOST_OPERANDS + 1]
)
def test_sums_and_products_of_any_length(count: int) -> None:
    """Also with one part that has a single value, and with parts of parts."""
    values = [pt.dscalar() for _ in range(count)]
    function = pytensor.function(values, [sum(values), pt.mul(*values)], mode=python_mode())
    given = np.random.default_rng(count).uniform(0.9, 1.1, count)
    np.testing.assert_allclose(function(*given), [given.sum(), given.prod()], rtol=1e-12)
    assert max(len(node.inputs) for node in function.maker.fgraph.apply_nodes) <= MOST_OPERANDS


@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        (pt.softplus, -800, 800),
        (pt.log1mexp, -800, -1e-9),
        (pt.tri_gamma, 1e-3, 100),
        (lambda x: pt.clip(x, -0.5, 0.5), -1, 1),
        (lambda x: pt.clip(x, 0.5, -0.5), -1, 1),
    ],
)
def test_no_function_of_one_number_is_called_for_each_element(
    function: Any, low: float, high: float
) -> None:
    x = pt.dvector("x")
    given = np.random.default_rng(0).uniform(low, high, 1000)
    expected = pytensor.function([x], function(x), mode=Mode("py", None))(given)
    found = pytensor.function([x], function(x), mode=python_mode())
    [spec] = [
        node.op.nfunc_spec
        for node in found.maker.fgraph.apply_nodes
        if isinstance(node.op, Elemwise)
    ]
    assert spec is not None
    np.testing.assert_allclose(found(given), expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("function", "odd"),
    [
        (lambda a, x: pt.gammainc(a, pt.exp(x)), -6.0),
        *thorough(
            (lambda a, x: pt.betainc(a, 1 + a, pt.sigmoid(x)), np.nan),
            (lambda a, x: pt.gammaincc(a, pt.exp(x)), 6.0),
            (lambda a, x: pt.hyp2f1(a, 0.5, 1.5, 0.9 * pt.sigmoid(x)), 3.0),
        ),
    ],
)
def test_loops_of_elements_make_their_steps_together(function: Any, odd: float) -> None:
    """Derivatives: some elements need more steps than others, and there may be none."""
    row, matrix = pt.dvector("row"), pt.dmatrix("matrix")
    gradients = pytensor.grad(function(row, matrix).sum(), [row, matrix])
    ours, plain = (
        pytensor.function([row, matrix], gradients, mode=mode)
        for mode in (python_mode("canonicalize"), Mode("py", None))
    )
    operations = [node.op for node in ours.maker.fgraph.apply_nodes]
    assert any(isinstance(op, ArrayLoop) for op in operations)
    assert not any(isinstance(getattr(op, "scalar_op", None), ScalarLoop) for op in operations)
    r = np.random.default_rng(0)
    values = r.normal(size=(10, 3))
    values[1, 2] = odd
    for rows in (10, 1, 0):
        given = r.gamma(2, size=3), values[:rows]
        with np.errstate(all="ignore"):
            for found, wanted in zip(ours(*given), plain(*given), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_a_loop_with_a_number_of_steps_for_each_element() -> None:
    """Each element halves its state as often as it is told; without a condition."""
    x, by = pytensor.scalar.float64("x"), pytensor.scalar.float64("by")
    loop = ScalarLoop(init=[x], update=[x / by], constant=[by])
    steps, start = pt.lvector("steps"), pt.dvector("start")
    halved = Elemwise(loop)(steps, start, pt.constant(2.0))
    found = pytensor.function([steps, start], halved, mode=python_mode())
    assert found([0, 1, 3], [8.0, 8.0, 8.0]).tolist() == [8, 4, 1]


def test_an_output_of_many_means(group2: synk.Group) -> None:
    """Reduced apart, then added."""
    x = pt.dmatrix("x")
    found = sum(pt.sqr((x**k).mean()) for k in range(1, MOST_OPERANDS + 9))
    rows = np.random.default_rng(0).uniform(0, 1, (7, 2))
    expected = pytensor.function([x], found, mode=FAST)(rows)
    np.testing.assert_allclose(synk.function([x], found, mode=FAST)(rows), expected, rtol=1e-12)


def test_norms_of_many_parameters(group2: synk.Group) -> None:
    """The guard of `fit` and a limit of the total norm add up values of all parameters."""
    x, y, count = pt.dmatrix("x"), pt.dvector("y"), MOST_OPERANDS + 9
    params = [pytensor.shared(np.full(2, 0.1), name=f"w{k}") for k in range(count)]
    loss = ((x @ sum(params) - y) ** 2).mean()
    clip = functools.partial(updates.total_norm_constraint, max_norm=0.1)
    rule = functools.partial(guarded(updates.sgd), learning_rate=0.5)
    train = make_train_function(loss, params, x, y, rule, clip=clip, mode=FAST)
    rng, w = np.random.default_rng(1), np.full(2, 0.1)
    for _ in range(2):
        rows, wanted = rng.normal(size=(7, 2)), rng.normal(size=7)
        train(rows, wanted)
        # the same for each of the parameters
        gradient = 2 / 7 * (rows @ w * count - wanted) @ rows
        w -= 0.5 * gradient * 0.1 / np.sqrt(count * gradient @ gradient)
    np.testing.assert_allclose([p.get_value() for p in params], [w] * count, rtol=1e-6)
