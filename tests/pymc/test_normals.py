"""Multivariate normals whose covariance depends on parameters: the gradient in closed form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from comparing import IN_PYTHON, check_equal, evaluated, plainly, points
from pytensor.gradient import hessian_vector_product
from pytensor.graph.traversal import toposort
from rewritten import compiled, in_python
from selection import thorough

import synkhronos as synk
from synkhronos._compiling.lean.covariances import CovarianceGradient
from synkhronos._compiling.lean.mode import without_c
from synkhronos._libraries.nutpie import NUTPIE
from synkhronos.pymc._density import gain
from synkhronos.pymc._density.divided import Divided
from synkhronos.pymc._density.late_arviz import import_nutpie
from synkhronos.pymc._density.normals import _Normal, with_normals


@pytest.fixture(autouse=True)
def as_ever(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTensor folds constants in Python, and terms of few rows are not divided."""
    monkeypatch.setattr(gain, "FEW_ROWS", 2000)
    with without_c("NUMBA"):
        yield


X = np.linspace(0, 3, 6)
ROWS = np.random.default_rng(1).normal(size=(5, 6))


def covariance(scale: Any, noise: Any) -> Any:
    return scale**2 * pt.exp(-((X[:, None] - X) ** 2) / 2) + noise**2 * pt.eye(6)


def parameters() -> tuple[Any, Any, Any]:
    return pm.HalfNormal("scale"), pm.HalfNormal("noise"), pm.Normal("mu")


def marginal() -> None:
    scale, noise, _ = parameters()
    process = pm.gp.Marginal(cov_func=scale**2 * pm.gp.cov.ExpQuad(1, 1.0))
    process.marginal_likelihood("y", X=X[:, None], y=ROWS[0], sigma=noise)


def one_row() -> None:
    scale, noise, mu = parameters()
    pm.MvNormal("y", mu, cov=covariance(scale, noise), observed=ROWS[0])


def several_rows() -> None:
    scale, noise, mu = parameters()
    pm.MvNormal("y", mu * X, cov=covariance(scale, noise), observed=ROWS)


def of_parameters() -> None:
    scale, noise, mu = parameters()
    cov = covariance(scale, noise)
    pm.MvNormal("y", pm.MvNormal("z", 0, cov=cov), cov=cov + mu**2, observed=ROWS[0])


def made(write: Callable[[], None]) -> pm.Model:
    with pm.Model() as model:
        write()
    return model


def is_closed(model: pm.Model) -> bool:
    return has_closed_form(model.logp())


def has_closed_form(graph: Any) -> bool:
    return any(isinstance(node.op, _Normal) for node in toposort([graph]))


def products(model: pm.Model, at: dict[str, np.ndarray], along: Sequence[float]) -> list[Any]:
    """Products of the Hessian with a vector."""
    values = model.value_vars
    vectors = [v.type() for v in values]
    found = hessian_vector_product(model.logp(), values, vectors)
    evaluate = pytensor.function(
        [*values, *vectors], found, mode=IN_PYTHON, on_unused_input="ignore"
    )
    given = [np.full(at[v.name].shape, each) for v, each in zip(values, along, strict=False)]
    return evaluate(*[at[v.name] for v in values], *given)


def other_functions() -> None:
    scale, noise, mu = parameters()
    cov = covariance(scale, noise)
    pm.MvNormal("y", mu, cov=cov, observed=ROWS[0])
    pm.Potential("more", pt.linalg.cholesky(cov)[1, 0])


def of_two() -> None:
    off = pm.Normal("off")
    pm.MvNormal("y", 0, cov=pt.stacklists([[1.0, off], [off, 1.0]]), observed=ROWS[0, :2])


MORE = thorough(marginal, one_row, of_parameters, other_functions)


@pytest.mark.parametrize("write", [several_rows, *MORE])
def test_values_and_gradients_are_the_plain_ones(write: Callable[[], None]) -> None:
    model = made(write)
    copy = synk.pymc.fast(model)
    assert is_closed(copy)
    at = points(model, 3)
    check_equal(plainly(model, at), evaluated(copy, at), 1e-10)


@pytest.mark.parametrize("write", [of_two, *thorough(several_rows), *MORE])
def test_second_derivatives_are_the_plain_ones(write: Callable[[], None]) -> None:
    model = made(write)
    [at] = points(model, 1)
    plain, closed = (products(m, at, (1, 2, 3, 4)) for m in (model, synk.pymc.fast(model)))
    for one, other in zip(plain, closed, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-8)


