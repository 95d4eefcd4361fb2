"""Machine code of small graphs: each operation, at points that the code was not compared at."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.graph.fg import FunctionGraph
from pytensor.raise_op import assert_op
from pytensor.tensor.linalg import solve_triangular
from written_code import NUMBERS, Made, N

from synkhronos._compiling.direct import functions
from synkhronos._compiling.direct.arrays import Buffer, View
from synkhronos._compiling.direct.bounds import bounds_of
from synkhronos._compiling.direct.flat import Flat
from synkhronos._compiling.direct.functions import c_function
from synkhronos._compiling.direct.steps import Gather
from synkhronos._compiling.direct.unfit import UnfitError
from synkhronos._compiling.kept.machine_code import ANOTHER_LENGTH, CFunction
from synkhronos._compiling.lean.c_functions import (
    FAILED,
    NOT_FINITE_GRADIENT,
    NOT_FINITE_VALUE,
    SUCCESS,
    Place,
)
from synkhronos._compiling.lean.quadratics import SquaresOfRows, packed
from synkhronos._compiling.lean.row_products import ChosenRowProducts, SumsOfRowsByIndex
from synkhronos._compiling.special_entries import entry, entry_address

ENDS = np.array(
    [1.0, -1.0, 1.0 + 2**-52, -1.0 - 2**-52, 1.0 - 2**-53, 2.0**28, -(2.0**30), 0.7, 9.0, 0.0]
)
SIGNED = np.array([0.0, -0.0, np.inf, -np.inf, 5e-324, -5e-324, 1e-200, 1.0, -1.0, np.nan])
SPECIAL = np.array([np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, 710.0, -746.0, 0.5, -0.5])


ELEMENTWISE: dict[str, Callable[[Any], Any]] = {
    "sums": lambda x: x + x[::-1] + 2.0,
    "differences": lambda x: x - x[::-1],
    "products": lambda x: x * x[::-1] * 3.0,
    "quotients": lambda x: x / x[::-1],
    "reciprocals": pt.reciprocal,
    "negations": lambda x: -x,
    "squares": pt.sqr,
    "roots": pt.sqrt,
    "magnitudes": abs,
    "magnitudes of integers": lambda x: abs(pt.floor(pt.clip(x, -9, 9)).astype("int64")),
    "signs": pt.sign,
    "signs of integers": lambda x: pt.sign(pt.clip(x, -9, 9).astype("int8")),
    "floors": pt.floor,
    "ceilings": pt.ceil,
    "truncations": pt.trunc,
    "nearest": pt.round,
    "maxima": lambda x: pt.maximum(x, x[::-1]),
    "minima": lambda x: pt.minimum(x, x[::-1]),
    "bounded": lambda x: pt.clip(x, -1.0, 1.5),
    "less": lambda x: x < x[::-1],
    "at most": lambda x: x <= x[::-1],
    "more": lambda x: x > x[::-1],
    "at least": lambda x: x >= x[::-1],
    "equal": lambda x: pt.eq(x, x[::-1]),
    "unequal": lambda x: pt.neq(x, x[::-1]),
    "unsigned, compared": lambda x: pt.lt(pt.clip(x, 0, 9).astype("uint8"), np.uint8(2)),
    "choices": lambda x: pt.switch(x > 0.2, x, x[::-1]),
    "choices by numbers": lambda x: pt.switch(x, 1.0, x[::-1]),
    "both": lambda x: pt.and_(x > 0, x < 2),
    "either": lambda x: pt.or_(x < 0, x > 2),
    "one": lambda x: pt.xor(x < 0, x < 2),
    "not": lambda x: ~(x > 0),
    "no number": pt.isnan,
    "infinite": pt.isinf,
    "sums of truths": lambda x: (x > 0) + (x > 1),
    "products of integers": lambda x: pt.clip(x, -9, 9).astype("int64") * np.int64(7),
    "single": lambda x: (pt.clip(x, -9, 9).astype("float32") * np.float32(0.5)) + np.float32(1),
    "exponentials": pt.exp,
    "logarithms": pt.log,
    "powers": lambda x: abs(x) ** x[::-1],
    "logistic": pt.sigmoid,
    "softplus": pt.softplus,
}


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_operations_on_numbers(name: str) -> None:
    if name in ("exponentials", "logarithms", "powers", "logistic", "softplus"):
        Made(lambda x: [ELEMENTWISE[name](x)]).check(NUMBERS)
        return
    Made(lambda x: [ELEMENTWISE[name](x)]).check(NUMBERS, SPECIAL)


INVERSES: dict[str, Callable[[Any], Any]] = {
    "tan": pt.tan,
    "arcsin": pt.arcsin,
    "arccos": pt.arccos,
    "arcsinh": pt.arcsinh,
    "arccosh": pt.arccosh,
    "arctanh": pt.arctanh,
}


@pytest.mark.parametrize("name", INVERSES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_inverse_functions(name: str) -> None:
    near = NUMBERS / 41.0
    made = Made(lambda x: [INVERSES[name](x), 1.0 / INVERSES[name](x)])
    made.check(near, NUMBERS, ENDS, SIGNED, SPECIAL)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_angle_of_two_numbers() -> None:
    made = Made(lambda x: [pt.arctan2(x, pt.roll(x, shift)) for shift in range(N)])
    made.check(NUMBERS, ENDS, SIGNED, SPECIAL)


@pytest.mark.parametrize("name", ["tan", "arcsin", "arccos", "arcsinh", "arctanh"])
def test_inverse_functions_of_short_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(functions._CLOSE, "float64", 1e-6)  # of results that are cast
    found = Made(lambda x: [INVERSES[name](x.astype("float32"))]).at(NUMBERS / 41.0)[1]
    expected = getattr(np, name)(np.float32(NUMBERS / 41.0).astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=5e-7)


# a number k and x, for each branch of the incomplete gamma function and of its gradient by k
GAMMA = np.array(
    [
        *[(1e-8, 1e-300), (1e-3, 0.5), (0.3, 29.0), (1.0, 1.0), (2.5, 0.0), (2.5, np.inf)],
        *[(30.0, 29.0), (30.0, 31.0), (400.0, 30.0), (2.5, 900.0), (400.0, 450.0)],
    ]
)
NO_GAMMA = np.array(
    [(0.0, 1.0), (np.inf, 1.0), (-1.0, 1.0), (1.0, -1.0), (np.nan, 1.0)] * 2 + [(0, 0)]
)
BETA = np.array(
    [
        *[(0.5, 2.0, 0.2), (0.5, 2.0, 0.9), (20.0, 300.0, 0.05)],
        *[(1e-3, 0.5, 1e-12), (900.0, 2.0, 1 - 1e-9), (2.0, 3.0, 0.0)],
    ]
)


def _gammas(x: Any) -> list[Any]:
    k, y = x[: len(GAMMA)], x[len(GAMMA) :]
    return [pt.gammainc(k, y), pt.gammaincc(k, y)]


def _betas(x: Any) -> list[Any]:
    return [pt.betainc(*(x[at * len(BETA) : (at + 1) * len(BETA)] for at in range(3)))]


@pytest.mark.parametrize(("build", "cases"), [(_gammas, GAMMA), (_betas, BETA)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_incomplete_functions_and_their_gradients(
    build: Callable[..., Any], cases: np.ndarray
) -> None:
    """Values are SciPy's to the last bit; gradients are loops, by PyTensor's formulas."""
    point = cases.T.ravel()
    exact = Made(build, length=len(point))
    np.testing.assert_array_equal(exact.at(point)[1], exact.plain(point))
    made = Made(lambda x: [pt.grad(build(x)[0].sum(), x)], length=len(point))
    np.testing.assert_allclose(made.at(point)[1], made.plain(point), rtol=1e-10)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_incomplete_functions_beyond_their_domain_are_those_of_scipy() -> None:
    made, point = Made(_gammas, length=NO_GAMMA.size), NO_GAMMA.T.ravel()
    np.testing.assert_array_equal(made.at(point)[1], made.plain(point))


def test_kept_code_finds_functions_of_scipy() -> None:
    made, point = Made(_gammas, length=GAMMA.size), GAMMA.T.ravel()
    assert made.function.code is not None
    made.function = CFunction.of(made.function.code)
    np.testing.assert_array_equal(made.at(point)[1], made.plain(point))
    assert entry_address(entry("gammainc")) is not None
    assert entry_address(entry("gammainc"), 3) is None
    assert entry_address("gammainc") is entry_address(entry("none")) is None


def test_powers_that_are_products() -> None:
    def build(x: Any) -> list[Any]:
        i = pt.clip(x, -9, 9).astype("int64")
        return [i ** np.int8(2), i ** np.int8(3), x**3.0, x**2]

    Made(build).check(NUMBERS)


A = np.arange(60.0).reshape(3, 4, 5) % 7 - 2.5
M = np.random.default_rng(1).normal(size=(N, 6))
PLACES = np.array([3, 0, 9, 3, -1, 3, 5], np.int8)
PAIRS = np.array([[1, 0], [2, 2], [1, 0]])

FORMS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "sums over axes": (
        lambda x, a: [
            (a * x[0]).sum(axis=axis) for axis in (None, 0, 1, 2, (0, 1), (0, 2), (1, 2))
        ],
        (A,),
    ),
    "products over axes": (lambda x, a: [(a * x[0]).prod(axis=axis) for axis in (0, 2)], (A,)),
    "extremes over axes": (
        lambda x, a: [
            *[(a * x[0]).max(axis=axis) for axis in (None, 0, 1, 2)],
            *[(a * x[0]).min(axis=axis) for axis in (None, 0, 1, 2)],
        ],
        (A,),
    ),
    "truths over axes": (
        lambda x, a: [((a * x[0]) > 0).all(axis=1), ((a * x[0]) > 0).any(axis=0)],
        (A,),
    ),
    "sums of truths": (lambda x, a: [((a * x[0]) > 0).sum(axis=axis) for axis in (0, 1)], (A,)),
    "sums over axes of one": (lambda x: [x[None, :1].sum(axis=0), x[:1].sum(), x[:1].max()], ()),
    "other orders": (
        lambda x, a: [
            (a.dimshuffle(2, 0, 1) * x[0]).sum(axis=1),
            (a.dimshuffle(2, 0, 1) * x[0]).reshape((15, 4)),
            a.dimshuffle(1, "x", 0, 2).sum(axis=(0, 3)) * x[1],
        ],
        (A,),
    ),
    "lengths of one": (lambda x: [x[:, None] * x[None, :3], x[:3, None, None] + x[None, :2]], ()),
    "matrices times vectors": (
        lambda x, m: [
            *[pt.dot(m.T, x), pt.dot(m, x[:6]), pt.dot(x, m), pt.dot(x, x)],
            pt.dot((m * x[:, None]).T, x),
        ],
        (M,),
    ),
    "matrices times matrices": (lambda x, m: [pt.dot(m.T * x[0], m), pt.dot(m, m.T) * x[1]], (M,)),
    "columns": (lambda x, m: [pt.dot(m, x[:6, None]), pt.dot(m[:, :1].T, x)], (M,)),
    "chosen": (
        lambda x, i: [x[i], pt.exp(x[i] * 0.1), x[i].sum(), (x[:, None] * x[:2])[i]],
        (PLACES,),
    ),
    "chosen of one": (
        lambda x, i: [
            pt.exp(x[:1])[i] * x[1],
            pt.inc_subtensor((x[:1] * 2.0)[i], x[3:4]) * 3.0,
            pt.set_subtensor((x[:1] * 2.0)[i], x[3:4]) * 3.0,
        ],
        (np.array([0]),),
    ),
    "chosen columns": (lambda x, m, i: [(m * x[:, None])[:, i]], (M, np.array([5, 1, 1, -6]))),
    "chosen by matrices": (lambda x, i: [x[i]], (PAIRS,)),
    "chosen by pairs": (
        lambda x, m, i: [(m * x[:, None])[i[:, 0], i[:, 1]]],
        (M, PAIRS),
    ),
    "added where chosen": (
        lambda x, i: [
            pt.inc_subtensor(pt.zeros(N)[i], x[: len(PLACES)]),
            pt.inc_subtensor(x[i], x[: len(PLACES)] * 2.0).sum(),
            pt.inc_subtensor(pt.zeros((N, 3))[i], x[: len(PLACES), None]),
        ],
        (PLACES,),
    ),
    "added to few elements": (
        lambda x, i, j, k, two, m: [
            *[pt.inc_subtensor(pt.exp(x[:5] * 0.1)[at], m[:, 0] * x[1]) for at in (i, j, k)],
            pt.inc_subtensor(pt.zeros(5)[j], m[:, 0] * x[2]).sum() * x[i],
            pt.inc_subtensor(pt.zeros((2, 5))[two, i], m[:, 0] * x[1]),
            pt.inc_subtensor(pt.zeros(5, "float32")[j], m[:, 0].astype("float32")) * 1e-9,
            pt.inc_subtensor(pt.zeros((2, 3))[:, two], m[:, 1] * x[1]),
        ],
        (
            np.repeat(np.arange(5, dtype=np.int32), 9)[:43],
            np.arange(43, dtype=np.uint8) * 7 % 5,
            np.r_[np.full(42, 4), 2],
            np.arange(43) // 3 % 2,
            np.random.default_rng(3).normal(size=(43, 2)),
        ),
    ),
    "products of chosen rows": (
        lambda x, m, i, c: [
            ChosenRowProducts(6)(m * x[0], m[:7] * x[1], i),
            ChosenRowProducts(2)(pt.outer(x, x[:2]), (m[:7] * x[3])[:, ::2][:, :2], i),
            SumsOfRowsByIndex(6)(x[:7], m[:7] * x[1], i, pt.constant(N)),
            SumsOfRowsByIndex(6)(x[:7], m[3:] * x[1], i, c),
        ],
        (M, PLACES, np.array(12)),
    ),
    "set where chosen": (
        lambda x, i: [pt.set_subtensor(x[i], x[: len(PLACES)])],
        (np.array([4, 2, 9, -10, 1, 5, 7]),),
    ),
    "parts": (
        lambda x: [x[2:7:2] * 2.0, x[::-3], x[-2], pt.exp(x[3:5]) + x[:2], x[-4:-1], x[4:4]],
        (),
    ),
    "changed parts": (
        lambda x: [
            pt.set_subtensor(x[1:3], 7.0) * x,
            pt.inc_subtensor(x[::2], x[1::2]),
            pt.inc_subtensor(pt.set_subtensor(x[0], 1.0)[0], x[1]),
        ],
        (),
    ),
    "joined and divided": (
        lambda x: [
            pt.concatenate([x[3:], x[:3] * 2.0, pt.ones(2)]),
            pt.join(1, x[:4, None], x[None, 2:6].T),
            *pt.split(x, [2, 3, 5]),
            pt.stack([x[0], 2.0, x[1] * x[2]]),
        ],
        (),
    ),
    "sums of all before": (
        lambda x, m: [
            pt.cumsum(x),
            pt.cumprod(x),
            *[pt.cumsum(m * x[:, None], axis=a) for a in (0, 1)],
        ],
        (M,),
    ),
    "filled": (lambda x: [pt.alloc(x[0], 2, 3) * 2.0, pt.zeros((2, 2)) + x[1]], ()),
    "of constants": (
        lambda x: [
            x * np.linspace(0, 1, N),
            x * np.arange(N, dtype=np.float32),
            x * np.array([True, False] * 5),
            pt.as_tensor(np.full(3, 2.0)) * x[0],
        ],
        (),
    ),
    "of small integers": (
        lambda x, b, i: [x * b, (b * np.int8(3)).astype("float64") + i, pt.switch(i > 2, x, 0.0)],
        (np.arange(N) % 3 == 0, np.arange(N, dtype=np.uint16)),
    ),
    "ranges": (
        lambda x, n: [
            x[pt.arange(n) * 2],
            pt.arange(n, 2 * n, 3) * x[0],
            pt.arange(n[()], -2, -1) + x[1],
            x[: n - 1],
        ],
        (np.array(4),),
    ),
    "lags": (lambda x, m: [(m[2:] - m[1:-1] * x[0] - m[:-2] * x[1]).sum(axis=0)], (M,)),
    "of data alone": (lambda x, m: [m.sum(axis=1), pt.exp(m).sum() * x[0]], (M,)),
    "squares of rows": (
        lambda x, numbers: SquaresOfRows()(x[:6], pt.exp(x[6] * 0.1), numbers),
        (packed([9.0, 0.5, 0.0, 1.5], M[:6], M[0], M[1:7], M[9]),),
    ),
    "squares of rows by one": (
        lambda x, numbers: SquaresOfRows()(x[:1], pt.exp(x[6] * 0.1), numbers),
        (packed([9.0, 0.0, 1.0, 1.5], np.eye(1), M[0, :1], M[1:2, :1], M[9, :1]),),
    ),
    "much memory": (
        lambda x, m: [
            (pt.exp(m * x[0]).sum(axis=0) * pt.log1p(pt.exp(m * x[0]).sum(axis=1)).sum()).sum()
        ],
        (np.random.default_rng(2).normal(size=(300, 250)),),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_arrays(name: str) -> None:
    build, data = FORMS[name]
    rng = np.random.default_rng(3)
    Made(build, *data).check(NUMBERS, rng.normal(size=N), rng.normal(size=N) * 5)


def _any_graph(seed: int) -> Callable[..., Any]:
    """Builds a graph of operations that are drawn."""

    def build(x: Any, m: Any, i: Any) -> list[Any]:
        rng = np.random.default_rng(seed)
        vectors, matrices, numbers = [x, x[::-1]], [m, m * x[:, None]], [x[0], x.sum()]

        def one(of: list[Any]) -> Any:
            return of[rng.integers(max(0, len(of) - 4), len(of))]

        choices: list[Callable[[], object]] = [
            lambda: vectors.append(one(vectors) * one(numbers) - one(vectors)),
            lambda: vectors.append(pt.tanh(one(vectors)) + one(vectors)),
            lambda: vectors.append(pt.switch(one(vectors) > 0, one(vectors), 0.5)),
            lambda: vectors.append(one(vectors)[i]),
            lambda: vectors.append(pt.inc_subtensor(one(vectors)[i], one(vectors))),
            lambda: vectors.append(one(matrices).sum(axis=1) * 0.1),
            lambda: vectors.append(pt.dot(one(matrices), one(matrices).sum(axis=0)) * 0.1),
            lambda: vectors.append(pt.set_subtensor(one(vectors)[2:5], one(numbers))),
            lambda: vectors.append(pt.cumsum(one(vectors)) * 0.2),
            lambda: vectors.append(pt.concatenate([one(vectors)[4:], one(vectors)[:4]])),
            lambda: matrices.append(pt.sigmoid(one(matrices) + one(vectors)[:, None])),
            lambda: matrices.append(one(matrices) * one(matrices).max(axis=0)),
            lambda: matrices.append(one(matrices)[i] - one(matrices)),
            lambda: numbers.append(pt.tanh(one(vectors).sum())),
            lambda: numbers.append(one(matrices).max() - one(vectors)[3]),
            lambda: numbers.append(pt.exp(-pt.sqr(one(numbers))) * one(numbers)),
        ]
        for _ in range(25):
            choices[rng.integers(len(choices))]()
        return [*vectors, *matrices, *numbers]

    return build


@pytest.mark.parametrize(
    "seed", [*range(2), *[pytest.param(s, marks=pytest.mark.thorough) for s in range(2, 24)]]
)
def test_drawn_graphs(seed: int) -> None:
    """The same graph has code for each width of a matrix."""
    index = np.array([3, 0, 9, 3, -1, 3, 5, 2, 2, 7])
    rng = np.random.default_rng(4)
    made = Made(_any_graph(seed), M, index)
    for width, scale in ((6, 1.0), (6, 0.1), (3, 1.0), (1, 1.0)):
        if made.data[0].shape[1] != width:
            made.use(np.ascontiguousarray(M[:, :width]), index)
        point = scale * rng.normal(size=N)
        status, found = made.at(point)
        assert status == SUCCESS
        expected = made.plain(point, *made.data)
        size = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12 * size)


def test_an_index_out_of_bounds_is_an_error_and_reads_nothing() -> None:
    made = Made(lambda x, i: [x[i], pt.inc_subtensor(x[i], 1.0)], np.array([0, -1, 2]))
    for wrong in (N, -N - 1, 2**62, -(2**62)):
        status, _ = made.at(NUMBERS, np.array([0, wrong, 1]))
        assert status == FAILED
    status, found = made.at(NUMBERS, np.array([N - 1, -N, 4]))
    assert status == SUCCESS
    np.testing.assert_array_equal(found[:3], NUMBERS[[N - 1, 0, 4]])


@pytest.mark.parametrize(
    "build",
    [
        lambda x, i: [x[i]],
        lambda x, i: [pt.inc_subtensor(x[i], 1.0)],
        lambda x, i: [pt.outer(x, x)[:, i - 2 + 2]],
        lambda x, i: [ChosenRowProducts(2)(pt.outer(x, x[:2]), pt.outer(x[:3], x[:2]), i)],
        lambda x, i: [SumsOfRowsByIndex(2)(x[:3], pt.outer(x[:3], x[:2]), i, pt.constant(N))],
    ],
)
@pytest.mark.parametrize("wrong", [N, -N - 1])
def test_an_index_of_the_first_data_that_is_out_of_bounds_names_its_row(
    build: Callable[..., Any], wrong: int
) -> None:
    made = Made(build, np.array([0, -1, 2]))
    data = [np.array([0, -1, wrong])]
    with pytest.raises(IndexError, match=f"index {wrong} of row 2 is out of bounds for {N}"):
        c_function(made.flat, data, made.places, [N, made.total])


def test_an_index_that_depends_on_the_point_is_left_to_numba() -> None:
    with pytest.raises(UnfitError, match="evaluated"):
        c_function(
            Flat.of(
                FunctionGraph(
                    [x := pt.vector("x", shape=(N,))],
                    [pt.constant(1.0), x[pt.floor(x).astype("int64") + N]],
                )
            ),
            [],
            [],
            [N, N],
        )


X = pt.vector("x", shape=(N,))
PADDED = np.linalg.cholesky(np.eye(N) + 0.1)  # its solutions are as long as whole registers


@pytest.mark.parametrize(
    "outputs",
    [
        [pt.exp(X)[0], 2.0 * X],
        [pt.exp(X).sum(), pt.exp(X)[:4]],
        [X.sum(), solve_triangular(pt.constant(PADDED), X, lower=True, b_ndim=1)],
    ],
    ids=["the first number", "the first numbers", "a padded vector"],
)
def test_nothing_is_written_beyond_a_result(
    outputs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is the first part of a longer memory. Code that does so is left to numba."""
    expected = [np.atleast_1d(v.eval({X: NUMBERS}, mode="FAST_COMPILE")) for v in outputs]
    lengths = [N, len(expected[1])]
    graph = FunctionGraph([X], outputs, clone=True)
    made = c_function(Flat.of(graph), [], [], lengths)
    value, gradient = (np.full(2 * N, -7.0) for _ in outputs)
    assert made(lengths, [NUMBERS, gradient, value, np.zeros(1, np.int64)]) == SUCCESS
    for found, wanted in zip((value, gradient), expected, strict=True):
        np.testing.assert_allclose(found[: len(wanted)], wanted)
        assert (found[len(wanted) :] == -7.0).all()
    monkeypatch.setattr(functions, "_is_own", lambda view: view.buffer.argument is None)
    with pytest.raises(UnfitError, match="beyond a result"):
        c_function(Flat.of(graph), [], [], lengths)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "uint32"])
