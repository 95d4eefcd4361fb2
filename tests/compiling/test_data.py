"""Arrays of a graph as data: the same values, one key for other data, and what is computed once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, graph_inputs, toposort
from pytensor.scalar.basic import Log
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorConstant
from selection import thorough

from synkhronos._compiling.data.aligned import aligned, aligned_copy, aligned_empty
from synkhronos._compiling.data.computed import Computed
from synkhronos._compiling.data.lifted import Data, lifted
from synkhronos._compiling.data.once import Once, compute_once, values_of, with_data_apart
from synkhronos._compiling.kept.keys import graph_key
from synkhronos._compiling.lean.rewrite import TAG, register

A, B = pt.dscalar("a"), pt.vector("b", shape=(3,))
POINT = {A: np.array(0.7), B: np.array([0.5, -1, 2])}


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=count)


def normal(y: np.ndarray, sigma: object = 2.0) -> Variable:
    found = -0.5 * ((pt.constant(y) - A) / sigma) ** 2 - pt.log(sigma)
    return CheckParameterValue("sigma > 0")(found, pt.all(pt.gt(sigma, 0))).sum()


def gathered(count: int, entries: int = 3, seed: int = 0) -> Variable:
    index = np.resize(np.arange(entries), count)
    return (B[pt.constant(index) % 3] * rows(count, seed)).sum() + pt.constant(index).sum() * A


def picked(count: int, seed: int = 0, most: int = 2) -> Variable:
    index = np.random.default_rng(seed).integers(0, most + 1, count)
    index[0] = most
    return (pt.concatenate([B] * 100)[pt.constant(index)] * rows(count, seed)).sum()


def filled(count: int, seed: int = 0) -> Variable:
    """Lengths in fills, and arrays of one value."""
    mean = pt.alloc(A, np.int16(count)) + np.zeros(count)
    return (pt.constant(rows(count, seed)) * mean).sum()


def product(count: int, seed: int = 0) -> Variable:
    return ((rows(3 * count, seed).reshape(count, 3) @ B) ** 2).sum()


def loop(count: int, seed: int = 0) -> Variable:
    found = pytensor.scan(
        lambda y, before: before * A + y,
        sequences=[pt.constant(rows(count, seed))],
        outputs_info=[pt.as_tensor(np.float64(0))],
        return_updates=False,
    )
    return found[-1]


def sized(count: int, seed: int = 0) -> Variable:
    """A length in an operation that is not known to take lengths of data."""
    return (pt.arange(count) * rows(count, seed) * A).sum()


MADE: dict[str, Callable[[int, int], Variable]] = {
    "normal": lambda n, seed: normal(rows(n, seed), np.abs(rows(n, seed + 5)) + 0.1),
    "picked": picked,
    "gathered": lambda n, seed: gathered(n, seed=seed),
    "filled": filled,
    "product": product,
    "loop": loop,
    "sized": sized,
}
OF_ONE_LENGTH = {"loop", "sized"}  # whose code has it


def key(output: Variable) -> str:
    return graph_key([A, B], lifted([output]))


def value(output: Any) -> np.ndarray:
    data = [v for v in graph_inputs([output]) if isinstance(v, Data)]
    return Computed([A, B, *data], [output])(*POINT.values(), *(v.get_value() for v in data))[0]


@pytest.mark.parametrize("name", MADE)
def test_a_graph_with_data_computes_the_same(name: str) -> None:
    plain = MADE[name](240, 1)
    [found] = lifted([plain])
    assert value(found) == value(plain)


@pytest.mark.parametrize("name", MADE)
def test_graphs_that_differ_in_data_have_one_key(name: str) -> None:
    make = MADE[name]
    assert key(make(240, 1)) == key(make(240, 2))
    assert (key(make(240, 1)) == key(make(247, 3))) is (name not in OF_ONE_LENGTH)


DIFFERENT: dict[str, tuple[Variable, Variable]] = {
    "a check that fails": (
        normal(rows(240), np.abs(rows(240, 1))),
        normal(rows(240), rows(240, 1)),
    ),
    "the width of an index": (picked(240), picked(240, most=299)),
    "the dtype": (normal(rows(240)), normal(np.round(rows(240)).astype("int64"))),
    "one value everywhere": (normal(rows(240)), normal(np.ones(240))),
    "whether all are above 0": (normal(np.abs(rows(240))), normal(np.abs(rows(240)) - 0.1)),
    "few numbers": (normal(rows(10)), normal(rows(10, 1))),
    "the length of a parameter": (
        (rows(240).reshape(-1, 1) * pt.concatenate([B, [A]])).sum(),
        (rows(960).reshape(240, 4) * pt.concatenate([B, [A]])).sum(),
    ),
    "data that are equal": (
        normal(rows(240), np.abs(rows(240))) + normal(np.abs(rows(240))),
        normal(rows(240), np.abs(rows(240))) + normal(np.abs(rows(240, 1))),
    ),
}


def test_few_numbers_and_lengths_that_the_graph_has_elsewhere_stay() -> None:
    [few, own] = [lifted([output])[0] for output in (normal(rows(10)), sized(240))]
    assert not [v for v in graph_inputs([few]) if isinstance(v, Data)]
    assert [v.type.shape for v in graph_inputs([own]) if isinstance(v, Data)] == [(240,)]


@pytest.mark.parametrize("what", DIFFERENT)
def test_keys_differ_by_what_code_depends_on(what: str) -> None:
    one, other = DIFFERENT[what]
    assert key(one) != key(other)


@pytest.mark.parametrize(
    ("index", "is_slice"),
    [
        (np.arange(12, 252), True),
        (np.arange(299)[::-1], True),
        (np.r_[1:240, 0], False),
        (np.arange(-3, 200), False),
    ],
    ids=["range", "backwards", "moved", "from the end"],
)
def test_indices_that_are_a_slice_stay(index: np.ndarray, is_slice: bool) -> None:
    """PyTensor reads parts of arrays in place of them, also in a gradient."""
    plain = (pt.concatenate([B] * 100)[pt.constant(index)] * rows(len(index))).sum()
    [found] = lifted([plain])
    data = [v.type.dtype for v in graph_inputs([found]) if isinstance(v, Data)]
    assert ("float64" in data, len(data) == 1) == (True, is_slice)
    assert value(found) == value(plain)
    simple = rewrite_graph(found, include=("canonicalize",))
    gathers = [n for n in toposort([simple]) if isinstance(n.op, AdvancedSubtensor)]
    assert (not gathers) is is_slice


def test_an_array_of_one_value_whose_address_would_be_in_the_code_is_data() -> None:
    [found] = lifted([normal(np.ones(200_000))])
    assert all(v.data.size == 1 for v in ancestors([found]) if isinstance(v, TensorConstant))


MATRICES: dict[str, tuple[np.ndarray, bool]] = {
    "diagonal": (np.diag(rows(20)), True),
    "a row of each": (np.eye(30)[:, [3, 1, 1, 8]], True),
    "three diagonals": (np.eye(20) + np.eye(20, k=1) * 2, True),
    "any": (rows(400).reshape(20, 20), False),
    "signs": (np.sign(rows(400)).reshape(20, 20), False),
}


@pytest.mark.parametrize("what", MATRICES)
def test_matrices_of_a_form_that_pytensor_knows_stay(what: str) -> None:
    matrix, stays = MATRICES[what]
    x = pt.vector("x", shape=(matrix.shape[0],))
    [found] = lifted([(x @ pt.constant(matrix)).sum() + (x[0] * rows(240)).sum()])
    data = [v.type.ndim for v in graph_inputs([found]) if isinstance(v, Data)]
    assert data.count(2) == (0 if stays else 1)
    elementwise = pt.constant(matrix) * A
    [summed] = lifted([elementwise.sum() + (A * rows(240)).sum()])
    assert [v for v in graph_inputs([summed]) if isinstance(v, Data) and v.type.ndim == 2]


def test_what_is_known_of_a_result_stays() -> None:
    """PyMC tells that a factor is triangular; PyTensor then computes none of its square."""
    place = pt.zeros((2, 2))[pt.constant([0, 1, 1]), pt.constant([0, 0, 1])]
    factor = place.set(pt.exp(B) * rows(240)[:3])
    factor.tag.lower_triangular = True
    found = lifted([pt.linalg.cholesky(factor @ factor.T), (A * rows(240)).sum()])
    assert any(isinstance(v, Data) for v in graph_inputs(found))
    simple = rewrite_graph(found, include=("canonicalize",))
    assert "Cholesky" not in pytensor.printing.debugprint(simple, file="str")


@pytest.mark.parametrize(
    ("shape", "also", "columns"),
    [((240, 3), False, True), ((240, 3), True, False), ((3, 240), False, False)],
    ids=["tall", "read by a loop", "wide"],
)
def test_tall_matrices_of_products_lie_by_columns(
    shape: tuple[int, int], also: bool, columns: bool
) -> None:
    matrix = pt.constant(rows(720).reshape(shape))
    plain = ((matrix @ B if shape[1] == 3 else B @ matrix) ** 2).sum()
    if also:
        plain = plain + (matrix * B).sum()
    [found] = lifted([plain])
    [data] = [v for v in graph_inputs([found]) if isinstance(v, Data) and v.type.ndim == 2]
    assert data.get_value().shape == (shape[::-1] if columns else shape)
    assert np.isclose(value(found), value(plain), rtol=1e-13)


@pytest.mark.parametrize("least", [0.1, -0.1])
def test_logarithms_of_data_above_zero_are_computed_of_data_alone(least: float) -> None:
    """As PyTensor has them of constants."""
    register()
    [found] = lifted([pt.log(pt.constant(np.abs(rows(240)) + least) / pt.exp(A)).sum()])
    simple = rewrite_graph(found, include=("canonicalize", TAG))
    read = [
        set(graph_inputs(node.inputs))
        for node in toposort([simple])
        if isinstance(getattr(node.op, "scalar_op", None), Log)
    ]
    assert [A in inputs for inputs in read] == [least < 0]
    with np.errstate(invalid="ignore"):
        assert np.isclose(value(simple), value(found), rtol=1e-13, equal_nan=True)


def test_what_is_computed_of_data_alone_is_computed_once() -> None:
    y, sigma = rows(240), np.abs(rows(240, 1)) + 0.1
    [found] = lifted([(pt.constant(y) * A / pt.log(pt.constant(sigma)) + np.exp(1) * y).sum()])
    data = [v for v in graph_inputs([found]) if isinstance(v, Data)]
    graph = FunctionGraph([A, *data], [found], clone=False)
    compute_once(graph)
    [once] = [node for node in graph.toposort() if isinstance(node.op, Once)]
    apart, arguments = with_data_apart(graph)
    assert arguments[0] is A
    assert {v.owner for v in arguments[1:]} <= {once, None}
    names = {type(getattr(n.op, "scalar_op", None)).__name__ for n in apart.toposort()}
    assert not names & {"Log", "TrueDiv", "Sqrt"}
    computed = Computed(apart.inputs, apart.outputs)(POINT[A], *values_of(arguments[1:]))
    expected = (y * POINT[A] / np.log(sigma) + np.exp(1) * y).sum()
    assert np.isclose(computed[0], expected, rtol=1e-13)
    assert np.isclose(
        Computed(graph.inputs, graph.outputs)(POINT[A], *values_of(data))[0], expected
    )


def test_lengths_that_the_user_asks_of_data_are_still_asked() -> None:
    n, y = pt.lscalar("n"), rows(200)
    [found] = lifted([(pt.specify_shape(pt.constant(y), (n,)) * A).sum()])
    data = [v for v in graph_inputs([found]) if isinstance(v, Data)]
    graph = FunctionGraph([A, n, *data], [found], clone=False)
    compute_once(graph)
    made = Computed(graph.inputs, graph.outputs)
    values = values_of(data)
    assert np.isclose(made(POINT[A], np.array(200), *values)[0], y.sum() * POINT[A])
    with pytest.raises(AssertionError, match="SpecifyShape"):
        made(POINT[A], np.array(201), *values)


MOST = {"bool": 2, "float32": 3, "float64": 3}
MOST |= {k: np.iinfo(k).max for k in ("int8", "int16", "int32", "int64", "uint8", "uint16")}
GROUPED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sum": lambda x, one, other: x + one + other,
    "product": lambda x, one, other: one * x * other,
    "quotient": lambda x, one, _: x / one,
}


@pytest.mark.parametrize("point", ["float64", *thorough("float32", "int8", "int64")])
@pytest.mark.parametrize("what", GROUPED)
def test_what_is_grouped_is_computed_in_the_type_of_the_result(what: str, point: str) -> None:
    """As PyTensor computes of constants: integers neither wrap nor become shorter floats."""
    x, at = pt.vector("x", dtype=point), np.arange(1, 241).astype(point) % 5 + 1
    rng = np.random.default_rng(0)
    arrays = [(rng.uniform(0.3, 0.9, 240) * most).astype(kind) for kind, most in MOST.items()]
    made = [
        GROUPED[what](x, pt.constant(one), pt.constant(other[::-1].copy()))
        for one in arrays
        for other in arrays
    ]
    plain, found = (
        rewrite_graph(each, include=("canonicalize",), clone=False) for each in (made, lifted(made))
    )
    data = [v for v in graph_inputs(found) if isinstance(v, Data)]
    graph = FunctionGraph([x, *data], found, clone=False)
    compute_once(graph)
    apart, arguments = with_data_apart(graph)
    values = Computed(apart.inputs, apart.outputs)(at, *values_of(arguments[1:]))
    for value, expected in zip(values, Computed([x], plain)(at), strict=True):
        assert value.dtype == expected.dtype
        last = 4 * np.finfo(value.dtype).eps if value.dtype.kind == "f" else 0
        np.testing.assert_allclose(value, expected, rtol=last)


def test_arrays_of_a_call_are_not_held() -> None:
    x = pt.vector("x")
    inner = pt.exp(x)
    computed = Computed([x], [inner, inner.sum()])
    given = rows(10)
    found = computed(given)
    held = [weakref.ref(given), weakref.ref(found[0])]
    del given, found
    assert all(each() is None for each in held)


def far(array: np.ndarray) -> np.ndarray:
    """A copy in the same order that begins 16 bytes after a cache line."""
    memory = aligned_empty((array.nbytes + 16,), np.dtype(np.uint8))[16:]
    moved = np.ndarray(array.shape, array.dtype, memory, strides=array.strides)
    moved[...] = array
    return moved


@pytest.mark.parametrize("order", "CF")
def test_arrays_that_gain_begin_at_a_cache_line_in_their_order(order: Any) -> None:
    given = far(np.asarray(rows(2000).reshape(40, 50), order=order))
    assert given.ctypes.data % 64 == 16
    found = aligned(given)
    assert found.ctypes.data % 64 == 0
    assert found.strides == given.strides
    np.testing.assert_array_equal(found, given)
    assert aligned(found) is found


def test_arrays_that_gain_nothing_stay() -> None:
    for given in (far(rows(100)), far(rows(2000))[::2], far(rows(1 << 22 | 1))):
        assert aligned(given) is given


@pytest.mark.parametrize("shape", [(), (0,), (5, 3)])
def test_copies_of_any_shape_begin_at_a_cache_line(shape: tuple[int, ...]) -> None:
    given = np.full(shape, 3, "int16")
    found = aligned_copy(given)
    assert found.flags.c_contiguous
    assert not found.size or found.ctypes.data % 64 == 0
    assert found.dtype == given.dtype
    np.testing.assert_array_equal(found, given, strict=True)


def test_a_graph_without_arrays_stays() -> None:
    output = pt.exp(A).sum()
    assert lifted([output])[0] is output
    graph = FunctionGraph([A], [output], clone=False)
    compute_once(graph)
    assert with_data_apart(graph) is None
    assert not [v for v in graph.variables if isinstance(v, Constant) and v.data.size > 1]
