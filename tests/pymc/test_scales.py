"""Scales of any exponent: derivatives by their logarithms are finite where they are for plain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from comparing import Points, check_not_worse
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Exp, Pow, TrueDiv

import synkhronos as synk
from synkhronos._compiling.lean.exponents import join_powers, join_products
from synkhronos._compiling.python_mode import python_mode
from synkhronos._compiling.vectorised.ratios import Ratio, Scaled, put_quotients
from synkhronos.pymc._reading.rewrites import rewritten, simplified

# numpy's words on overflow
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

R = np.random.default_rng(61)
AS_IT_IS = python_mode("none")
N, MANY = 9, 240  # rows, and rows of which some forms make fewer
X = R.normal(size=N)


def operations(outputs: list) -> list[type]:
    nodes = {v.owner for v in ancestors(outputs) if v.owner is not None}
    return [type(getattr(node.op, "scalar_op", None)) for node in nodes]


def test_a_product_of_numbers_has_one_exponential() -> None:
    """Factors with an axis of length 1 are numbers, too."""
    s, total = pt.dscalars("s", "total")
    cube = pt.exp(-3 * s.dimshuffle("x")).dimshuffle()
    product = (total * cube) * pt.exp(s)
    graph = FunctionGraph([s, total], [product], clone=False)
    join_products(graph)
    assert operations(graph.outputs).count(Exp) == 1
    found = pytensor.function(graph.inputs, graph.outputs[0], mode=AS_IT_IS)
    assert found(-285.0, 1e4) == pytest.approx(1e4 * np.exp(570.0))
    assert found(975.0, 0.0) == 0


def test_a_power_of_an_exponential_is_one() -> None:
    h, c = pt.dvector("h"), pt.dscalar("c")
    powers = [pt.exp(h) ** pt.constant([-1.5]), pt.exp(h) ** c, h**-1.5]
    graph = FunctionGraph([h, c], powers, clone=False)
    join_powers(graph)
    assert [operations([v]).count(Pow) for v in graph.outputs] == [0, 1, 1]
    found = pytensor.function([h], graph.outputs[0], mode=AS_IT_IS)
    np.testing.assert_allclose(found(X), np.exp(X) ** -1.5, rtol=1e-14)


def test_products_of_rows_keep_their_exponentials() -> None:
    v, s = pt.dvector("v"), pt.dscalar("s")
    scale = pt.exp(s)
    graph = FunctionGraph([v, s], [pt.exp(v) * scale, scale * s], clone=False)
    join_products(graph)
    assert operations(graph.outputs).count(Exp) == 2


def test_a_component_without_weight_has_a_derivative() -> None:
    """PyTensor's is 0 times infinity."""
    x, s = pt.dvector("x"), pt.dscalar("s")
    wide, narrow = -pt.sqr(x) / 2, -pt.sqr(x / pt.exp(s)) / 2 - s
    plain, graph = (rewritten(pt.log(pt.exp(wide) + pt.exp(narrow)).sum()) for _ in range(2))
    [named] = simplified([graph], wrt=[s])
    assert Scaled in operations([named])
    values, near = [], []
    for each in (plain, named):
        slope = rewritten(pt.grad(each, s))
        found = pytensor.function([x, s], [each, slope], mode=AS_IT_IS)
        values.append(found(X, -367.0))
        near.append(found(X, 0.5))
    assert values[1][0] == values[0][0]
    assert [np.isnan(values[0][1]), values[1][1]] == [True, 0]
    np.testing.assert_allclose(near[1], near[0], rtol=1e-14)


def test_quotients_take_their_place() -> None:
    x, s = pt.dvector("x"), pt.dscalar("s")
    [named] = simplified([(pt.sqr(x / s) + pt.sqr(x / pt.exp(s))).sum()], wrt=[s])
    graph = FunctionGraph([x, s], [named], clone=True)
    put_quotients(graph)
    assert {Ratio, Scaled} <= set(operations([named]))
    assert not {Ratio, Scaled} & set(operations(graph.outputs))
    values = [
        pytensor.function(inputs, output, mode=AS_IT_IS)(X, 0.3)
        for inputs, output in (([x, s], named), (graph.inputs, graph.outputs[0]))
    ]
    np.testing.assert_allclose(*values, rtol=1e-14)


