"""The comparison before use: it sees each wrong part, and not the rounding of other graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from comparing import check_equal, evaluated, plainly, points
from pytensor.graph.traversal import ancestors
from selection import thorough

import synkhronos as synk
from synkhronos._compiling.python_mode import python_mode
from synkhronos.pymc._density import likelihood as _likelihood
from synkhronos.pymc._reading import rows as _rows


def gaussian_process(rows: int) -> pm.Model:
    draw = np.random.default_rng(0)
    with pm.Model() as model:
        ell, eta = pm.Gamma("ell", 2, 1), pm.HalfCauchy("eta", 3)
        process = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ell))
        f = process.prior("f", X=np.linspace(0, 10, rows)[:, None])
        pm.StudentT("y", mu=f, lam=1, nu=4, observed=draw.normal(size=rows))
    return model


def test_a_graph_before_the_parts_may_enlarge_rounding_errors() -> None:
    """A covariance's decomposition does, by seven orders of magnitude and more."""
    with synk.Group(2), synk.pymc.parallel(gaussian_process(100)) as parallel:
        assert parallel.names == ["y"]


def test_sources_that_are_computed_from_one_another_behind_such_a_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Members need a parameter as it is, and what is computed from it beside the process."""
    monkeypatch.setattr(_rows, "_FEW", 0)  # else members compute the second from the first
    draw = np.random.default_rng(8)
    with pm.Model() as model:
        ell, eta = pm.Gamma("ell", 2, 1), pm.HalfNormal("eta", 5)
        process = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ell))
        f = process.prior("f", X=np.linspace(0, 10, 60)[:, None])
        nu, sigma = 1 + pm.Gamma("nu", 2, 0.1), pm.HalfNormal("sigma", 2)
        pm.StudentT("y", mu=f, lam=1 / sigma, nu=nu, observed=5 * draw.normal(size=60))
    with synk.Group(2), synk.pymc.parallel(model) as parallel:
        likelihood = parallel._evaluator.likelihood  # type: ignore[union-attr]
        assert _proof_nested(likelihood)


def _proof_nested(likelihood: Any) -> bool:
    """Whether a source is computed from another one, and members compute none of them."""
    sources = [*(p.variable for p in likelihood.pieces), *(v for v, _ in likelihood.places)]
    below = {v for s in sources for v in ancestors([s]) if v is not s}
    return bool(below & set(sources)) and not likelihood.computed & set(sources)


def test_a_small_error_behind_such_a_graph_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = _likelihood._joined

    def wrong(total: object, slots: list[tuple[int, object]]) -> object:
        return joined(total * (1 + 1e-8), slots)  # type: ignore[operator]

    monkeypatch.setattr(_likelihood, "_joined", wrong)
    with synk.Group(2), pytest.raises(synk.InputError, match="the log-density is -"):
        synk.pymc.parallel(gaussian_process(50))


def test_a_variable_that_is_needed_whole_and_by_rows() -> None:
    """Its gradient has a part of each kind."""
    draw = np.random.default_rng(1)
    with pm.Model() as model:
        effect = pm.Normal("effect", shape=20)
        group = draw.integers(0, 20, 20)
        pm.Normal("y", effect + effect[group], 1, observed=draw.normal(size=20))
    at = points(model, 2)
    plain = plainly(model, at)
    with synk.pymc.parallel(model, members=3) as parallel:
        likelihood = parallel._evaluator.likelihood  # type: ignore[union-attr]
        assert likelihood.size == 20
        assert len(likelihood.places) == 1
        check_equal(plain, evaluated(model, at))


def mean_of_outer_product() -> pm.Model:
    """Members need all rows of an expression, and their own rows of the parameter in it."""
    draw = np.random.default_rng(1)

    def logp(value: Any, b: Any) -> Any:
        rest = pt.switch(value > b, value - b, 0.3 * (value - b))
        return -pt.sqr(pt.outer(rest, rest).mean(axis=0))

    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("b", shape=7), logp=logp, observed=draw.normal(size=7))
    return model


def test_what_members_need_whole_is_computed_from_what_has_rows() -> None:
    model = mean_of_outer_product()
    at = points(model, 2)
    plain = plainly(model, at)
    with synk.pymc.parallel(model, members=3) as parallel:
        likelihood = parallel._evaluator.likelihood  # type: ignore[union-attr]
        assert (likelihood.size, len(likelihood.places)) == (7, 1)
        check_equal(plain, evaluated(model, at))


def test_a_wrong_gradient_of_such_a_model_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = _likelihood._gradients
    monkeypatch.setattr(
        _likelihood, "_gradients", lambda *given: [g * (1 + 1e-7) for g in gradients(*given)]
    )
    with synk.Group(2), pytest.raises(synk.InputError, match="the gradient by b is "):
        synk.pymc.parallel(mean_of_outer_product())


def only_at_the_start() -> pm.Model:
    """A thousand latents: a point at which none of them is out of bounds lies near the start."""

    def logp(value: Any, x: Any) -> Any:
        return pt.log(1e-3 - pt.sqr(value - x))

    with pm.Model() as model:
        x = pm.Normal("x", shape=1000, initval=np.full(1000, 3.0))
        pm.CustomDist("y", x, logp=logp, observed=np.full(1000, 3.01))
    return model


def start_out_of_bounds() -> pm.Model:
    """Cut points that start all at the same value, which have no order."""
    draw = np.random.default_rng(3)
    with pm.Model() as model:
        ordered = pm.distributions.transforms.ordered
        cuts = pm.Normal("cuts", 0, 1, shape=6, transform=ordered)
        eta = pm.Normal("b") * draw.normal(size=31)
        pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, observed=draw.integers(0, 7, 31))
    return model


@pytest.mark.parametrize("make", [only_at_the_start, start_out_of_bounds])
def test_models_that_are_finite_at_few_points(make: Callable[[], pm.Model]) -> None:
    model = make()
    zero = {k: np.where(np.isfinite(v), v, 0) for k, v in model.initial_point(0).items()}
    plain = evaluated(model, [zero])
    with synk.pymc.parallel(model, members=2):
        check_equal(plain, evaluated(model, [zero]))


def test_what_is_finite_nowhere_is_named() -> None:
    data = np.random.default_rng(4).normal(size=40)
    data[3:8] = np.nan
    with pm.Model() as model:
        mu, start = pm.Normal("mu"), pm.Normal("start", initval=np.inf)
        pm.Normal("far", start * np.ones(40), 1, observed=np.ones(40))
        pm.Normal("y", mu, 1, observed=pt.constant(data))
    with (
        synk.Group(2),
        pytest.raises(synk.InputError, match="of far, y or its gradient is not finite") as found,
    ):
        synk.pymc.parallel(model)
    for said in (
        "the initial value of start is not finite",
        "40 of 40 values of the log-density of far are -inf",
        "5 of 40 values of the log-density of y are nan",
        "y has 5 NaN among its 40 observed values. So the log-density",
    ):
        assert said in str(found.value)


def many_values() -> tuple[pm.Model, list[str]]:
    """An expression of more values than numpy's functions take, 32, and as many Potentials."""
    draw, many = np.random.default_rng(5), range(33)
    with pm.Model() as model:
        b = pm.Normal("b", shape=len(many))
        mu = pt.add(*[b[i] * pm.Data(f"x{i}", draw.normal(size=9)) for i in many])
        pm.Normal("y", mu, 1, observed=pt.add(*[pm.Data(f"y{i}", np.ones(9)) for i in many]))
        for i in many:
            pm.Potential(f"p{i}", (-((b[i] - draw.normal(size=9)) ** 2)).sum())
    return model, ["y", *[f"p{i}" for i in many]]


@pytest.mark.thorough  # of sums: test_python_mode.py
def test_the_proof_needs_no_compiler_for_sums_of_more_values_than_numpy_takes() -> None:
    model, names = many_values()
    mode = python_mode("canonicalize", "stabilize")
    at = points(model, 1)
    plain = evaluated(model, at, mode)
    with synk.pymc.parallel(model, members=2, mode=mode) as parallel:
        assert parallel.names == names
        check_equal(plain, evaluated(model, at, mode))


@pytest.mark.parametrize("name", ["long", *thorough("f(a, b)")])
def test_names_that_are_also_those_of_dtypes(name: str) -> None:
    draw = np.random.default_rng(2)
    with pm.Model() as model:
        x = pm.Data("double", draw.normal(size=20))
        half, scale = pm.Normal("half", shape=20), pm.HalfNormal("int")
        pm.Normal(name, half * x, scale, observed=pm.Data("short", draw.normal(size=20)))
    at = points(model, 2)
    plain = plainly(model, at)
    with synk.pymc.parallel(model, members=2):
        check_equal(plain, evaluated(model, at))
