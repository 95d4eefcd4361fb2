"""Models of many kinds, small: each can be divided, or is refused for a reason."""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import zoo_animals
import zoo_families
import zoo_forms
import zoo_latent
import zoo_regressions
import zoo_times
from kinds import Kind, N, rng


def linear() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=3)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", r.normal(size=(N, 3)) @ b, sigma, observed=r.normal(size=N))
    return model


def logistic() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b", shape=3)
        x = pm.Data("x", r.normal(size=(N, 3)))
        pm.Bernoulli("y", logit_p=a + x @ b, observed=r.integers(0, 2, N))
    return model


def hierarchical_poisson() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        alpha, beta = pm.Exponential("alpha", 1), pm.Exponential("beta", 1)
        rate = pm.Gamma("rate", alpha, beta, shape=7)
        exposure = r.uniform(0.5, 1.5, N)
        pm.Poisson("y", rate[r.integers(0, 7, N)] * exposure, observed=r.poisson(1, N))
    return model


def varying_slopes() -> pm.Model:
    r = rng()
    coords = {"obs": range(N), "group": list("abcde")}
    with pm.Model(coords=coords) as model:
        group = pm.Data("group_of", r.integers(0, 5, N), dims="obs")
        x = pm.Data("x", r.normal(size=N), dims="obs")
        mean, scale = pm.Normal("mean", shape=2), pm.HalfNormal("scale", shape=2)
        z = pm.Normal("z", dims="group", shape=(5,))
        slope = pm.Deterministic("slope", mean[1] + scale[1] * z, dims="group")
        intercept = pm.Normal("intercept", mean[0], scale[0], dims="group")
        sigma = pm.HalfNormal("sigma")
        y = pm.Data("data", r.normal(size=N), dims="obs")
        pm.Normal("y", intercept[group] + slope[group] * x, sigma, observed=y, dims="obs")
    return model


def correlated_effects() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1, shape=2))
        effects = pm.MvNormal("effects", np.zeros(2), chol=chol, shape=(5, 2))
        g, x = r.integers(0, 5, N), r.normal(size=N)
        mu = effects[g, 0] + effects[g, 1] * x
        pm.NegativeBinomial("y", pt.exp(mu), alpha=3, observed=r.poisson(2, N))
    return model


def glmm() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b")
        scale = pm.HalfNormal("scale")
        noise = pm.Normal("noise", shape=N)
        pm.Poisson("y", pt.exp(a + b * r.normal(size=N) + scale * noise), observed=r.poisson(2, N))
    return model


def robust() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        b, nu = pm.Normal("b", shape=2), pm.Gamma("nu", 2, 0.1)
        sigma = pm.HalfNormal("sigma")
        x = r.normal(size=(N, 2))
        pm.StudentT("y", nu=nu, mu=pt.dot(x, b), sigma=sigma, observed=r.normal(size=N))
    return model


def heteroscedastic() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        b, c = pm.Normal("b", shape=2), pm.Normal("c", shape=2)
        x = r.normal(size=(N, 2))
        pm.Normal("y", x @ b, pt.softplus(x @ c), observed=r.normal(size=N))
    return model


def normal_mixture() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(3))
        mu = pm.Normal("mu", 0, 3, shape=3)
        sigma = pm.HalfNormal("sigma", 1, shape=3)
        pm.NormalMixture("y", w, mu, sigma, observed=r.normal(size=N))
    return model


def poisson_mixture() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(2))
        parts = [pm.Poisson.dist(pm.Exponential("a", 1)), pm.Poisson.dist(pm.Exponential("b", 0.2))]
        pm.Mixture("y", w, parts, observed=r.poisson(3, N))
    return model


def zero_inflated() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        psi = pm.Beta("psi", 2, 2)
        x = r.normal(size=(N, 2))
        pm.ZeroInflatedPoisson("y", psi, pt.exp(x @ b), observed=r.poisson(1, N))
    return model


def hurdle() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        psi, mu = pm.Beta("psi", 2, 2), pm.Exponential("mu", 1)
        pm.HurdlePoisson("y", psi, mu, observed=r.poisson(1, N))
    return model


