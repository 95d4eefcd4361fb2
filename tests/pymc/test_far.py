"""Far from the initial point the divided log-density is as near to the true one as the plain one.

PyTensor rewrites unstable expressions where it sees all of them. Members' graphs begin at parts of
the model's graph, and their data are no constants.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from comparing import check_not_worse, evaluated, far_points
from exact import truth
from pytensor.graph.traversal import ancestors
from selection import thorough

import synkhronos as synk
from synkhronos.pymc._density.density import Density

# numpy's words on overflow
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

R = np.random.default_rng(38)
N = 9
X = R.normal(size=N)
COUNTS = R.integers(0, 9, N)
TIMES = R.weibull(1.5, N) + 0.05


def topics() -> pm.Model:
    """Words of documents, whose topics are summed out."""
    document, word = R.integers(0, 4, N), R.integers(0, 5, N)
    with pm.Model() as model:
        share = pm.math.softmax(pm.Normal("share", 0, 9, shape=(4, 2)), axis=-1)
        words = pm.math.softmax(pm.Normal("words", 0, 9, shape=(2, 5)), axis=-1)
        each = pt.log(share[document]) + pt.log(words[:, word]).T
        pm.Potential("likelihood", pt.logsumexp(each, axis=1).sum())
    return model


def shares_by_hand() -> pm.Model:
    """The logarithm of a sum of exponentials, which all rows need."""
    with pm.Model() as model:
        a = pm.Normal("a", 0, 9, shape=3)
        total = pt.log(pt.sum(pt.exp(a)))
        pm.Potential("likelihood", (a[R.integers(0, 3, N)] - total).sum())
    return model


def mixture() -> pm.Model:
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.ones(3))
        mu, sigma = pm.Normal("mu", 0, 9, shape=3), pm.Uniform("sigma", 0, 9, shape=3)
        pm.NormalMixture("y", weights, mu, sigma, observed=3 * X)
    return model


def negative_binomial() -> pm.Model:
    with pm.Model() as model:
        mu = pt.exp(pm.Normal("a") + pm.Normal("b") * X)
        pm.NegativeBinomial("y", mu=mu, alpha=pm.Exponential("alpha", 1), observed=COUNTS)
    return model


def negative_binomial_of_p() -> pm.Model:
    with pm.Model() as model:
        n, p = pm.HalfNormal("n", 5), pm.Beta("p", 1, 1)
        pm.NegativeBinomial("y", n=n, p=p, observed=COUNTS)
    return model


def beta_binomial() -> pm.Model:
    with pm.Model() as model:
        a, b = pm.HalfNormal("a", 5), pm.HalfNormal("b", 5)
        pm.BetaBinomial("y", alpha=a, beta=b, n=9, observed=COUNTS)
    return model


def weibull() -> pm.Model:
    with pm.Model() as model:
        alpha, beta = pm.HalfNormal("alpha", 5), pm.HalfNormal("beta", 5)
        pm.Weibull("y", alpha=alpha, beta=beta, observed=TIMES)
    return model


def accelerated_failure() -> pm.Model:
    end = np.where(R.uniform(size=N) < 0.5, TIMES, TIMES.max())
    with pm.Model() as model:
        alpha = pt.exp(pm.Normal("a", 0, 0.1))
        time = pm.Weibull.dist(alpha=alpha, beta=pt.exp(pm.Normal("mu") / alpha))
        pm.Censored("y", time, lower=None, upper=end, observed=TIMES)
    return model


def quotient() -> pm.Model:
    """The logarithm of a quotient, which overflows for a tiny parameter."""
    with pm.Model() as model:
        scale = pt.exp(pm.Normal("scale"))
        pm.Potential("likelihood", -pt.sqr(pt.log(TIMES / scale)).sum())
    return model


def product() -> pm.Model:
    """The logarithm of a product of parameters, which overflows."""
    with pm.Model() as model:
        mu = pt.exp(pm.Normal("a")) * pt.exp(pm.Normal("b"))
        pm.Potential("likelihood", -pt.sqr(X - pt.log(mu)).sum())
    return model


def ordered() -> pm.Model:
    with pm.Model() as model:
        kind = pm.distributions.transforms.ordered
        cuts = pm.Normal("cuts", 0, 2, shape=3, transform=kind, initval=[-1, 0, 1])
        eta = pm.Normal("b") * X
        pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, observed=R.integers(0, 4, N))
    return model


def item_response() -> pm.Model:
    """Abilities with a regression, difficulties that sum up to 0."""
    item, person = R.integers(0, 3, N), R.integers(0, 4, N)
    with pm.Model() as model:
        slope, free = pm.LogNormal("slope", 1, 1, shape=3), pm.Normal("free", 0, 3, shape=2)
        level = pt.concatenate([free, pt.atleast_1d(-free.sum())])
        ability = pm.Normal("ability", R.normal(size=(4, 2)) @ pm.Normal("by", shape=2), shape=4)
        logit = slope[item] * ability[person] - level[item]
        pm.Bernoulli("y", logit_p=logit, observed=COUNTS > 4)
    return model


def horseshoe() -> pm.Model:
    with pm.Model() as model:
        z, local = pm.Normal("z", shape=2), pm.HalfCauchy("local", 1, shape=2)
        tau, slab = pm.HalfCauchy("tau", 1), pm.InverseGamma("slab", 2, 8)
        width = pt.sqrt(slab * local**2 / (slab + tau**2 * local**2))
        logit = pm.Normal("a") + R.normal(size=(N, 2)) @ (z * width * tau)
        pm.Bernoulli("y", logit_p=logit, observed=COUNTS > 4)
    return model


def process() -> pm.Model:
    """A Gaussian process behind counts."""
    with pm.Model() as model:
        ell, eta = pm.Gamma("ell", 25, 4), pm.HalfNormal("eta", 2)
        cov = eta**2 * pm.gp.cov.ExpQuad(1, ell)
        f = pm.gp.Latent(cov_func=cov).prior("f", X=np.linspace(0, 5, N)[:, None])
        pm.Poisson("y", pt.exp(f), observed=COUNTS)
    return model


KINDS = topics, shares_by_hand, quotient, product
MORE_KINDS = (
    *(mixture, negative_binomial, negative_binomial_of_p, beta_binomial, weibull, ordered),
    *(accelerated_failure, item_response, horseshoe, process),
)


@pytest.fixture(scope="module")
def group() -> synk.Group:
    with synk.Group(2) as found:
        yield found


@pytest.mark.parametrize("make", [*KINDS, *thorough(*MORE_KINDS)], ids=lambda make: make.__name__)
def test_as_near_to_the_true_value_as_the_plain_model(
    make: Callable[[], pm.Model], group: synk.Group
) -> None:
    model = make()
    at = far_points(model)
    plain = evaluated(model, at)
    with group.active(), synk.pymc.parallel(model):
        divided = evaluated(model, at)
    check_not_worse(model, at, plain, divided)


@pytest.mark.thorough  # compiles
@pytest.mark.timeout(300)
@pytest.mark.parametrize("make", [*KINDS, *MORE_KINDS], ids=lambda make: make.__name__)
def test_the_same_in_machine_code(make: Callable[[], pm.Model], group: synk.Group) -> None:
    model = make()
    at = far_points(model)
    plain = evaluated(model, at, "NUMBA")
    with group.active(), synk.pymc.parallel(model, mode="NUMBA"):
        divided = evaluated(model, at, "NUMBA")
    check_not_worse(model, at, plain, divided)


def test_the_true_value_of_an_unstable_expression() -> None:
    with pm.Model() as model:
        pm.Potential("p", pt.log(1 - pt.exp(-pt.exp(pm.Flat("x")))))
    x = -600.0  # exp(-exp(x)) rounds to 1
    assert truth(model)({"x": np.array(x)}) == (x, [1.0])


@pytest.mark.parametrize("checked", [True, *thorough(False)])
def test_a_parameter_that_is_no_number_gives_minus_infinity(
    checked: bool, group: synk.Group
) -> None:
    """A sampler that weighs points by their densities needs a number; as PyMC's checks say."""
    with pm.Model(check_bounds=checked) as model:
        pm.Poisson("y", pt.exp(pm.Normal("a") + pm.Normal("b") * X), observed=COUNTS)
    at = [{"a": np.array(np.inf), "b": np.array(-np.inf)}]
    [(plain, _)] = evaluated(model, at)
    with group.active(), synk.pymc.parallel(model):
        [(divided, _)] = evaluated(model, at)
    np.testing.assert_equal(divided, plain)


def sticks() -> pm.Model:
    """A mixture whose weights are what is left of a stick; a condition looks at the weights too."""
    with pm.Model() as model:
        broken = pm.Beta("broken", 1, 2, shape=12)
        weights = broken * pt.concatenate([[1.0], pt.cumprod(1 - broken)[:-1]])
        rates = pm.Poisson.dist(pm.Uniform("rates", 0, 30, shape=12))
        pm.Mixture("y", weights / weights.sum(), rates, observed=np.arange(60) % 13)
    return model


def test_a_gradient_that_is_zero_is_not_asked_for() -> None:
    """A source that only conditions read."""
    found = [v.owner.op for v in ancestors([synk.pymc.fast(sticks()).logp()]) if v.owner]
    [density] = {op for op in found if isinstance(op, Density)}
    left_out = [
        smooth and not connected
        for smooth, connected in zip(density.smooth, density.connected, strict=True)
    ]
    assert any(left_out)
    assert any(density.connected)
