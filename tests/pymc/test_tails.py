"""Normal tails: PyMC's formula becomes one operation; its values stay, derivatives are better."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions.dist_math import normal_lccdf, normal_lcdf
from pytensor.graph.traversal import ancestors
from pytensor.scalar.math import BetaInc
from selection import thorough

import synkhronos as synk
from synkhronos._compiling.vectorised.tails import LogNdtr, Mills, expanded, log_ndtr
from synkhronos.pymc._reading.rewrites import with_named_tails

VALUES = np.array([-30.0, -5.0, -1.0, 0.0, 0.3, 2.0, 7.0])


def kinds(outputs: list) -> set[type]:
    nodes = [v.owner for v in ancestors(outputs) if v.owner is not None]
    return {type(getattr(node.op, "scalar_op", None)) for node in nodes}


@pytest.mark.parametrize("formula", [normal_lcdf, normal_lccdf])
def test_the_formula_is_named(formula) -> None:
    x, mu = pt.vector("x", dtype="float64"), pt.scalar("mu", dtype="float64")
    plain = formula(mu, 2.0, x)
    [named] = with_named_tails([plain])
    assert LogNdtr in kinds([named])
    gradients = [pt.grad(v.sum(), x) for v in (plain, named)]
    [wide] = expanded([gradients[1]])
    assert Mills not in kinds([wide])
    f = pytensor.function([x, mu], [plain, named, *expanded([named])], mode="FAST_COMPILE")
    g = pytensor.function([x, mu], [*gradients, wide], mode="FAST_COMPILE")
    for values in (f(VALUES, 0.1), g(VALUES, 0.1)):
        for found in values[1:]:
            np.testing.assert_allclose(found, values[0], rtol=1e-11)


def test_other_formulas_are_left_alone() -> None:
    x = pt.vector("x", dtype="float64")
    z = (x - 1) / 2
    others = [pt.switch(z > 1, pt.log(z), z), pt.switch(x > 0, x, z), pt.log(pt.erfc(z))]
    assert LogNdtr not in kinds(with_named_tails(others))


def test_logarithms_of_a_bessel_function_do_not_overflow() -> None:
    x = pt.vector("x", dtype="float64")
    [found] = with_named_tails([pt.log(pt.i0(x))])
    f = pytensor.function([x], [found, pt.grad(found.sum(), x)], mode="FAST_COMPILE")
    value, slope = f(np.array([-2.0, 0.5, 900.0]))
    with mp.workdps(50):
        for at, v, s in zip((-2, 0.5, 900), value, slope, strict=True):
            exact = mp.besseli(0, at)
            assert abs(v / mp.log(exact) - 1) < 1e-14
            assert abs(s / (mp.besseli(1, at) / exact) - 1) < 1e-14
    assert with_named_tails([pt.log(x)])[0].owner.inputs == [x]


def test_an_incomplete_beta_function_with_a_parameter_of_1_is_a_power() -> None:
    """Also where its gradient is 0 or infinite, and NaN outside of its domain."""
    x, a = pt.vector("x", dtype="float64"), pt.scalar("a", dtype="float64")
    one = pt.floor(pt.second(x, 0.3)) + 1
    plain = [pt.betainc(a, one, x), pt.betainc(one, a, x), pt.betainc(a, one, pt.sigmoid(x))]
    named = with_named_tails(plain)
    assert BetaInc in kinds(plain)
    assert BetaInc not in kinds(named)
    assert BetaInc in kinds(with_named_tails([pt.betainc(a, 2 * one, x)]))
    slopes = [pt.grad(v.sum(), x) for v in named[:2]]
    f = pytensor.function([x, a], [*plain, *named, *slopes], mode="FAST_COMPILE")
    inside = np.array([1e-300, 0.1, 0.5, 1 - 1e-12])
    for points, shape in ((inside, 0.2), (inside, 7.5), (np.array([0.0, 1.0, -0.1, 1.5]), 2.5)):
        values = f(points, shape)
        for wanted, found in zip(values[:3], values[3:6], strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-12)
    _, _, _, _, _, _, first, second = f(inside, 7.5)
    np.testing.assert_allclose(first, 7.5 * inside**6.5, rtol=1e-12)
    np.testing.assert_allclose(second, 7.5 * (1 - inside) ** 6.5, rtol=1e-12)


def test_derivatives_far_out() -> None:
    """There the derivatives of the formula, and of its slope, are differences of large numbers."""
    x = pt.vector("x", dtype="float64")
    slope = pt.grad(log_ndtr(x).sum(), x)
    curvature = pt.grad(slope.sum(), x)
    at = np.array([-1e8, -1e6, -300.0, -49.9, -2.0, 0.0, 1.5])
    f = pytensor.function([x], [slope, curvature], mode="FAST_COMPILE")
    for value, first, second in zip(at, *f(at), strict=True):
        with mp.workdps(50):
            exact = mp.npdf(mp.mpf(value)) * 2 / mp.erfc(-mp.mpf(value) / mp.sqrt(2))
            assert abs(first / exact - 1) < 1e-14
            assert abs(second / (-exact * (value + exact)) - 1) < 1e-12


def censored() -> pm.Model:
    y = np.minimum(np.random.default_rng(0).normal(size=200), 0.5)
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
        pm.Censored("y", pm.Normal.dist(mu, sigma), lower=None, upper=0.5, observed=y)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("vectorised", [True, *thorough(False)])
def test_a_censored_model_is_the_plain_one(vectorised: bool) -> None:
    model = censored()
    point = {"mu": np.array(0.2), "sigma_log__": np.array(-0.3)}
    plain = model.compile_logp()(point), model.compile_dlogp()(point)
    with synk.Group(1, vectorised=vectorised), synk.pymc.parallel(model):
        found = model.compile_logp()(point), model.compile_dlogp()(point)
    np.testing.assert_allclose(found[0], plain[0], rtol=1e-12)
    np.testing.assert_allclose(found[1], plain[1], rtol=1e-12)