def censored_survival() -> pm.Model:
    r = rng()
    times = r.weibull(1.5, N)
    with pm.Model() as model:
        shape, b = pm.HalfNormal("shape", 2), pm.Normal("b", shape=2)
        scale = pt.exp(r.normal(size=(N, 2)) @ b)
        latent = pm.Weibull.dist(shape, scale)
        pm.Censored("y", latent, lower=None, upper=1.0, observed=np.minimum(times, 1.0))
    return model


def truncated() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
        y = np.abs(r.normal(size=N))
        pm.Truncated("y", pm.Normal.dist(mu, sigma), lower=0, upper=None, observed=y)
    return model


def ordinal() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        cuts = pm.Normal(
            "cuts",
            np.array([-1.0, 0.0, 1.0]),
            1,
            transform=pm.distributions.transforms.ordered,
            initval=np.array([-1.0, 0.0, 1.0]),
        )
        x = r.normal(size=(N, 2))
        pm.OrderedLogistic("y", eta=x @ b, cutpoints=cuts, observed=r.integers(0, 4, N))
    return model


def categorical() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        b = pm.Normal("b", shape=(2, 4))
        logits = r.normal(size=(N, 2)) @ b
        pm.Categorical("y", logit_p=logits, observed=r.integers(0, 4, N))
    return model


def multinomial() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        b = pm.Normal("b", shape=(2, 4))
        p = pm.math.softmax(r.normal(size=(N, 2)) @ b, axis=-1)
        pm.Multinomial("y", 10, p, observed=r.multinomial(10, np.ones(4) / 4, N))
    return model


def dirichlet_multinomial() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        a = pm.Exponential("a", 1, shape=4)
        pm.DirichletMultinomial("y", 10, a, observed=r.multinomial(10, np.ones(4) / 4, N))
    return model


def multivariate_normal() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=3)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2, sd_dist=pm.Exponential.dist(1, shape=3))
        pm.MvNormal("y", mu, chol=chol, observed=r.normal(size=(N, 3)))
    return model


def beta_binomial() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        a, b = pm.Exponential("a", 1), pm.Exponential("b", 1)
        trials = r.integers(5, 20, N)
        pm.BetaBinomial("y", a, b, trials, observed=r.binomial(trials, 0.3))
    return model


def gamma_regression() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        b, alpha = pm.Normal("b", shape=2), pm.HalfNormal("alpha")
        mu = pt.exp(r.normal(size=(N, 2)) @ b)
        pm.Gamma("y", alpha=alpha, beta=alpha / mu, observed=r.gamma(2, size=N))
    return model


def spline() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        basis = np.maximum(0, np.linspace(0, 1, N)[:, None] - np.linspace(0, 0.9, 8)) ** 3
        w = pm.GaussianRandomWalk("w", 0.3, init_dist=pm.Normal.dist(0, 1), shape=8)
        pm.Normal("y", basis @ w, 1.0, observed=r.normal(size=N))
    return model


def custom() -> pm.Model:
    r = rng()

    def logp(value, mu, scale):
        return -pt.abs(value - mu) / scale - pt.log(2 * scale)

    with pm.Model() as model:
        mu, scale = pm.Normal("mu"), pm.HalfNormal("scale")
        pm.CustomDist("y", mu, scale, logp=logp, observed=r.normal(size=N))
    return model


def two_lengths() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
        pm.Normal("y", mu, sigma, observed=r.normal(size=N))
        pm.Poisson("z", pt.exp(mu), observed=r.poisson(1, 2 * N))
        pm.Bernoulli("u", logit_p=mu, observed=r.integers(0, 2, N))
        pm.Normal("one", mu, 1, observed=0.3)
        pm.Potential("p", -(mu**2))
    return model


def item_response() -> pm.Model:
    r = rng()
    person, item = r.integers(0, 9, N), r.integers(0, 6, N)
    with pm.Model() as model:
        ability = pm.Normal("ability", shape=9)
        difficulty = pm.ZeroSumNormal("difficulty", shape=6)
        slope = pm.LogNormal("slope", 0, 0.5, shape=6)
        eta = slope[item] * (ability[person] - difficulty[item])
        pm.Bernoulli("y", logit_p=eta, observed=r.integers(0, 2, N))
    return model


