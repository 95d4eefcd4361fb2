"""Machine code of operations on matrices, at points that the code was not compared at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest
from selection import thorough
from written_code import Made, N

from synkhronos._compiling.direct.unfit import UnfitError
from synkhronos._compiling.lean.c_functions import FAILED, SUCCESS
from synkhronos._compiling.lean.covariances import CovarianceGradient

R = np.random.default_rng(11)
POINTS = R.normal(size=(3, N))
LENGTHS = (1, 5, 8, 9, 40)  # of one register and less, of several, and of more than add up at once


def _covariance(n: int) -> np.ndarray:
    """A matrix whose triangles are those of two different covariances."""
    first, second = (a @ a.T / n + np.eye(n) for a in R.normal(size=(2, n, n)))
    return np.tril(first) + np.triu(second, 1)


def _positive(x: Any, c: Any) -> Any:
    return c * (1.0 + pt.sqr(x[0])) + pt.eye(c.shape[-1]) * pt.exp(0.2 * x[1])


def _factors(x: Any, c: Any) -> list[Any]:
    matrix = _positive(x, c)
    return [pt.linalg.cholesky(matrix, lower=lower) for lower in (True, False)]


def _solutions(x: Any, c: Any, b: Any) -> list[Any]:
    matrix, found = _positive(x, c), []
    lower, upper = pt.linalg.cholesky(matrix), pt.linalg.cholesky(matrix, lower=False)
    for right, ndim in ((b[:, 0] * x[2], 1), (b * x[2], 2), (b[:, 2:3] * x[3], 2)):
        for triangle, is_lower in ((lower, True), (upper, False), (matrix, True), (matrix, False)):
            found += [
                pt.linalg.solve_triangular(triangle, right, lower=is_lower, b_ndim=ndim),
                pt.linalg.solve_triangular(triangle, right, lower=is_lower, trans=1, b_ndim=ndim),
            ]
        found += [
            pt.linalg.solve_triangular(
                c, right, lower=is_lower, unit_diagonal=True, trans=trans, b_ndim=ndim
            )
            * 1e-3
            for is_lower in (True, False)
            for trans in (0, 1)
        ]
        found += [
            pt.linalg.cho_solve((lower, True), right, b_ndim=ndim),
            pt.linalg.cho_solve((upper, False), right, b_ndim=ndim),
        ]
    return found


def _parts(x: Any, c: Any) -> list[Any]:
    """Parts of factors are no factors of as many rows; a factor's other triangle is of zeros."""
    factor = pt.linalg.cholesky(_positive(x, c))
    right = pt.ones(6) * x[0]
    return [
        pt.linalg.solve_triangular(factor[:6, :6], right, lower=True, b_ndim=1),
        pt.linalg.solve_triangular(factor[1:7, 1:7], right, lower=True, b_ndim=1),
        pt.linalg.solve_triangular(factor[1:7, 1:7].T, right, lower=False, b_ndim=1),
        pt.linalg.solve_triangular(factor.T, pt.ones(9) * x[0], lower=True, b_ndim=1),
        pt.exp(factor * 0.1).sum(axis=0) + factor.T.reshape((3, 27)).sum(),
    ]


def _gradient(x: Any, c: Any, rows: Any) -> list[Any]:
    factor = pt.linalg.cholesky(_positive(x, c))
    weights = x[: rows.type.shape[0] or 3]
    return [
        CovarianceGradient.of(factor, pt.exp(x[4]), rows, weights),
        CovarianceGradient.of(factor * pt.tri(factor.shape[0]) + 0.0, x[5], rows * x[6], weights),
    ]