def test_data_with_an_index_below_0_are_refused_if_the_first_had_none(dtype: str) -> None:
    """As are indices beyond an axis; nothing is read, or written, there."""
    most = np.iinfo(dtype).max
    rows = np.arange(300) % N
    made = Made(
        lambda x, i: [x[i], pt.inc_subtensor(pt.zeros(N)[i], x[0]), pt.ones(2000)[i] * x[0]],
        rows.astype(dtype),
    )
    made.check(NUMBERS)
    for place in (0, 7, 299):
        for wrong in {N, most, np.iinfo(dtype).min} - {0}:
            other = rows.astype(dtype)
            other[place] = wrong
            assert made.at(NUMBERS, other)[0] == ANOTHER_LENGTH
    status, found = made.at(NUMBERS, rows[::-1].astype(dtype))
    assert status == SUCCESS
    np.testing.assert_array_equal(found[:300], NUMBERS[rows[::-1]])


def test_checks_of_indices_have_the_order_of_the_steps() -> None:
    """Else equal functions of two processes would be different code."""
    tables = [View.whole(Buffer(n, "float64"), (n,)) for n in range(3, 23)]
    indices = [View.whole(Buffer(2, "int64"), (2,)) for _ in tables]
    out = View.whole(Buffer(2, "float64"), (2,))
    steps = [Gather((2,), [i], t, (0,), (), out) for t, i in zip(tables, indices, strict=True)]
    found = bounds_of(steps, {i.buffer: np.array([0, 2]) for i in indices})
    assert [buffer for buffer, _ in found] == [i.buffer for i in indices]