def gaussian_process_latent() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        length = pm.Gamma("length", 2, 2)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, length))
        f = gp.prior("f", np.linspace(0, 3, N)[:, None])
        pm.Poisson("y", pt.exp(f), observed=r.poisson(1, N))
    return model


def random_walk_latent() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        steps = pm.Normal("steps", shape=N)
        volatility = pt.exp(pt.cumsum(steps) * scale)
        pm.Normal("y", 0, volatility, observed=r.normal(size=N))
    return model


def change_point() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        when = pm.DiscreteUniform("when", 0, N - 1)
        early, late = pm.Exponential("early", 1), pm.Exponential("late", 1)
        rate = pt.switch(when >= np.arange(N), early, late)
        pm.Poisson("y", rate, observed=r.poisson(2, N))
    return model


def panel() -> pm.Model:
    r = rng()
    with pm.Model(coords={"time": range(12), "unit": range(N)}) as model:
        level = pm.Normal("level", dims="unit")
        trend = pm.Normal("trend")
        mu = level[None, :] + trend * np.arange(12.0)[:, None]
        pm.Normal("y", mu, 1.0, observed=r.normal(size=(12, N)), dims=("time", "unit"))
    return model


def as_many_groups_as_rows() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        level = pm.Normal("level", shape=N)
        x = r.normal(size=(N, N))
        b = pm.Normal("b", shape=N)
        pm.Normal("y", level[r.permutation(N)] + x @ b, 1.0, observed=r.normal(size=N))
    return model


def latent_classes() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        member = pm.Bernoulli("member", 0.5, shape=N)
        mu = pm.Normal("mu", shape=2)
        pm.Normal("y", mu[member], 1.0, observed=r.normal(size=N))
    return model


def weights_by_row() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(2), shape=(N, 2))
        parts = pm.Normal.dist(pm.Normal("mu", shape=2), 1.0)
        pm.Mixture("y", w, parts, observed=r.normal(size=N))
    return model


def model_in_a_model() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        mu = pm.Normal("mu")
        with pm.Model("inner"):
            sigma = pm.HalfNormal("sigma")
            pm.Normal("y", mu, sigma, observed=r.normal(size=N))
        pm.Normal("z", mu, 1.0, observed=r.normal(size=N))
    return model


def named_axes() -> pm.Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pymc.dims says that it is new
        import pymc.dims as pmd
    r = rng()
    with pm.Model(coords={"obs": range(N)}) as model:
        x = pmd.Data("x", r.normal(size=N), dims="obs")
        y = pmd.Data("data", r.normal(size=N), dims="obs")
        noise = pmd.Normal("noise", dims="obs")
        pmd.Normal("y", mu=pmd.Normal("b") * x + noise, sigma=1.0, observed=y)
    return model


def missing_values() -> pm.Model:
    y = rng().normal(size=N)
    y[5] = np.nan
    with warnings.catch_warnings(), pm.Model() as model:
        warnings.simplefilter("ignore")
        pm.Normal("y", pm.Normal("mu"), 1, observed=np.ma.masked_invalid(y))
    return model


def minibatch() -> pm.Model:
    y = pm.Minibatch(rng().normal(size=N), batch_size=10)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1, observed=y, total_size=N)
    return model


def autoregressive() -> pm.Model:
    with pm.Model() as model:
        rho = pm.Normal("rho", 0, 0.5, shape=2)
        init = pm.Normal.dist(0, 1, shape=2)
        pm.AR("y", rho, sigma=1.0, init_dist=init, observed=rng().normal(size=N))
    return model


def random_walk() -> pm.Model:
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma")
        init = pm.Normal.dist(0, 1)
        y = np.cumsum(rng().normal(size=N))
        pm.GaussianRandomWalk("y", mu=0, sigma=sigma, init_dist=init, observed=y)
    return model


def gaussian_process_marginal() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        length = pm.Gamma("length", 2, 2)
        gp = pm.gp.Marginal(cov_func=pm.gp.cov.ExpQuad(1, length))
        x = np.linspace(0, 3, N)[:, None]
        gp.marginal_likelihood("y", x, r.normal(size=N), sigma=pm.HalfNormal("sigma"))
    return model