FORMS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    **{f"factors of {n}": (_factors, (_covariance(n),)) for n in LENGTHS},
    **{f"solutions of {n}": (_solutions, (_covariance(n), R.normal(size=(n, 3)))) for n in LENGTHS},
    "solutions of many columns": (
        lambda x, c, b: [
            pt.linalg.solve_triangular(c * x[0], b, lower=lower, trans=trans, b_ndim=2)
            for lower in (True, False)
            for trans in (0, 1)
        ],
        (_covariance(9), R.normal(size=(9, 45))),
    ),
    "parts of factors": (_parts, (_covariance(9),)),
    "batches": (
        lambda x, c, b: [
            pt.linalg.cholesky(_positive(x, c)),
            pt.linalg.solve_triangular(
                pt.linalg.cholesky(_positive(x, c)), b * x[2], lower=True, b_ndim=1
            ),
            pt.linalg.solve_triangular(
                pt.linalg.cholesky(_positive(x, c[0]))[None], b.mT, lower=True, b_ndim=2
            ),
            pt.matmul(c * x[0], b[1, 1]),
            pt.matmul(c * x[0], c[::-1, :, ::-1]),
        ],
        (np.stack([_covariance(9) for _ in range(3)]), R.normal(size=(2, 3, 9))),
    ),
    "diagonals": (
        lambda x, m: [
            *[pt.diagonal(m * x[0], offset=offset) for offset in (-2, 0, 1, 3)],
            pt.diagonal((m * x[0]).T, offset=-1),
            pt.diagonal(m[None] * x[:3, None, None], offset=1, axis1=1, axis2=2),
            pt.diagonal(m[None] * x[:3, None, None], offset=1, axis1=2, axis2=0),
        ],
        (R.normal(size=(4, 6)),),
    ),
    "triangles": (
        lambda x, m: [
            *[pt.tril(m * x[0], k) for k in (-1, 0, 2)],
            pt.triu(m * x[0], 1),
            pt.eye(3, 4, k=1) * x[1],
            pt.tri(4, 3, k=-1, dtype="int8") * x[2],
        ],
        (R.normal(size=(4, 6)),),
    ),
    **{
        f"gradients by covariances of {n}": (_gradient, (_covariance(n), R.normal(size=(3, n))))
        for n in LENGTHS
    },
    "products by BLAS": (
        lambda x, m: [
            pt.dot(m, pt.exp(m[0] * x[0])),
            pt.dot(m.T, m[:, 0] * x[0]),
            pt.dot(m[:, 0] * x[0], m),
            pt.dot(m[::2, ::2], pt.exp(m[0, ::2] * x[0])),
            pt.dot(m[:200, ::2].T, m[::-1, 3][:200] * x[1]),
            pt.dot(m[:40] * x[0], m[100:].T),
            pt.dot((m[:40] * x[0]).T, m[60:100]),
            pt.dot((m[:40] * x[0])[:, ::2], (m[:30] * 2.0)[:, ::2].T),
            pt.dot(m, m[:1].T * x[1]),
            pt.dot(m[:, :1].T * x[1], m),
            pt.matmul(m.reshape((3, 100, 100)) * x[2], m[0, :100] * 2.0),
        ],
        (R.normal(size=(300, 100)),),
    ),
}


THOROUGH = {"solutions of 8"}  # of 9: a whole register and a rest


@pytest.mark.parametrize("name", [*(n for n in FORMS if n not in THOROUGH), *thorough(*THOROUGH)])
def test_forms_of_matrices(name: str) -> None:
    build, data = FORMS[name]
    Made(build, *data).check(*POINTS)


@pytest.mark.parametrize("n", [5, 9, 40])
@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan])
def test_a_matrix_that_is_not_positive_definite_has_no_factor(n: int, wrong: float) -> None:
    c = _covariance(n)
    made = Made(lambda x, c: _factors(x, c), c)
    c = c.copy()
    c[n - 2, n - 2] = wrong
    point = np.zeros(N)
    point[1] = -np.inf  # nothing is added to the diagonal
    _, found = made.at(point, c)
    assert np.isnan(found).all()


@pytest.mark.parametrize("ndim", [1, 2])
def test_a_triangle_with_a_zero_has_no_solution(ndim: int) -> None:
    def build(x: Any, c: Any, b: Any) -> list[Any]:
        return [
            pt.linalg.solve_triangular(c, b * x[0], lower=lower, unit_diagonal=unit, b_ndim=ndim)
            for lower in (True, False)
            for unit in (False, True)
        ]

    c, b = _covariance(9), R.normal(size=(9, 4)[:ndim])
    made = Made(build, c, b)
    singular = c.copy()
    singular[4, 4] = 0.0
    _, found = made.at(np.ones(N), singular, b)
    expected = made.plain(np.ones(N), singular, b)
    np.testing.assert_allclose(found, expected)
    assert np.isnan(found).reshape(4, -1).all(axis=1).tolist() == [True, False, True, False]


def test_a_number_that_is_none_changes_only_what_depends_on_it() -> None:
    """Also where it is next to others in a register."""

    def build(x: Any, c: Any) -> list[Any]:
        return [
            pt.linalg.solve_triangular(c, x[:9], lower=lower, b_ndim=1) for lower in (True, False)
        ]

    made = Made(build, _covariance(9))
    for at in range(9):
        point = np.arange(1.0, N + 1)
        point[at] = np.inf
        _, found = made.at(point)
        finite = np.isfinite(found).reshape(2, 9)
        assert finite[0].tolist() == [i < at for i in range(9)]
        assert finite[1].tolist() == [i > at for i in range(9)]


def test_products_of_blas_have_a_status() -> None:
    made = Made(lambda x, m: [pt.dot(m, m[0] * x[0])], R.normal(size=(200, 100)))
    assert made.at(POINTS[0])[0] == SUCCESS != FAILED


@pytest.mark.parametrize(
    "build",
    [
        lambda x, c: [pt.linalg.cholesky(c * x[0])],
        lambda x, c: [pt.linalg.solve_triangular(c, c[0] * x[0], lower=True)],
        lambda x, c: [pt.linalg.cholesky(c[:9, :9].astype("float32")) * x[0]],
        lambda x, c: [pt.dot(c.astype("float32"), c[0].astype("float32")) * x[0]],
    ],
)
def test_large_matrices_and_single_numbers_are_left_to_numba(build: Callable[..., Any]) -> None:
    with pytest.raises(UnfitError):
        Made(build, _covariance(129))