def test_an_assertion_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    function = Made(lambda x: [assert_op(x * 2.0, x.sum() > -1, pt.neq(x, 3.5).all())])
    monkeypatch.setattr(function, "plain", lambda point: point)
    assert function.at(NUMBERS)[0] == SUCCESS
    assert function.at(-NUMBERS)[0] == FAILED
    assert function.at(np.append(NUMBERS[1:], 3.5))[0] == FAILED


def test_data_of_other_lengths_are_refused() -> None:
    made = Made(lambda x, m: [pt.dot(m, x[:6])], M)
    other = np.random.default_rng(5).normal(size=M.shape)
    status, found = made.at(NUMBERS, other)
    assert status == SUCCESS
    np.testing.assert_allclose(found, other @ NUMBERS[:6])
    for wrong in (M[:4], M[:, :3].copy(), np.vstack([M, M])):
        assert made.at(NUMBERS, wrong)[0] == ANOTHER_LENGTH


def test_a_graph_has_no_code_for_data_that_its_types_or_operations_refuse() -> None:
    """PyTensor's gradients repeat no elements of data whose lengths are open."""
    x, open_, closed = pt.vector("x", shape=(2,)), pt.vector("open"), pt.vector(shape=(3,))
    outputs = [x.sum(), x * (open_ * closed).sum()]
    flat = Flat.of(FunctionGraph([x, open_, closed], outputs))
    places = [Place.of(np.zeros(3), 2 * at, 2 * at + 1) for at in range(2)]
    c_function(flat, [np.ones(3), np.ones(3)], places, [2])
    for one, other, reason in (
        (np.ones(1), np.ones(3), "repeat"),
        (np.ones(3), np.ones(2), "shape"),
        (np.ones(4), np.ones(4), "shape"),
        (np.ones(3, np.float32), np.ones(3), "float32"),
        (np.ones((3, 1)), np.ones(3), "shape"),
        (np.ones(2), np.ones(3), "broadcast"),
    ):
        with pytest.raises(UnfitError, match=reason):
            c_function(flat, [one, other], places, [2])
    with pytest.raises(UnfitError, match="not 3 numbers"):
        c_function(flat, [np.ones(3), np.ones(3)], places, [2, 3])