@pytest.mark.thorough  # of those that are not: the test above
def test_second_derivatives_of_rows_that_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the scale s of s C: N / (2 s^2) - q / s^3, where q is the sum of forms of N numbers."""
    monkeypatch.setattr(gain, "FEW_ROWS", 0)
    fixed = np.cov(np.random.default_rng(2).normal(size=(6, 50)))
    with pm.Model() as model:
        scale, factor = pm.Flat("scale", initval=2.0), pm.Flat("factor", initval=1.0)
        pm.MvNormal("y", 0, cov=scale * factor * fixed, observed=ROWS)
    copy = synk.pymc.fast(model)
    assert isinstance(vars(copy)["logp"], Divided)
    at = {"scale": np.array(2.0), "factor": np.array(1.0)}
    [by_scale, _] = products(copy, at, (1.0, 0.0))
    forms = np.einsum("ki,ij,kj->", ROWS, np.linalg.inv(fixed), ROWS)
    np.testing.assert_allclose(by_scale, ROWS.size / 8 - forms / 8, rtol=1e-10)


def test_the_gradient_is_that_of_the_formula() -> None:
    """d = (a' dK a - tr(inv(K) dK)) / 2 with a = inv(K) y, and the normal's own of the mean."""
    copy = synk.pymc.fast(made(one_row))
    at = {"scale_log__": np.array(0.2), "noise_log__": np.array(-0.7), "mu": np.array(0.3)}
    scale, noise = np.exp(0.2), np.exp(-0.7)
    smooth = scale**2 * np.exp(-((X[:, None] - X) ** 2) / 2)
    inverse = np.linalg.inv(smooth + noise**2 * np.eye(6))
    a = inverse @ (ROWS[0] - 0.3)

    def along(change: np.ndarray) -> float:
        return float(a @ change @ a - np.trace(inverse @ change)) / 2

    expected = [
        along(2 * smooth) + 1 - scale**2,
        along(2 * noise**2 * np.eye(6)) + 1 - noise**2,
        a.sum() - 0.3,
    ]
    gradient = copy.compile_dlogp(mode=IN_PYTHON)(at)
    np.testing.assert_allclose(gradient, expected, rtol=1e-10)


def test_a_covariance_that_is_not_positive_definite_has_no_density() -> None:
    """Where plain has -inf or NaN, so has the copy."""
    model = made(of_two)
    copy = synk.pymc.fast(model)
    assert is_closed(copy)
    at = [{"off": np.array(v)} for v in (0.5, 2.0, 1.0, np.nan)]
    plain, closed = evaluated(model, at), evaluated(copy, at)
    check_equal(plain[:1], closed[:1], 1e-10)
    assert plain[1][0] == -np.inf
    for (value, gradient), (other, slope) in zip(plain[1:], closed[1:], strict=True):
        assert value == other or (np.isnan(value) and np.isnan(other))
        assert not np.isfinite(gradient).any()
        assert not np.isfinite(slope).any()


@pytest.mark.thorough
def test_only_the_lower_triangle_counts() -> None:
    """LAPACK reads no other: a covariance that is not symmetric has the same gradient as before."""
    with pm.Model() as model:
        low, high = pm.Normal("low"), pm.Normal("high")
        cov = pt.stacklists([[2.0, high], [low, 1.0]])
        pm.MvNormal("y", 0, cov=cov, observed=ROWS[0, :2])
    copy = synk.pymc.fast(model)
    assert is_closed(copy)
    at = [{"low": np.array(0.3), "high": np.array(-0.6)}]
    check_equal(evaluated(model, at), evaluated(copy, at), 1e-10)


def constant() -> None:
    pm.MvNormal("y", pm.Normal("mu"), cov=np.eye(6), observed=ROWS[0])


def settable() -> None:
    pm.MvNormal("y", pm.Normal("mu"), cov=pm.Data("cov", np.eye(6)), observed=ROWS[0])


def factor_of_parameters() -> None:
    chol, *_ = pm.LKJCholeskyCov("c", n=6, eta=2, sd_dist=pm.Exponential.dist(1))
    pm.MvNormal("y", 0, chol=chol, observed=ROWS[0])


def of_its_factor() -> None:
    scale, noise, mu = parameters()
    chol = pt.linalg.cholesky(covariance(scale, noise))
    pm.MvNormal("y", mu, chol=chol, observed=ROWS[0])


def batches() -> None:
    scale, noise, mu = parameters()
    cov = covariance(scale, noise)
    pm.MvNormal("y", mu, cov=pt.stack([cov, 2 * cov]), observed=ROWS[:2])


def many_rows() -> None:
    scale, noise, mu = parameters()
    pm.MvNormal("y", mu, cov=covariance(scale, noise), observed=np.tile(ROWS, (2, 1)))


def precision() -> None:
    scale, noise, mu = parameters()
    pm.MvNormal("y", mu, tau=covariance(scale, noise), observed=ROWS[0])


@pytest.mark.parametrize(
    "write",
    [
        constant,
        settable,
        many_rows,
        factor_of_parameters,
        *thorough(of_its_factor, batches, precision),
    ],
)
def test_what_gains_nothing_stays(write: Callable[[], None]) -> None:
    model = made(write)
    assert with_normals(plain := model.logp(), model.value_vars) is plain
    if write in (constant, settable):
        assert "logp" not in vars(synk.pymc.fast(model))


@in_python
@pytest.mark.parametrize("dtype", ["float64", *thorough("float32")])
def test_the_gradient_by_a_covariance(made: Any, dtype: str) -> None:
    """Of both triangles together, for lengths that loops and LAPACK are for."""
    factor, rows = (pt.tensor(dtype=dtype, shape=(None, None)) for _ in range(2))
    scale, weights = pt.tensor(dtype=dtype, shape=()), pt.tensor(dtype=dtype, shape=(None,))
    given = [factor, scale, rows, weights]
    compute = made(given, [CovarianceGradient.of(*given)])
    rng = np.random.default_rng(0)
    for n, count in ((0, 1), (1, 1), (2, 0), (7, 3), (11, 1), (130, 2)):
        root, a, w = rng.normal(size=(n, n)), rng.normal(size=(count, n)), rng.normal(size=count)
        matrix = root @ root.T + np.eye(n)
        whole = -0.5 * np.linalg.inv(matrix) + (a.T * w) @ a
        chol = np.linalg.cholesky(matrix).astype(dtype)
        for each in (chol, np.asfortranarray(chol)):
            [found] = compute(each, np.array(-0.5, dtype), a.astype(dtype), w.astype(dtype))
            assert found.dtype == dtype
            rtol = {"float64": 1e-10, "float32": 1e-3}[dtype]
            np.testing.assert_allclose(
                found, np.tril(whole) + np.tril(whole, -1), rtol=rtol, atol=rtol
            )
    one = np.ones((1, 3), dtype)
    for n in (3, 130):
        nothing = np.full((n, n), np.nan, dtype)
        [found] = compute(nothing, np.array(1, dtype), np.ones((1, n), dtype), one[0, :1])
        assert np.isnan(found[np.tril_indices(n)]).all()


@pytest.mark.thorough
def test_lengths_that_do_not_fit() -> None:
    given = [pt.matrix(), pt.scalar(), pt.matrix(), pt.vector()]
    compute = compiled(given, [CovarianceGradient.of(*given)])
    with pytest.raises(ValueError, match="do not fit"):
        compute(np.eye(3), np.array(1.0), np.ones((1, 4)), np.ones(1))


class ReachedError(Exception):
    """The log-density that nutpie is to compile."""


@pytest.mark.parametrize("backend", ["numba", *thorough("jax")])
def test_sample_has_the_closed_form(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """The model itself keeps PyMC's log-density; modes other than NUMBA keep it, too."""
    pytest.importorskip("nutpie")

    def make(model: Any, **_: Any) -> None:
        raise ReachedError(model.logp())

    import_nutpie()
    restore = NUTPIE.replace({"_make_functions": make})
    monkeypatch.setattr(gain, "FEW_ROWS", 2000)
    model = made(marginal)
    given: dict[str, Any] = {"nuts_sampler": "nutpie", "backend": backend, "keep": False}
    try:
        with pytest.raises(ReachedError) as found:
            synk.pymc.sample(model, progressbar=False, quiet=True, **given)
    finally:
        restore()
    [graph] = found.value.args
    assert has_closed_form(graph) == (backend == "numba")
    assert "logp" not in vars(model)


def test_lengths_that_are_set_have_the_plain_gradient() -> None:
    """Also that of no observations."""
    with pm.Model() as model:
        place, rows = pm.Data("place", np.arange(4.0)), pm.Data("rows", ROWS[0, :4])
        near = pt.exp(-((place[:, None] - place) ** 2))
        cov = pm.HalfNormal("scale") ** 2 * near + pt.eye(place.shape[0])
        pm.MvNormal("y", 0, cov=cov, observed=rows)
    copy, at = synk.pymc.fast(model), [{"scale_log__": np.array(0.3)}]
    assert is_closed(copy)
    for n in (3, 0):
        for each in (model, copy):
            with each:
                pm.set_data({"place": np.arange(float(n)), "rows": ROWS[1, :n]})
        check_equal(evaluated(model, at), evaluated(copy, at), 1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["NUMBA", "JAX"])
@pytest.mark.parametrize("write", [marginal, several_rows, of_parameters])
def test_modes_agree(mode: str, write: Callable[[], None]) -> None:
    if mode == "JAX":
        pytest.importorskip("jax")
    model = made(write)
    copy = synk.pymc.fast(model)
    at = points(model, 2)
    check_equal(plainly(model, at), evaluated(copy, at, mode), 1e-10)


@pytest.mark.thorough
def test_single_precision() -> None:
    with pytensor.config.change_flags(floatX="float32"):
        model = made(several_rows)
        copy = synk.pymc.fast(model)
        assert is_closed(copy)
        at = points(model, 1)
        at = [{k: v.astype("float32") for k, v in each.items()} for each in at]
        [(value, gradient)] = evaluated(model, at)
        [(other, slope)] = evaluated(copy, at)
    np.testing.assert_allclose(other, value, rtol=1e-5)
    np.testing.assert_allclose(slope, gradient, rtol=1e-3)