def test_scales_of_data_keep_their_quotients() -> None:
    """Their powers are data, too."""
    x, s = pt.dvector("x"), pt.dscalar("s")
    [found] = simplified([pt.sqr(s / x).sum()], wrt=[s])
    assert TrueDiv in operations([found])
    assert not {Ratio, Scaled} & set(operations([found]))


def one_scale() -> pm.Model:
    """A quadratic form: a few coefficients, and one scale for all rows."""
    x = R.normal(size=(MANY, 3))
    with pm.Model() as model:
        mu = pm.Normal("a") + x @ pm.Normal("b", shape=3)
        pm.Normal("y", mu, pm.HalfCauchy("sigma", 2), observed=R.normal(size=MANY))
    return model


def groups_of_one_scale() -> pm.Model:
    """Sums by group, of which there are as many as places."""
    group, floor = R.integers(0, 6, MANY), R.integers(0, 2, MANY)
    with pm.Model() as model:
        mu = pm.Normal("a") + floor * pm.Normal("b", shape=6)[group]
        pm.Normal("y", mu, pm.HalfNormal("sigma", 1), observed=R.normal(size=MANY))
    return model


def mixture_of_scales() -> pm.Model:
    """One component becomes so narrow that its density is 0 at all rows."""
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 2, shape=2), pm.HalfNormal("sigma", 2, shape=2)
        w = pm.Beta("w", 5, 5)
        pm.NormalMixture("y", pt.stack([w, 1 - w]), mu, sigma, observed=2 * X)
    return model


def effects() -> pm.Model:
    """The scale of effects is in their prior alone."""
    group = R.integers(0, 3, N)
    with pm.Model() as model:
        sigma = pm.math.exp(pm.Normal("sigma", 0, 10))
        effect = pm.Normal("effect", pm.Normal("mu", 0, 9), sigma, shape=3)
        pm.Bernoulli("y", logit_p=effect[group] + pm.Normal("b") * X, observed=X > 0)
    return model


KINDS = one_scale, groups_of_one_scale, mixture_of_scales, effects


def points_of(model: pm.Model) -> Points:
    """Points at which the logarithms of all scales, or of one, are such numbers."""
    start = model.initial_point(0)
    [name] = [k for k in start if k.startswith("sigma")]
    found = []
    for s in (-367.0, -285.0, 300.0, 975.0):
        alone = np.array(start[name])
        alone.reshape(-1)[0] = s
        found += [start | {name: np.full_like(alone, s)}, start | {name: alone}]
    return found


@pytest.mark.thorough  # compiles
@pytest.mark.timeout(300)
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_in_machine_code(make: Callable[[], pm.Model]) -> None:
    """One function has the value and the gradient, as samplers compile it."""
    model = make()
    copy = synk.pymc.fast(model)
    assert "logp" in vars(copy)
    at = points_of(model)
    plain = both(model, at)
    check_not_worse(model, at, plain, both(copy, at))


def both(model: pm.Model, at: Points) -> list:
    """As `comparing.evaluated` of a plain model, of any."""
    value = pm.pytensorf.rewrite_pregrad(model.logp())
    outputs = [value, pm.pytensorf.gradient(value, model.continuous_value_vars)]
    function = model.compile_fn(outputs, inputs=model.value_vars, mode="NUMBA")
    with np.errstate(all="ignore"):
        return [tuple(function(point)) for point in at]


@pytest.mark.thorough
def test_second_derivatives_of_a_mixture() -> None:
    model = mixture_of_scales()
    copy, at = synk.pymc.fast(model), model.initial_point(0)
    found = [m.compile_d2logp(negate_output=False, mode="FAST_COMPILE")(at) for m in (model, copy)]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-8, atol=1e-10)