def one_multivariate() -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=5)
        pm.MvNormal("y", mu, np.eye(5), observed=np.arange(5.0))
    return model


def sorts_rows() -> pm.Model:
    def logp(value, mu):
        return -((pt.sort(value * mu) - mu) ** 2)

    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.CustomDist("y", mu, logp=logp, observed=rng().normal(size=N))
    return model


def accumulates_rows() -> pm.Model:
    def logp(value, mu):
        return -pt.cumsum((value - mu) ** 2)

    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.CustomDist("y", mu, logp=logp, observed=rng().normal(size=N))
    return model


def nothing_observed() -> pm.Model:
    with pm.Model() as model:
        pm.Normal("mu")
    return model


def single_observation() -> pm.Model:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1, observed=0.5)
    return model


FAMILIES = {
    "Regressions": {
        "linear regression": Kind(linear),
        "logistic regression, pm.Data": Kind(logistic),
        "robust regression (Student's t)": Kind(robust),
        "heteroscedastic regression": Kind(heteroscedastic),
        "ordinal logistic": Kind(ordinal),
        "categorical regression": Kind(categorical),
        "multinomial regression": Kind(multinomial),
        "gamma regression": Kind(gamma_regression),
        "beta-binomial": Kind(beta_binomial),
        "spline with random-walk weights": Kind(spline),
        **zoo_regressions.KINDS,
    },
    "Groups, persons, items and factors": {
        "hierarchical Poisson-gamma": Kind(hierarchical_poisson),
        "varying slopes, coords and dims": Kind(varying_slopes),
        "varying slopes, dim named": Kind(varying_slopes, dim="obs"),
        "correlated effects (LKJ), negative binomial": Kind(correlated_effects),
        "GLMM, one latent per row": Kind(glmm),
        "as many groups as rows": Kind(as_many_groups_as_rows),
        "item response, zero-sum difficulties": Kind(item_response),
        "panel, divided by unit": Kind(panel, dim="unit"),
        "panel, divided by time": Kind(panel, dim="time"),
        "multivariate normal rows (LKJ)": Kind(multivariate_normal),
        "one multivariate observation": Kind(one_multivariate, "not a sum over rows"),
        **zoo_latent.GROUPS,
    },
    "Mixtures and hidden states": {
        "mixture of normals": Kind(normal_mixture),
        "mixture of Poissons": Kind(poisson_mixture),
        "mixture with weights of each row's own": Kind(weights_by_row),
        "zero-inflated Poisson": Kind(zero_inflated),
        "hurdle Poisson": Kind(hurdle),
        "latent classes (one discrete parameter per row)": Kind(latent_classes),
        "Dirichlet-multinomial": Kind(dirichlet_multinomial),
        **zoo_latent.MIXTURES,
        **zoo_animals.KINDS,
    },
    "Survival, times and places": {
        "Weibull survival, censored": Kind(censored_survival),
        "stochastic volatility (latent walk)": Kind(random_walk_latent),
        "change point (discrete parameter)": Kind(change_point),
        "Gaussian process, latent": Kind(gaussian_process_latent),
        "Gaussian process, marginal": Kind(gaussian_process_marginal, "not a sum over rows"),
        "autoregression": Kind(autoregressive),
        "random walk": Kind(random_walk, "not a sum over rows"),
        **zoo_times.KINDS,
    },
    "Families of distributions": zoo_families.KINDS,
    "How a model is written": {
        "truncated normal": Kind(truncated),
        "custom distribution": Kind(custom),
        "several observed, two lengths, a potential": Kind(two_lengths),
        "a model in a model": Kind(model_in_a_model),
        "axes with names (pymc.dims)": Kind(named_axes),
        "missing values": Kind(missing_values, names=("y_observed",)),
        "Minibatch": Kind(minibatch, "Minibatch"),
        "custom distribution that sorts rows": Kind(sorts_rows, "mixes rows"),
        "custom distribution that accumulates rows": Kind(accumulates_rows, "mixes rows"),
        "nothing observed": Kind(nothing_observed, "no observed variables"),
        "a single observation": Kind(single_observation, "nothing to divide"),
        **zoo_forms.KINDS,
    },
}
KINDS = {name: kind for family in FAMILIES.values() for name, kind in family.items()}
