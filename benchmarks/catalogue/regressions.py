"""Regressions of one table. Data are drawn in the sizes of the real ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.interpolate import BSpline


def rng() -> np.random.Generator:
    return np.random.default_rng(4)


def kid_scores() -> pm.Model:
    """A. Gelman, J. Hill: scores of 434 children by school and IQ of the mother."""
    r = rng()
    school, iq = r.binomial(1, 0.8, 434), r.normal(100, 15, 434)
    y = 26 + 6 * school + 0.56 * iq + r.normal(0, 18, 434)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 50, shape=4)
        mu = b[0] + b[1] * school + b[2] * iq + b[3] * school * iq
        pm.Normal("y", mu, pm.HalfCauchy("sigma", 2.5), observed=y)
    return model


def robust() -> pm.Model:
    """A line through 100 points with outliers."""
    r = rng()
    x = np.linspace(0, 1, 100)
    y = 1 + 2 * x + 0.5 * r.standard_t(2, 100)
    with pm.Model(coords={"point": range(100)}) as model:
        data = pm.Data("x", x, dims="point")
        mu = pm.Normal("a", 0, 10) + pm.Normal("b", 0, 10) * data
        nu = pm.Gamma("nu", 2, 0.1)
        pm.StudentT("y", nu=nu, mu=mu, sigma=pm.HalfNormal("sigma", 1), observed=y, dims="point")
    return model


def wells() -> pm.Model:
    """A. Gelman, J. Hill: 3,020 households that change their well or not."""
    r = rng()
    x = np.column_stack([r.gamma(1.5, 0.3, 3020), r.gamma(2, 0.8, 3020), r.integers(0, 18, 3020)])
    with pm.Model() as model:
        eta = pm.Normal("a", 0, 5) + pm.math.dot(x, pm.Normal("b", 0, 2.5, shape=3))
        pm.Bernoulli("switched", logit_p=eta, observed=r.binomial(1, 0.58, 3020))
    return model


def incomes() -> pm.Model:
    """Incomes above 50,000 of 32,561 adults by age, its square, education and hours."""
    r, rows = rng(), 32_561
    age, edu, hours = r.integers(17, 80, rows), r.integers(1, 17, rows), r.integers(20, 60, rows)
    scaled = age / 40.0
    with pm.Model() as model:
        b = pm.Normal("b", 0, 10, shape=5)
        eta = b[0] + b[1] * scaled + b[2] * scaled**2 + b[3] * edu / 10 + b[4] * hours / 40
        pm.Bernoulli("y", p=pm.math.sigmoid(eta), observed=r.binomial(1, 0.24, rows))
    return model


def admissions() -> pm.Model:
    """Admissions to six departments by sex: twelve binomial rows."""
    r = rng()
    sex, dept, n = np.tile([0, 1], 6), np.repeat(np.arange(6), 2), r.integers(25, 800, 12)
    with pm.Model() as model:
        eta = pm.Normal("a", 0, 1.5, shape=2)[sex] + pm.Normal("d", 0, 1.5, shape=6)[dept]
        pm.Binomial("admit", n, pm.math.invlogit(eta), observed=r.binomial(n, 0.4))
    return model


def diamonds() -> pm.Model:
    """Prices of 5,000 diamonds by 24 columns."""
    r = rng()
    x = r.normal(size=(5000, 24))
    y = 8 + x @ r.normal(0, 0.2, 24) + r.normal(0, 0.1, 5000)
    with pm.Model() as model:
        a, b = pm.StudentT("a", nu=3, mu=8, sigma=10), pm.Normal("b", shape=24)
        sigma = pm.HalfStudentT("sigma", nu=3, sigma=10)
        pm.Normal("y", a + pt.dot(x - x.mean(axis=0), b), sigma, observed=y)
    return model


def horseshoe() -> pm.Model:
    """100 rows with 200 columns, of which few count (the regularised horseshoe)."""
    r = rng()
    x = r.normal(size=(100, 200))
    y = x[:, :5].sum(axis=1) + r.normal(size=100)
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 2)
        tau = pm.HalfStudentT("tau", 2, 5 / 195 * sigma / np.sqrt(100))
        lam = pm.HalfStudentT("lam", 5, shape=200)
        c2 = pm.InverseGamma("c2", 1, 1)
        z = pm.Normal("z", shape=200)
        beta = pm.Deterministic("beta", z * tau * lam * pt.sqrt(c2 / (c2 + tau**2 * lam**2)))
        pm.Normal("y", pm.Normal("b0", 0, 10) + pm.math.dot(x, beta), sigma, observed=y)
    return model


def cherry_blossoms() -> pm.Model:
    """R. McElreath: 827 years of the first bloom, a cubic spline of 17 columns."""
    r = rng()
    year = np.sort(r.choice(np.arange(812.0, 2016), 827, replace=False))
    inner = np.quantile(year, np.linspace(0, 1, 15))
    knots = np.r_[[inner[0]] * 3, inner, [inner[-1]] * 3]
    basis = np.asarray(BSpline.design_matrix(year, knots, 3).todense())
    with pm.Model(coords={"spline": range(basis.shape[1])}) as model:
        w = pm.Normal("w", 0, 3, dims="spline")
        mu = pm.Normal("a", 100, 5) + pm.math.dot(np.asarray(basis, order="F"), w.T)
        pm.Normal("doy", mu, pm.Exponential("sigma", 1), observed=r.normal(105, 6, 827))
    return model


def spread_by_group() -> pm.Model:
    """Location and scale of 1,000 rows by a covariate and a category."""
    r = rng()
    x, kind = r.uniform(0, 3, 1000), r.integers(0, 4, 1000)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2, shape=4), pm.Normal("b", 0, 1)
        c, d = pm.Normal("c", 0, 1, shape=4), pm.Normal("d", 0, 1)
        sigma = pt.exp(c[kind] + d * x)
        pm.Normal("y", a[kind] + b * x, sigma, observed=r.normal(x, 0.5 + x))
    return model


def quantiles() -> pm.Model:
    """The 0.9 quantile of 1,500 rows by an asymmetric Laplace."""
    r = rng()
    x = r.uniform(0, 20, 1500)
    with pm.Model() as model:
        mu = pm.Normal("a", 0, 10) + pm.Normal("b", 0, 2) * x
        b = pm.HalfNormal("scale", 1)
        pm.AsymmetricLaplace("y", q=0.9, mu=mu, b=b, observed=20 + x + r.normal(0, 1 + x / 5))
    return model


def yields() -> pm.Model:
    """Shares of crude oil that become gasoline: 32 rows in ten batches, beta regression."""
    r = rng()
    batch, temp = r.integers(0, 10, 32), r.normal(size=32)
    with pm.Model() as model:
        eta = pm.Normal("batch", 0, 1, shape=10)[batch] + pm.Normal("b") * temp
        kappa = pm.Gamma("kappa", 2, 0.02)
        pm.Beta("y", mu=pm.math.invlogit(eta), nu=kappa, observed=r.beta(2, 8, 32))
    return model


def claims() -> pm.Model:
    """Sizes of 6,000 claims by age, area and value of the car, a Gamma with a log link."""
    r, rows = rng(), 6000
    area, age, value = r.integers(0, 6, rows), r.integers(0, 6, rows), r.gamma(2, 1, rows)
    with pm.Model() as model:
        eta = pm.Normal("area", 7, 1, shape=6)[area] + pm.Normal("age", 0, 1, shape=6)[age]
        mu = pt.exp(eta + pm.Normal("b", 0, 1) * value)
        alpha = pm.Exponential("alpha", 1)
        pm.Gamma("y", alpha=alpha, beta=alpha / mu, observed=r.gamma(0.8, 2000, rows))
    return model


def trolley() -> pm.Model:
    """R. McElreath: 9,930 answers out of seven, by education as a monotonic effect."""
    r, rows = rng(), 9930
    action, intention, contact = r.integers(0, 2, (3, rows))
    edu = r.integers(0, 8, rows)
    with pm.Model() as model:
        start = np.linspace(-2, 2, 6)
        transform = pm.distributions.transforms.ordered
        kappa = pm.Normal("kappa", 0, 1.5, transform=transform, shape=6, initval=start)
        b = pm.Normal("b", 0, 0.5, shape=6)
        delta = pt.concatenate([[0.0], pm.Dirichlet("delta", np.full(7, 2.0))])
        phi = b[0] * action + b[1] * contact + (b[2] + b[3] * action + b[4] * contact) * intention
        phi = phi + b[5] * pt.cumsum(delta)[edu]
        pm.OrderedLogistic("answer", phi, kappa, observed=r.integers(0, 7, rows))
    return model


def careers() -> pm.Model:
    """R. McElreath: 500 careers out of three by family income, a softmax with a pivot."""
    r = rng()
    income, career = r.uniform(0, 1, 500), r.integers(0, 3, 500)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 1.5, shape=2), pm.Normal("b", 0, 1, shape=2)
        score = a + income[:, None] * b
        score = pt.concatenate([score, pt.zeros((500, 1))], axis=1)
        pm.Categorical("career", p=pm.math.softmax(score, axis=1), observed=career)
    return model


def bioassay() -> pm.Model:
    """A. Gelman: deaths of five animals at each of four doses; the dose that kills a half."""
    dose, deaths = np.array([-0.86, -0.3, -0.05, 0.73]), np.array([0, 1, 3, 5])
    with pm.Model() as model:
        alpha, beta = pm.Normal("alpha", 0, 5), pm.Normal("beta", 10, 10)
        pm.Deterministic("ld50", -alpha / beta)
        pm.Binomial("y", 5, pm.math.invlogit(alpha + beta * dose), observed=deaths)
    return model


def assays() -> pm.Model:
    """Four-parameter curves of 12 plates with eight doses in triplicate: 288 rows."""
    r = rng()
    plate, dose = np.repeat(np.arange(12), 24), np.tile(np.repeat(10.0 ** np.arange(-4, 4), 3), 12)
    y = 1 + 4 / (1 + (dose / 0.5) ** 1.2) + r.normal(0, 0.1, 288)
    with pm.Model(coords={"plate": range(12)}) as model:
        bottom, top = pm.HalfNormal("bottom", 2), pm.HalfNormal("top", 5, dims="plate")
        ec50, hill = pm.LogNormal("ec50", 0, 2, dims="plate"), pm.LogNormal("hill", 0, 0.5)
        mu = bottom + (top[plate] - bottom) / (1 + (dose / ec50[plate]) ** hill)
        pm.LogNormal("y", pt.log(mu), pm.HalfNormal("sigma", 0.5), observed=np.abs(y))
    return model


def growth() -> pm.Model:
    """Gompertz curves of 20 animals at twelve ages: 240 rows."""
    r = rng()
    animal, age = np.repeat(np.arange(20), 12), np.tile(np.arange(1.0, 13), 20)
    y = 50 * np.exp(-4 * np.exp(-0.4 * age)) * np.exp(r.normal(0, 0.05, 240))
    with pm.Model() as model:
        top = pm.LogNormal("top", np.log(50), 0.3, shape=20)
        shift, rate = pm.HalfNormal("shift", 5), pm.LogNormal("rate", -1, 0.3, shape=20)
        mu = top[animal] * pt.exp(-shift * pt.exp(-rate[animal] * age))
        pm.Normal("y", mu, pm.HalfNormal("sigma", 5), observed=y)
    return model


def divorces() -> pm.Model:
    """R. McElreath: divorce by age at marriage in 50 states, both with errors."""
    r = rng()
    age, rate = r.normal(size=50), r.normal(size=50)
    age_sd, rate_sd = r.uniform(0.1, 0.5, 50), r.uniform(0.2, 1, 50)
    with pm.Model() as model:
        a, b, sigma = pm.Normal("a", 0, 0.2), pm.Normal("b", 0, 0.5), pm.Exponential("sigma", 1)
        true_age = pm.Normal("true_age", 0, 1, shape=50)
        true_rate = pm.Normal("true_rate", a + b * true_age, sigma, shape=50)
        pm.Normal("age", true_age, age_sd, observed=age)
        pm.Normal("rate", true_rate, rate_sd, observed=rate)
    return model


def milk() -> pm.Model:
    """R. McElreath: energy of milk of 29 primates, the neocortex of twelve is missing."""
    r = rng()
    x, y, mass = r.normal(size=29), r.normal(size=29), r.normal(size=29)
    missing = np.ma.masked_array(x, np.arange(29) < 12)
    with pm.Model() as model:
        nu, sd = pm.Normal("nu", 0, 0.5), pm.Exponential("sd", 1)
        neocortex = pm.Normal("neocortex", nu, sd, observed=missing)
        b = pm.Normal("b", 0, 0.5, shape=3)
        mu = b[0] + b[1] * neocortex + b[2] * mass
        pm.Normal("y", mu, pm.Exponential("sigma", 1), observed=y)
    return model


def directions() -> pm.Model:
    """Directions of 600 flights by wind, von Mises."""
    r = rng()
    wind = r.normal(size=600)
    with pm.Model() as model:
        mu = pm.VonMises("a", 0, 1) + 2 * pt.arctan(pm.Normal("b") * wind)
        kappa = pm.HalfNormal("kappa", 5)
        pm.VonMises("y", mu, kappa, observed=r.vonmises(0.3, 2, 600))
    return model


def truncated() -> pm.Model:
    """500 rows, of which only those between two limits were recorded."""
    r = rng()
    x = r.uniform(-10, 10, 5000)
    y = 1.0 * x + r.normal(0, 2, 5000)
    kept = np.flatnonzero(np.abs(y) < 5)[:500]
    x, y = x[kept], y[kept]
    with pm.Model() as model:
        mu = pm.Normal("a", 0, 1) + pm.Normal("b", 0, 1) * x
        law = pm.Normal.dist(mu, pm.HalfNormal("sigma", 1))
        pm.Truncated("y", law, lower=-5, upper=5, observed=y)
    return model


def censored() -> pm.Model:
    """500 rows with values cut at two limits (tobit)."""
    r = rng()
    x = r.uniform(-10, 10, 500)
    y = np.clip(x + r.normal(0, 2, 500), -5, 5)
    with pm.Model() as model:
        mu = pm.Normal("a", 0, 1) + pm.Normal("b", 0, 1) * x
        law = pm.Normal.dist(mu, pm.HalfNormal("sigma", 1))
        pm.Censored("y", law, lower=-5, upper=5, observed=y)
    return model


def best() -> pm.Model:
    """J. Kruschke: the IQ of 47 with a drug and 42 with a placebo."""
    r = rng()
    drug, placebo = r.normal(101.9, 6, 47).round(), r.normal(100.4, 2.5, 42).round()
    with pm.Model() as model:
        mean = pm.Normal("mean", 101, 20, shape=2)
        sd = pm.Uniform("sd", 1, 10, shape=2)
        nu = pm.Exponential("nu_minus_one", 1 / 29.0) + 1
        pm.StudentT("drug", nu=nu, mu=mean[0], lam=sd[0] ** -2, observed=drug)
        pm.StudentT("placebo", nu=nu, mu=mean[1], lam=sd[1] ** -2, observed=placebo)
    return model


def conversions() -> pm.Model:
    """An A/B test: conversions of 20,000 visitors, and what those who convert spend."""
    r = rng()
    variant, bought = r.integers(0, 2, 20_000), r.binomial(1, 0.08, 20_000)
    of = variant[bought == 1]
    with pm.Model(coords={"variant": ["A", "B"]}) as model:
        p = pm.Beta("p", 1, 1, dims="variant")
        rate = pm.Gamma("rate", 1, 1, dims="variant")
        pm.Deterministic("lift", p[1] / p[0] - 1)
        pm.Bernoulli("bought", p[variant], observed=bought)
        pm.Exponential("spent", rate[of], observed=r.exponential(40, len(of)))
    return model


MODELS: dict[str, Callable[[], pm.Model]] = {
    "kid scores": kid_scores,
    "robust line": robust,
    "wells": wells,
    "incomes": incomes,
    "admissions": admissions,
    "diamonds": diamonds,
    "horseshoe": horseshoe,
    "cherry blossoms": cherry_blossoms,
    "scale by group": spread_by_group,
    "quantile regression": quantiles,
    "gasoline yields": yields,
    "claims": claims,
    "trolley": trolley,
    "careers": careers,
    "bioassay": bioassay,
    "assays": assays,
    "Gompertz growth": growth,
    "divorces": divorces,
    "milk": milk,
    "directions": directions,
    "truncated": truncated,
    "censored": censored,
    "BEST": best,
    "A/B test": conversions,
}