LENGTHS: dict[str, tuple[Callable[..., Any], np.ndarray, np.ndarray]] = {
    "filled": (lambda x, n: pt.cumsum(pt.alloc(x[0], n)), np.array(4), np.array(5)),
    "shaped": (
        lambda x, n: pt.cumsum(x.reshape(n, ndim=2), axis=0),
        np.array([2, 5]),
        np.array([5, 2]),
    ),
    "divided": (
        lambda x, n: pt.split(x, n, n_splits=2)[0],
        np.array([4, 6], np.int8),
        np.array([6, 4], np.int8),
    ),
    "specified": (lambda x, n: pt.specify_shape(x, (n,)), np.array(N), np.array(N - 1)),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_data_that_are_other_lengths_are_refused(name: str) -> None:
    build, data, others = LENGTHS[name]
    made = Made(lambda x, n: [build(x, n)], data)
    made.check(NUMBERS)
    assert made.at(NUMBERS, data.copy())[0] == SUCCESS
    assert made.at(NUMBERS, others)[0] == ANOTHER_LENGTH


def test_lengths_that_follow_from_the_point_are_left_to_numba() -> None:
    with pytest.raises(UnfitError, match="lengths"):
        Made(lambda x: [pt.cumsum(pt.alloc(x[0], (x[1] > 0).astype("int64") + 3))])


def test_another_length_of_the_point_is_refused() -> None:
    made = Made(lambda x: [x])
    made.length = N + 1
    assert made.at(NUMBERS)[0] == ANOTHER_LENGTH


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_have_a_status(value: float) -> None:
    x = pt.vector("x", shape=(2,))
    function = c_function(Flat.of(FunctionGraph([x], [x[0] * 2.0, x + 1.0])), [], [], [2])
    kinds = [ctypes.c_int64, *[ctypes.c_void_p] * 4]
    call = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(function.address)
    gradient, logp, record = np.zeros(2), np.zeros(1), np.zeros(1)

    def status(*point: float) -> int:
        given = np.array(point)
        pointers = [each.ctypes.data for each in (given, gradient, logp, record)]
        return int(call(2, *pointers))

    assert status(1.0, value) == NOT_FINITE_GRADIENT
    assert status(1.0, 2.0) == SUCCESS
    np.testing.assert_array_equal([*logp, *gradient], [2.0, 2.0, 3.0])
    large = 1e308  # twice as much is infinite
    assert status(large, 0.0) == NOT_FINITE_VALUE


@pytest.mark.parametrize(
    "build",
    [
        lambda x: [pt.linalg.det(pt.outer(x, x) + pt.eye(N))],
        lambda x: [x[pt.argmax(x) :]],
        lambda x: [pt.sort(x)],
        lambda x: [pt.kve(abs(x) + 1, abs(x))],
    ],
)
def test_other_operations_are_left_to_numba(build: Callable[..., Sequence[Any]]) -> None:
    with pytest.raises(UnfitError):
        Made(build)


def test_large_data_are_left_to_numba() -> None:
    with pytest.raises(UnfitError, match="large"):
        Made(lambda x, m: [pt.exp(m).sum() * x], np.zeros(2**18 + 1))


def test_code_that_computes_something_else_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernels = functions.kernels

    def fewer(steps: Any, wanted: Any) -> Any:
        return kernels(steps, wanted)[:-1]

    monkeypatch.setattr(functions, "kernels", fewer)
    with pytest.raises(UnfitError, match="differ"):
        Made(lambda x: [pt.cumsum(x) * 2.0])
    assert "numba" in caplog.text
