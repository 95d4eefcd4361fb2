"""Models whose rows have other distributions than those of the other zoos, several in each."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from kinds import Kind, N, rng

X = np.c_[np.ones(N), rng().normal(size=N)]
REAL = rng().normal(size=N)
POSITIVE, UNIT = np.exp(REAL), rng().uniform(0.01, 0.99, N)
COUNTS = rng().poisson(3, N)


def linear() -> tuple[pt.TensorVariable, pt.TensorVariable]:
    """A linear predictor, and a scale."""
    return X @ pm.Normal("b", shape=2), pm.HalfNormal("s")


def real_numbers() -> pm.Model:
    with pm.Model() as model:
        eta, s = linear()
        pm.AsymmetricLaplace("asymmetric", mu=eta, b=s, kappa=1.5, observed=REAL)
        pm.Moyal("moyal", mu=eta, sigma=s, observed=REAL)
        pm.Logistic("logistic", mu=eta, s=s, observed=REAL)
        pm.Gumbel("gumbel", mu=eta, beta=s, observed=REAL)
        pm.Laplace("laplace", mu=eta, b=s, observed=REAL)
        pm.Cauchy("cauchy", eta, s, observed=REAL)
        pm.SkewStudentT("skew", a=2.0, b=1.5, mu=eta, sigma=s, observed=REAL)
    return model


def positive_numbers() -> pm.Model:
    with pm.Model() as model:
        eta, s = linear()
        mu = pm.math.exp(eta)
        pm.Wald("wald", mu=mu, lam=s, observed=POSITIVE)
        pm.InverseGamma("inverse", alpha=s, beta=mu, observed=POSITIVE)
        pm.Rice("rice", nu=mu, sigma=s, observed=POSITIVE)
        pm.Pareto("pareto", alpha=s, m=0.001, observed=POSITIVE)
        pm.HalfCauchy("cauchy", beta=mu, observed=POSITIVE)
        pm.ChiSquared("square", nu=mu, observed=POSITIVE)
        pm.HalfStudentT("student", nu=s, sigma=mu, observed=POSITIVE)
    return model


def shares_and_angles() -> pm.Model:
    with pm.Model() as model:
        eta, s = linear()
        pm.Kumaraswamy("kumaraswamy", a=pm.math.exp(eta), b=s, observed=UNIT)
        pm.LogitNormal("logit", mu=eta, sigma=s, observed=UNIT)
        pm.VonMises("angle", mu=0.1, kappa=pm.math.exp(eta), observed=np.pi * (2 * UNIT - 1))
        pm.Triangular("three", lower=0.0, upper=1.0, c=pm.math.invlogit(eta), observed=UNIT)
    return model


def counts() -> pm.Model:
    with pm.Model() as model:
        eta, s = linear()
        mu, p = pm.math.exp(eta), pm.math.invlogit(eta)
        pm.Geometric("geometric", p=p, observed=COUNTS + 1)
        pm.DiscreteWeibull("weibull", q=p, beta=s, observed=COUNTS)
        pm.ZeroInflatedNegativeBinomial("zeros", psi=0.6, mu=mu, alpha=s, observed=COUNTS)
        pm.ZeroInflatedBinomial("binomial", psi=p, n=40, p=0.1, observed=COUNTS)
        pm.HyperGeometric("urn", N=100, k=30, n=20, observed=np.minimum(COUNTS, 15))
    return model


def truncated_counts() -> pm.Model:
    with pm.Model() as model:
        eta, _ = linear()
        seen = np.maximum(COUNTS, 1)
        pm.Truncated("poisson", pm.Poisson.dist(pm.math.exp(eta)), lower=1, observed=seen)
        geometric = pm.Geometric.dist(pm.math.invlogit(eta))
        pm.Truncated("geometric", geometric, upper=30, observed=COUNTS + 1)
    return model


def censored_numbers() -> pm.Model:
    low, high = np.full(N, -1.0), np.full(N, 1.2)
    some = np.where(UNIT < 0.5, 1.2, np.inf)
    with pm.Model() as model:
        eta, s = linear()
        student = pm.StudentT.dist(nu=3, mu=eta, sigma=s)
        pm.Censored("student", student, lower=low, upper=high, observed=np.clip(REAL, -1, 1.2))
        below, normal = np.minimum(REAL, 1.2), pm.Normal.dist(eta, s)
        pm.Censored("normal", normal, lower=-np.inf, upper=some, observed=below)
        pm.Censored("gumbel", pm.Gumbel.dist(eta, s), lower=None, upper=1.2, observed=below)
    return model


def mixtures() -> pm.Model:
    ordered = pm.distributions.transforms.ordered
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(2))
        mu = pm.Normal("mu", [-1, 1], 1, shape=2, transform=ordered, initval=[-1.0, 1.0])
        s = pm.HalfNormal("s", shape=2)
        two = [pm.Normal.dist(mu[0], s[0]), pm.StudentT.dist(3, mu=mu[1], sigma=s[1])]
        pm.Mixture("families", w, two, observed=REAL)
        share = pm.math.invlogit(X[:, 1] * mu[0])
        two = [pm.Laplace.dist(0.0, s[0]), pm.Cauchy.dist(0.0, s[1])]
        pm.Mixture("rows", pt.stack([share, 1 - share], axis=-1), two, observed=REAL)
    return model


def rows_of_several() -> pm.Model:
    r = rng()
    rows, shares = r.normal(size=(N, 3)), r.multinomial(20, [0.2, 0.3, 0.5], size=N)
    with pm.Model() as model:
        scale = pm.Exponential.dist(1.0)
        chol, *_ = pm.LKJCholeskyCov("c", eta=2, n=3, sd_dist=scale)
        mu = pm.Normal("mu", shape=3)
        pm.MvStudentT("student", nu=4, mu=mu, chol=chol, observed=rows)
        pm.Multinomial("shares", 20, pm.Dirichlet("p", np.ones(3)), observed=shares)
        pm.DirichletMultinomial("more", n=20, a=pt.exp(mu), observed=shares)
        pm.Dirichlet("parts", a=pt.exp(mu), observed=r.dirichlet(np.ones(3), size=N))
        pm.Categorical("one", logit_p=REAL[:, None] * mu, observed=r.integers(0, 3, N))
    return model


def exponentials_of_draws() -> pm.Model:
    """A density that PyMC derives."""

    def dist(mu, s, size=None):
        return pt.exp(pm.Normal.dist(mu, s, size=size))

    with pm.Model() as model:
        mu, s = pm.Normal("mu"), pm.HalfNormal("s")
        pm.CustomDist("y", mu, s, dist=dist, observed=POSITIVE)
    return model


def differential_equation() -> pm.Model:
    """Of hares and foxes, solved by SciPy, without gradients of its own."""

    def slope(y, t, p):
        return [p[0] * y[0] - 0.5 * y[0] * y[1], -0.4 * y[1] + 0.3 * y[0] * y[1]]

    equation = pm.ode.DifferentialEquation(
        slope, times=np.linspace(0.2, 4, 20), n_states=2, n_theta=1, t0=0
    )
    with pm.Model() as model:
        solved = equation(y0=[2.0, 1.0], theta=[pm.HalfNormal("a")])
        seen = np.abs(rng().normal(size=(20, 2))) + 1
        pm.LogNormal("y", pt.log(solved), pm.HalfNormal("s"), observed=seen)
    return model


def autoregression_of_latents() -> pm.Model:
    with pm.Model() as model:
        rho, first = pm.Normal("rho", 0, 0.3, shape=2), pm.Normal.dist(0, 1)
        latent = pm.AR("latent", rho=rho, sigma=0.3, init_dist=first, constant=False, shape=N)
        pm.StudentT("y", nu=4, mu=latent, sigma=1, observed=REAL)
    return model


def sparse_process_beside_rows() -> pm.Model:
    x = np.linspace(0, 3, 40)[:, None]
    with pm.Model() as model:
        length, s = pm.Gamma("length", 2, 2), pm.HalfNormal("s")
        kernel = pm.gp.cov.ExpQuad(1, length)
        process = pm.gp.MarginalApprox(cov_func=kernel, approx="VFE")
        process.marginal_likelihood("g", X=x, Xu=x[::8], y=np.sin(x.ravel()), sigma=s)
        pm.Normal("y", length, s, observed=REAL)
    return model


def no_rows_beside_rows() -> pm.Model:
    """An observed variable, and a dimension, of length 0."""
    with pm.Model(coords={"nobody": []}) as model:
        a = pm.Normal("a") + pm.Normal("e", dims="nobody").sum()
        pm.Normal("none", a, 1, observed=np.zeros(0))
        pm.Normal("y", a, 1, observed=REAL)
    return model


KINDS = {
    "real numbers, seven families": Kind(real_numbers),
    "positive numbers, seven families": Kind(positive_numbers),
    "shares and angles, four families": Kind(shares_and_angles),
    "counts, five families": Kind(counts),
    "truncated counts, two families": Kind(truncated_counts),
    "censored numbers, three families": Kind(censored_numbers),
    "mixtures of two families": Kind(mixtures),
    "rows of several numbers, five families": Kind(rows_of_several),
    "exponentials of draws, density derived": Kind(exponentials_of_draws),
    "differential equation, solved": Kind(differential_equation),
    "autoregression of latents": Kind(autoregression_of_latents),
    "sparse Gaussian process, beside rows": Kind(sparse_process_beside_rows),
    "no rows, beside rows": Kind(no_rows_beside_rows, names=("y",)),
}
