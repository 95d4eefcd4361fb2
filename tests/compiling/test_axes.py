"""Loops follow the order in memory, and convolutions are loops over rows: the same values."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import equal_computations
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.tensor.basic import Join, Split
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from pytensor.tensor.signal.conv import convolve1d
from rewritten import CompiledWithData, compiled, in_python, rewritten
from selection import thorough

from synkhronos._compiling.data.lifted import lifted
from synkhronos._compiling.data.once import Once
from synkhronos._compiling.lean.axes import order_axes
from synkhronos._compiling.lean.convolutions import Convolution
from synkhronos._compiling.lean.mode import without_c
from synkhronos._compiling.lean.op import Lean

R = np.random.default_rng(0)
WEEKS, REGIONS, CHANNELS, LAGS = 52, 9, 2, 4


def mix(level: Any, decay: Any, shape: Any, size: Any) -> Any:
    """A media mix whose arrays have weeks first: the convolution has them last."""
    r = np.random.default_rng(1)
    spend, sales = r.gamma(2, 1, (WEEKS, REGIONS, CHANNELS)), r.normal(3, 1, (WEEKS, REGIONS))
    before = pt.zeros((LAGS - 1, REGIONS, CHANNELS))
    padded = pt.concatenate([before, pt.constant(spend)]).transpose(1, 2, 0)
    weights = decay[:, :, None] ** pt.arange(LAGS, dtype="float64")
    weights = weights / weights.sum(axis=-1, keepdims=True)
    effect = convolve1d(padded, weights, mode="valid").transpose(2, 0, 1)
    reached = pt.exp(-shape[None] * effect)
    found = (size[None] * (1 - reached) / (1 + reached)).sum(axis=2)
    return (-0.5 * (pt.constant(sales) - level[None] - found) ** 2).sum()


def parameters() -> list[Any]:
    kinds = [(REGIONS,), *[(REGIONS, CHANNELS)] * 3]
    return [pt.tensor(f"p{i}", dtype="float64", shape=kind) for i, kind in enumerate(kinds)]


def operations(function: Any, kind: type) -> list[Any]:
    return [node for node in function.maker.fgraph.apply_nodes if isinstance(node.op, kind)]


def assert_equal(made: Any, given: list[Any], outputs: list[Any], values: list[Any]) -> Any:
    """The same values as the plain graph; returns the function."""
    with without_c("NUMBA"):
        fast = made(given, outputs)
        plain = pytensor.function(given, outputs, mode="FAST_COMPILE", on_unused_input="ignore")
    for found, expected in zip(fast(*values), plain(*values), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
    return fast


@in_python
@pytest.mark.parametrize("by_data", [False, *thorough(True)])
def test_a_media_mix_has_long_loops(made: Any, by_data: bool) -> None:
    given = parameters()
    value = mix(*given)
    outputs = [value, *pt.grad(value, given)]
    values = [R.uniform(0.2, 0.8, v.type.shape) for v in given]
    if by_data:
        outputs = lifted(outputs)
        made = CompiledWithData if made is compiled else made
    fast = assert_equal(made, given, outputs, values)
    assert len(operations(fast, Convolution)) == 2
    if made is rewritten:
        for node in operations(fast, Elemwise) + operations(fast, CAReduce):
            shape = node.inputs[0].type.shape
            assert len(shape) < 3 or shape[-1] in (1, LAGS, REGIONS, WEEKS, None), node
        largest = [n for n in operations(fast, Elemwise) if n.outputs[0].type.ndim == 3]
        lengths = [n.outputs[0].type.shape[-1] for n in largest]
        assert CHANNELS not in lengths
        assert lengths


def test_what_data_alone_give_is_computed_once() -> None:
    given = parameters()
    value = mix(*given)
    with without_c("NUMBA"):
        fast = rewritten(given, lifted([value, *pt.grad(value, given)]))
    [once] = operations(fast, Once)
    for node in operations(fast, Convolution):
        assert any(v in once.outputs for v in node.inputs)


@in_python
def test_views_with_other_axes_move_behind_loops(made: Any) -> None:
    x = pt.tensor("x", dtype="float64", shape=(3, 40, 50))
    row, column = pt.dvector("row"), pt.tensor("column", dtype="float64", shape=(3, 40))
    data = np.arange(6000.0).reshape(50, 3, 40) / 6000
    given = [x, row, column]
    values = [R.normal(size=(3, 40, 50)), R.normal(size=40), R.normal(size=(3, 40))]
    moved = x.transpose(2, 0, 1)
    computed = pt.exp(moved * pt.constant(data) + row[None, None, :] * column[None])
    cases = {
        "itself": computed,
        "all": computed.sum(),
        **{
            f"{name} over {axes}": getattr(computed, name)(axis=axes)
            for name in ("sum", "max")
            for axes in [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)]
        },
        "with an axis of one": computed.sum(axis=1, keepdims=True) * moved,
        "two orders": moved + x.transpose(2, 1, 0).transpose(0, 2, 1) * pt.constant(data),
        "an outer product": pt.outer(row, pt.arange(4.0)) ** 2,
    }
    fast = assert_equal(made, given, list(cases.values()), values)
    if made is rewritten:
        for node in operations(fast, CAReduce):
            inner = node.inputs[0].owner
            assert inner is None or not getattr(inner.op, "is_transpose", False)


X, Y, Z = (pt.tensor(name, dtype="float64", shape=(60, 60)) for name in "xyz")
DATA = pt.constant(R.normal(size=(60, 60)))
STAYS = {
    "arithmetic of a loop that reads another array": (X @ Y).T * DATA - Z,
    "what LAPACK makes": pt.sqr(SolveTriangular(b_ndim=2, lower=True)(X, Y).T).sum(axis=1),
}
MOVES = {
    "functions": pt.exp((X @ Y).T) - Z,
    "arithmetic of loops of its own": (X @ Y).T * DATA - pt.exp((X @ Y).T),
}


def mixture(y: Any, means: Any, weight: Any) -> Any:
    """A mixture of densities, each of its own vector, as PyMC joins them."""
    each = [-0.5 * pt.sqr(y - means[k]) for k in range(2)]
    joined = pt.log(pt.stack([weight, 1 - weight])) + pt.stack(each, axis=-1)
    return pt.logsumexp(joined, axis=-1).sum()


@in_python
@pytest.mark.parametrize("length", [300, None])
def test_joined_columns_have_loops_along_their_rows(made: Any, length: int | None) -> None:
    y = pt.tensor("y", dtype="float64", shape=(length,))
    means, weight = pt.vector("means", shape=(2,)), pt.scalar("weight")
    value = mixture(y, means, weight)
    outputs = [value, *pt.grad(value, [y, means, weight])]
    values = [R.normal(size=300), np.array([-1.0, 2.0]), 0.3]
    fast = assert_equal(made, [y, means, weight], outputs, values)
    [joined] = [node for node in operations(fast, Join) if node.outputs[0].type.ndim == 2]
    assert joined.op.axis == 0
    assert {node.op.axis for node in operations(fast, Split)} <= {0}


def test_joined_columns_that_a_product_reads_stay() -> None:
    """Of rows it would read a copy, or the view that LAPACK takes by columns."""
    y = pt.tensor("y", dtype="float64", shape=(300,))
    columns = pt.stack([y, pt.sqr(y)], axis=-1)
    fast = assert_equal(rewritten, [y], [columns.T @ columns, columns + 1], [R.normal(size=300)])
    [joined] = operations(fast, Join)
    assert joined.op.axis == 1


@in_python
def test_reductions_leave_out_axes_of_one(made: Any) -> None:
    x, b = pt.matrix("x", shape=(4, None)), pt.tensor("b", dtype="bool", shape=(None,))
    outputs = [
        x[:, None, :].sum(axis=(0, 1)),
        x[None, :, :, None].max(axis=2),
        x[:, :, None].prod(axis=(0, 1)),
        x[None].sum(),
        b[:, None].all(axis=0),
        b[:, None].sum(axis=0),
        x[:, None].sum(axis=1),
    ]
    fast = assert_equal(made, [x, b], outputs, [R.normal(size=(4, 3)), np.array([True, False])])
    if made is rewritten:
        reduced = [n for n in operations(fast, Lean) if isinstance(n.op.op, CAReduce)]
        # the last output sums an axis of one alone, which PyTensor leaves out by itself
        assert sorted(node.inputs[0].type.ndim for node in reduced) == [1, 1, 2, 2, 2, 2]


@pytest.mark.parametrize("what", [*STAYS, *MOVES])
def test_views_stay_where_loops_would_part_or_memory_has_their_order(what: str) -> None:
    output = (STAYS | MOVES)[what]
    graph = FunctionGraph(outputs=clone_replace([output]), clone=False)
    order_axes(graph)
    assert equal_computations(graph.outputs, [output]) is (what in STAYS)


LENGTHS = [(7, 3), (3, 7), (5, 5), (1, 4), (20, 18)]
# of each way, the operands that are given, made of arrays of three axes
WAYS: dict[str, Any] = {
    "rows": lambda x, y: (x, y),
    "axes that broadcast": lambda x, y: (x[:, :1], y),
    "views": lambda x, y: (x[::-1], y[:, :, ::-1]),
    "vectors": lambda x, y: (x[0, 0], y[0, 0]),
}


@pytest.mark.parametrize(
    "kinds",
    [
        [("rows", "valid"), ("axes that broadcast", "full")],  # numba compiles each for a second
        *thorough(list(itertools.product(WAYS, ("full", "valid")))),
    ],
)
def test_rows_are_convolved_as_by_numpy(kinds: list[tuple[str, str]]) -> None:
    x, y = pt.dtensor3("x"), pt.dtensor3("y")
    cases = [(WAYS[way], mode) for way, mode in kinds]
    fast = compiled([x, y], [convolve1d(*way(x, y), mode) for way, mode in cases])
    assert len(operations(fast, Convolution)) == len(cases)
    for (n, k), first in itertools.product(LENGTHS, (0.0, np.nan, np.inf)):
        values = R.normal(size=(2, 3, n)), R.normal(size=(2, 3, k))
        values[0][..., 0] += first  # which some outputs do not read
        for (way, mode), found in zip(cases, fast(*values), strict=True):
            one, other = way(*values)
            by_numpy = np.vectorize(
                functools.partial(np.convolve, mode=mode), signature="(n),(k)->(o)"
            )
            np.testing.assert_allclose(found, by_numpy(one, other), rtol=1e-12, atol=1e-14)
    with pytest.raises(ValueError, match="convolve1d: an operand has no elements"):
        fast(values[0], values[1][:, :, :0])
    with pytest.raises(ValueError, match="convolve1d: axis 0 of the operands does not fit"):
        fast(values[0], values[1][[0, 1, 1]])
