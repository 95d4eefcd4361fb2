"""Regressions: each row's distribution has parameters that its covariates give."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from kinds import Kind, N, rng
from scipy.interpolate import BSpline


def quantile() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        b, scale = pm.Normal("b", shape=2), pm.HalfNormal("scale")
        mu = r.normal(size=(N, 2)) @ b
        pm.AsymmetricLaplace("y", b=1 / scale, q=0.8, mu=mu, observed=r.normal(size=N))
    return model


def horseshoe() -> pm.Model:
    r = rng()
    with pm.Model(coords={"obs": range(N), "feature": range(6)}) as model:
        tau = pm.HalfCauchy("tau", 0.1)
        width = pm.HalfCauchy("width", 1, dims="feature")
        slab = pm.InverseGamma("slab", 2, 2)
        shrunk = width * pt.sqrt(slab / (slab + tau**2 * width**2))
        b = pm.Deterministic("b", pm.Normal("z", dims="feature") * tau * shrunk, dims="feature")
        x = r.normal(size=(N, 6))
        pm.Normal("y", x @ b, pm.HalfNormal("sigma"), observed=r.normal(size=N), dims="obs")
    return model


def probit() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        p = pm.math.invprobit(r.normal(size=(N, 2)) @ b)
        pm.Bernoulli("y", p=p, observed=r.integers(0, 2, N))
    return model


def ordinal_probit() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        b, sigma = pm.Normal("b", shape=2), pm.HalfNormal("sigma")
        first = np.array([-1.0, 0.0, 1.0])
        ordered = pm.distributions.transforms.ordered
        cuts = pm.Normal("cuts", first, 1, transform=ordered, initval=first)
        eta = r.normal(size=(N, 2)) @ b
        y = r.integers(0, 4, N)
        pm.OrderedProbit("y", eta=eta, sigma=sigma, cutpoints=cuts, observed=y)
    return model


def ordinal_with_effects() -> pm.Model:
    """Answers to stories: an effect of each person and each story, cut points of increments."""
    r = rng()
    with pm.Model() as model:
        steps = pm.Dirichlet("steps", np.ones(5))
        cuts = pm.Deterministic("cuts", pm.math.logit(pt.cumsum(steps)[:-1]))
        person, story = pm.ZeroSumNormal("person", shape=9), pm.Normal("story", shape=4)
        treated = r.integers(0, 2, (N, 3))
        eta = treated @ pm.Normal("b", 0, 0.5, shape=3)
        eta += person[r.integers(0, 9, N)] + story[r.integers(0, 4, N)]
        pm.OrderedLogistic("y", eta, cuts, compute_p=False, observed=r.integers(0, 5, N))
    return model


def monotonic_effect() -> pm.Model:
    """A predictor with ordered levels, whose effect grows by the parts of a simplex."""
    r = rng()
    with pm.Model() as model:
        steps = pm.Dirichlet("steps", np.full(4, 2.0))
        total = pt.concatenate([pt.zeros(1), pt.cumsum(steps)])
        mu = pm.Normal("a") + pm.Normal("b") * total[r.integers(0, 5, N)]
        pm.Normal("y", mu, pm.Exponential("sigma", 1), observed=r.normal(size=N))
    return model


def softmax_with_pivot() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        logits = r.normal(size=(N, 2)) @ pm.Normal("b", shape=(2, 3)) + pm.Normal("a", shape=3)
        p = pm.math.softmax(pt.concatenate([pt.zeros((N, 1)), logits], axis=1), axis=1)
        pm.Categorical("y", p=p, observed=r.integers(0, 4, N))
    return model


def hierarchical_choice() -> pm.Model:
    """Each choice is out of four offers with three attributes, weighed by its person."""
    r = rng()
    person, offers = r.integers(0, 8, N), r.normal(size=(N, 4, 3))
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2, sd_dist=pm.Exponential.dist(1, shape=3))
        weights = pm.Normal("mean", shape=3) + pm.Normal("z", shape=(8, 3)) @ chol.T
        utility = (offers * weights[person][:, None, :]).sum(axis=-1)
        pm.Categorical("y", logit_p=utility, observed=r.integers(0, 4, N))
    return model


def negative_binomial() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        b, alpha = pm.Normal("b", shape=2), pm.Exponential("alpha", 1)
        exposure = r.uniform(0.5, 2, N)
        mu = exposure * pt.exp(r.normal(size=(N, 2)) @ b)
        pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=r.poisson(1, N))
    return model


def binomial_random_effects() -> pm.Model:
    """Seeds in plates: counts of successes, with an effect of each plate."""
    r = rng()
    trials = r.integers(10, 40, N)
    with pm.Model() as model:
        b, tau = pm.Normal("b", shape=2), pm.HalfNormal("tau")
        plate = pm.Normal("plate", 0, tau, shape=N)
        logit = r.normal(size=(N, 2)) @ b + plate
        pm.Binomial("y", n=trials, logit_p=logit, observed=r.binomial(trials, 0.4))
    return model


def beta_regression() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        b, nu = pm.Normal("b", shape=2), pm.Gamma("nu", 4, 0.5)
        mu = pm.math.sigmoid(r.normal(size=(N, 2)) @ b)
        pm.Beta("y", mu=mu, nu=nu, observed=r.beta(2, 3, N))
    return model


def von_mises() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        b, kappa = pm.Normal("b", shape=2), pm.Gamma("kappa", 2, 1)
        mu = 2 * pt.arctan(r.normal(size=(N, 2)) @ b)
        pm.VonMises("y", mu=mu, kappa=kappa, observed=r.vonmises(0, 1, N))
    return model


def response_times() -> pm.Model:
    r = rng()
    times, group = 0.3 + r.wald(1, 2, N), r.integers(0, 5, N)
    with pm.Model() as model:
        drift, bound = pm.LogNormal("drift", 0, 0.3, shape=5), pm.LogNormal("bound", 0, 0.3)
        shift = pm.Uniform("shift", 0, 0.3)
        fast = bound / drift[group]
        pm.Wald("y", mu=fast, lam=bound**2, alpha=shift, observed=times)
    return model


def ex_gaussian() -> pm.Model:
    r = rng()
    times, group = r.normal(0.4, 0.05, N) + r.exponential(0.2, N), r.integers(0, 5, N)
    with pm.Model() as model:
        mu, nu = pm.Normal("mu", 0.4, 0.2, shape=5), pm.Exponential("nu", 3)
        sigma = pm.HalfNormal("sigma", 0.3)
        pm.ExGaussian("y", mu=mu[group], sigma=sigma, nu=nu, observed=times)
    return model


def skew_normal() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        mu, alpha = pm.Normal("mu"), pm.Normal("alpha", 0, 3)
        sigma = pm.HalfNormal("sigma")
        pm.SkewNormal("y", mu=mu, sigma=sigma, alpha=alpha, observed=r.gumbel(size=N))
    return model


def lognormal() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        b = pm.Laplace("b", 0, 0.5, shape=4)
        mu = pt.dot(r.normal(size=(N, 4)), b)
        pm.LogNormal("y", mu, pm.HalfNormal("sigma"), observed=r.lognormal(size=N))
    return model


def dirichlet_regression() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        b = pm.Normal("b", 0, 0.5, shape=(2, 3))
        a = pt.exp(r.normal(size=(N, 2)) @ b)
        pm.Dirichlet("y", a=a, observed=r.dirichlet(np.ones(3) * 3, N))
    return model


def errors_in_variables() -> pm.Model:
    """A covariate that is measured with an error: two observed variables of one latent."""
    r = rng()
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=N)
        pm.Normal("seen", x, 0.3, observed=r.normal(size=N))
        mu = pm.Normal("a") + pm.Normal("b") * x
        pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=r.normal(size=N))
    return model


def seemingly_unrelated() -> pm.Model:
    r = rng()
    with pm.Model(coords={"obs": range(N), "outcome": list("ab"), "x": range(3)}) as model:
        b = pm.Normal("b", dims=("x", "outcome"))
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1, shape=2))
        y = pm.Data("data", r.normal(size=(N, 2)), dims=("obs", "outcome"))
        mu = pm.Data("x_data", r.normal(size=(N, 3)), dims=("obs", "x")) @ b
        pm.MvNormal("y", mu, chol=chol, observed=y, dims=("obs", "outcome"))
    return model


def b_spline() -> pm.Model:
    r = rng()
    knots = np.concatenate([np.zeros(3), np.linspace(0, 1, 6), np.ones(3)])
    basis = BSpline.design_matrix(np.linspace(0, 0.999, N), knots, 3).toarray()
    with pm.Model(coords={"obs": range(N), "spline": range(basis.shape[1])}) as model:
        w = pm.Normal("w", 0, pm.HalfNormal("tau"), dims="spline")
        mu = pm.Deterministic("mu", pm.Normal("a") + pt.dot(basis, w.T), dims="obs")
        pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=r.normal(size=N), dims="obs")
    return model


def dose_response() -> pm.Model:
    """Four parameters: bottom, top, the dose of half the effect, and the slope there."""
    r = rng()
    dose, plate = r.uniform(-2, 2, N), r.integers(0, 4, N)
    with pm.Model() as model:
        bottom, top = pm.Normal("bottom", 0, 0.3), pm.Normal("top", 1, 0.3)
        middle = pm.Normal("middle", shape=4)
        slope = pm.LogNormal("slope", 0, 0.5)
        mu = bottom + (top - bottom) * pm.math.sigmoid(slope * (dose - middle[plate]))
        pm.StudentT("y", nu=4, mu=mu, sigma=pm.HalfNormal("sigma"), observed=r.normal(size=N))
    return model


def growth_curves() -> pm.Model:
    """Gompertz curves of animals, whose parameters have a mean in common."""
    r = rng()
    age, animal = r.uniform(0, 3, N), r.integers(0, 6, N)
    with pm.Model() as model:
        mean, scale = pm.Normal("mean", shape=3), pm.HalfNormal("scale", 0.3, shape=3)
        each = pt.exp(mean + scale * pm.Normal("z", shape=(6, 3)))[animal]
        mu = each[:, 0] * pt.exp(-each[:, 1] * pt.exp(-each[:, 2] * age))
        pm.LogNormal("y", pt.log(mu), 0.2, observed=r.lognormal(size=N))
    return model


def neural_network() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        x = pm.Data("x", r.normal(size=(N, 3)))
        first, second = pm.Normal("first", shape=(3, 5)), pm.Normal("second", shape=(5, 4))
        last = pm.Normal("last", shape=4)
        hidden = pt.tanh(pt.tanh(x @ first) @ second)
        pm.Bernoulli("y", p=pm.math.sigmoid(hidden @ last), observed=r.integers(0, 2, N))
    return model


def interaction_of_factors() -> pm.Model:
    """Votes by state, region, group and age: nested, crossed and interacting effects."""
    r = rng()
    state, ethnic, age = r.integers(0, 12, N), r.integers(0, 3, N), r.integers(0, 4, N)
    region = np.repeat(np.arange(4), 3)
    with pm.Model() as model:
        scales = pm.HalfNormal("scales", shape=4)
        in_region = pm.Normal("region", 0, scales[0], shape=4)
        in_state = in_region[region] + pm.Normal("state", 0, scales[1], shape=12)
        table = pm.Normal("table", 0, scales[2], shape=(3, 4))
        slope = pm.Normal("slope", 0, scales[3], shape=12)
        eta = in_state[state] + table[ethnic, age] + slope[state] * r.normal(size=N)
        pm.Bernoulli("y", logit_p=eta, observed=r.integers(0, 2, N))
    return model


def categorical_shared_p() -> pm.Model:
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.ones(4))
        pm.Categorical("y", p=p, observed=rng().integers(0, 4, N))
    return model


def categorical_shared_logits() -> pm.Model:
    with pm.Model() as model:
        pm.Categorical("y", logit_p=pm.Normal("eta", shape=4), observed=rng().integers(0, 4, N))
    return model


def ordinal_shared(probit: bool) -> pm.Model:
    with pm.Model() as model:
        first = np.array([-1.0, 0.0, 1.0])
        ordered = pm.distributions.transforms.ordered
        cuts = pm.Normal("cuts", first, 1, transform=ordered, initval=first)
        kind = pm.OrderedProbit if probit else pm.OrderedLogistic
        kind("y", eta=pm.Normal("eta"), cutpoints=cuts, observed=rng().integers(0, 4, N))
    return model


KINDS = {
    "quantile regression": Kind(quantile),
    "horseshoe priors": Kind(horseshoe),
    "probit regression": Kind(probit),
    "ordinal probit": Kind(ordinal_probit),
    "ordinal, effects of persons and stories": Kind(ordinal_with_effects),
    "ordinal, intercept only": Kind(lambda: ordinal_shared(False)),
    "ordinal probit, intercept only": Kind(lambda: ordinal_shared(True)),
    "monotonic effect of an ordered predictor": Kind(monotonic_effect),
    "softmax regression with a pivot": Kind(softmax_with_pivot),
    "categorical, intercept only": Kind(categorical_shared_p),
    "categorical, intercept only, logits": Kind(categorical_shared_logits),
    "hierarchical choice": Kind(hierarchical_choice),
    "negative binomial with exposure": Kind(negative_binomial),
    "binomial, an effect of each row": Kind(binomial_random_effects),
    "beta regression": Kind(beta_regression),
    "circular regression (von Mises)": Kind(von_mises),
    "response times (shifted Wald)": Kind(response_times),
    "response times (ex-Gaussian)": Kind(ex_gaussian),
    "skew normal": Kind(skew_normal),
    "log-normal regression, lasso": Kind(lognormal),
    "Dirichlet regression": Kind(dirichlet_regression),
    "errors in variables": Kind(errors_in_variables),
    "seemingly unrelated regressions": Kind(seemingly_unrelated),
    "B-splines": Kind(b_spline),
    "dose response, four parameters": Kind(dose_response),
    "growth curves (Gompertz)": Kind(growth_curves),
    "Bayesian neural network": Kind(neural_network),
    "nested, crossed and interacting effects": Kind(interaction_of_factors),
}
