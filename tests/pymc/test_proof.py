"""The comparison before use: it sees each wrong part, and not the rounding of other graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from comparing import check_equal, evaluated, points

import synkhronos as synk
from synkhronos.pymc import _likelihood


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
    plain = evaluated(model, at)
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
    plain = evaluated(model, at)
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


@pytest.mark.parametrize("name", ["long", "f(a, b)"])
def test_names_that_are_also_those_of_dtypes(name: str) -> None:
    draw = np.random.default_rng(2)
    with pm.Model() as model:
        x = pm.Data("double", draw.normal(size=20))
        half, scale = pm.Normal("half", shape=20), pm.HalfNormal("int")
        pm.Normal(name, half * x, scale, observed=pm.Data("short", draw.normal(size=20)))
    at = points(model, 2)
    plain = evaluated(model, at)
    with synk.pymc.parallel(model, members=2):
        check_equal(plain, evaluated(model, at))
