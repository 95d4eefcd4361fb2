"""Items, mixtures, factors, processes and series. Data are drawn in the sizes of the real ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt


def rng() -> np.random.Generator:
    return np.random.default_rng(6)


def rasch() -> pm.Model:
    """Answers of 200 students to 30 items, a matrix (1PL)."""
    r = rng()
    with pm.Model(coords={"student": range(200), "item": range(30)}) as model:
        ability = pm.Normal("ability", 0, 1, dims="student")
        hard = pm.ZeroSumNormal("hard", sigma=pm.HalfNormal("sd", 1), dims="item")
        eta = ability[:, None] - hard[None, :]
        y = r.integers(0, 2, (200, 30))
        pm.Bernoulli("y", logit_p=eta, observed=y, dims=("student", "item"))
    return model


def two_parameters() -> pm.Model:
    """10,000 answers of 500 students to 40 items, a row each (2PL)."""
    r = rng()
    student, item = r.integers(0, 500, 10_000), r.integers(0, 40, 10_000)
    with pm.Model() as model:
        theta, b = pm.Normal("theta", shape=500), pm.Normal("b", 0, 2, shape=40)
        a = pm.LogNormal("a", 0, 0.5, shape=40)
        p = pm.math.sigmoid(a[item] * (theta[student] - b[item]))
        pm.Bernoulli("y", p=p, observed=r.integers(0, 2, 10_000))
    return model


def grades() -> pm.Model:
    """Answers out of five of 300 persons to ten items, with cut points of each item."""
    r = rng()
    person, item = np.repeat(np.arange(300), 10), np.tile(np.arange(10), 300)
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=300)
        transform = pm.distributions.transforms.ordered
        start = np.tile(np.linspace(-2, 2, 4), (10, 1))
        cuts = pm.Normal("cuts", 0, 2, shape=(10, 4), transform=transform, initval=start)
        eta = theta[person]
        y = r.integers(0, 5, 3000)
        pm.OrderedLogistic("y", eta=eta, cutpoints=cuts[item], compute_p=False, observed=y)
    return model


def geyser() -> pm.Model:
    """Waits for 272 eruptions, a mixture of two."""
    r = rng()
    y = np.where(r.random(272) < 0.35, r.normal(54, 6, 272), r.normal(80, 6, 272)).round()
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(2))
        transform = pm.distributions.transforms.ordered
        mu = pm.Normal("mu", 70, 20, shape=2, transform=transform, initval=[50.0, 80])
        pm.NormalMixture("y", w, mu, pm.HalfNormal("sigma", 10, shape=2), observed=y)
    return model


def sunspots() -> pm.Model:
    """Sunspots of 333 years, a Dirichlet process of 50 Poissons by sticks."""
    y = rng().poisson(rng().gamma(2, 25, 333))
    with pm.Model() as model:
        beta = pm.Beta("beta", 1.0, pm.Gamma("alpha", 1.0, 1.0), shape=50)
        rest = pt.concatenate([[1], pt.extra_ops.cumprod(1 - beta)[:-1]])
        w = pm.Deterministic("w", beta * rest)
        parts = pm.Poisson.dist(pm.Uniform("lambda", 0.0, 300.0, shape=50))
        pm.Mixture("y", w / w.sum(), parts, observed=y)
    return model


def outliers() -> pm.Model:
    """D. Hogg: 20 points with errors, each an outlier or not, marginalised by hand."""
    r = rng()
    x, error = r.normal(size=20), r.uniform(0.1, 0.4, 20)
    y = x + r.normal(0, error)
    with pm.Model() as model:
        mu = pm.Normal("a", 0, 10) + pm.Normal("b", 0, 10) * x
        share, wide = pm.Uniform("share", 0, 0.5), pm.HalfNormal("wide", 10)
        far = pm.Normal("far", 0, 10)
        good = pm.logp(pm.Normal.dist(mu, error), y)
        bad = pm.logp(pm.Normal.dist(far, error + wide), y)
        pm.Potential("y", pt.logaddexp(pt.log1p(-share) + good, pt.log(share) + bad).sum())
    return model


def raters() -> pm.Model:
    """45 patients, five raters, four classes (A. Dawid, A. Skene), classes summed out."""
    r = rng()
    patient, rater = np.repeat(np.arange(45), 7), np.tile([0, 0, 0, 1, 2, 3, 4], 45)
    rating = r.integers(0, 4, 315)
    with pm.Model() as model:
        pi = pm.Dirichlet("pi", np.ones(4))
        a = np.full((5, 4, 4), 0.5) + 4 * np.eye(4)
        theta = pm.Dirichlet("theta", a, shape=(5, 4, 4))
        by_row = pt.log(theta[rater, :, rating])
        total = pt.zeros((45, 4))[patient].inc(by_row)
        pm.Potential("y", pt.logsumexp(pt.log(pi) + total, axis=1).sum())
    return model


def factors() -> pm.Model:
    """Four factors of 250 rows with ten columns, the factors integrated out."""
    y = rng().normal(size=(250, 10))
    with pm.Model() as model:
        w = pm.Normal("w", 0, 1, shape=(10, 4))
        psi = pm.HalfNormal("psi", 1, shape=10)
        cov = w @ w.T + pt.diag(psi)
        pm.MvNormal("y", np.zeros(10), cov=cov, observed=y)
    return model


def factors_of_rows() -> pm.Model:
    """The same with factors of each row as parameters."""
    y = rng().normal(size=(10, 250))
    with pm.Model() as model:
        w, f = pm.Normal("w", shape=(10, 4)), pm.Normal("f", shape=(4, 250))
        psi = pm.HalfNormal("psi", 1.0)
        pm.Normal("y", w.dot(f), psi, observed=y)
    return model


def films() -> pm.Model:
    """Ratings of 100 films by 200 users, 5,000 rows, five factors."""
    r = rng()
    user, film = r.integers(0, 200, 5000), r.integers(0, 100, 5000)
    with pm.Model() as model:
        u, v = pm.Normal("u", 0, 0.5, shape=(200, 5)), pm.Normal("v", 0, 0.5, shape=(100, 5))
        mu = pm.Normal("mu", 3, 1) + (u[user] * v[film]).sum(axis=-1)
        pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=r.integers(1, 6, 5000))
    return model


def covariance() -> pm.Model:
    """1,000 rows of four columns with an LKJ prior."""
    y = rng().normal(size=(1000, 4))
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=4, eta=2, sd_dist=pm.Exponential.dist(1.0))
        pm.MvNormal("y", pm.Normal("mu", shape=4), chol=chol, observed=y)
    return model


def marginal_process() -> pm.Model:
    """A Gaussian process of 100 points with noise."""
    r = rng()
    x = np.linspace(0, 10, 100)[:, None]
    with pm.Model() as model:
        cov = pm.HalfCauchy("eta", 5) ** 2 * pm.gp.cov.Matern52(1, pm.Gamma("ell", 2, 1))
        gp = pm.gp.Marginal(cov_func=cov)
        gp.marginal_likelihood("y", X=x, y=r.normal(size=100), sigma=pm.HalfCauchy("sigma", 5))
    return model


def latent_process() -> pm.Model:
    """A Gaussian process under counts at 80 points."""
    r = rng()
    x = np.linspace(0, 10, 80)[:, None]
    with pm.Model() as model:
        cov = pm.HalfNormal("eta", 1) ** 2 * pm.gp.cov.ExpQuad(1, pm.InverseGamma("ell", 5, 5))
        f = pm.gp.Latent(cov_func=cov).prior("f", X=x)
        pm.Poisson("y", pt.exp(f), observed=r.poisson(2, 80))
    return model


def births() -> pm.Model:
    """Births of 7,305 days: a trend by 20 basis functions (HSGP), the week's days, the year."""
    r, days = rng(), 7305
    t = (np.arange(days) - days / 2)[:, None] / days
    week, year = np.arange(days) % 7, np.arange(days) * 2 * np.pi / 365.25
    waves = np.column_stack([f(k * year) for k in range(1, 6) for f in (np.sin, np.cos)])
    with pm.Model() as model:
        cov = pm.HalfNormal("eta", 1) ** 2 * pm.gp.cov.ExpQuad(1, pm.LogNormal("ell", -1, 0.5))
        trend = pm.gp.HSGP(m=[20], c=1.5, cov_func=cov).prior("trend", X=t)
        of_day = pm.ZeroSumNormal("day", 1, shape=7)
        mu = trend + of_day[week] + waves @ pm.Normal("waves", 0, 0.5, shape=10)
        pm.Normal("y", mu, pm.HalfNormal("sigma", 1), observed=r.normal(size=days))
    return model


def coal() -> pm.Model:
    """Accidents in 111 years with a change of the rate at an unknown year; two are missing."""
    r = rng()
    counts = np.ma.masked_array(r.poisson(2, 111), np.isin(np.arange(111), [42, 83]))
    year = np.arange(1851, 1962)
    with pm.Model() as model:
        change = pm.DiscreteUniform("change", lower=1851, upper=1961)
        early, late = pm.Exponential("early", 1.0), pm.Exponential("late", 1.0)
        pm.Poisson("disasters", pm.math.switch(change >= year, early, late), observed=counts)
    return model


def volatility() -> pm.Model:
    """Returns of 2,906 days with a scale that walks."""
    y = rng().standard_t(5, 2906) * 0.01
    with pm.Model(coords={"day": range(2906)}) as model:
        step = pm.Exponential("step", 10)
        start = pm.Normal.dist(0, 100)
        walk = pm.GaussianRandomWalk("walk", sigma=step, init_dist=start, dims="day")
        nu = pm.Exponential("nu", 0.1)
        pm.StudentT("y", nu=nu, lam=np.exp(-2 * walk), observed=y, dims="day")
    return model


def autoregression() -> pm.Model:
    """An AR(2) of 200 steps."""
    y = np.cumsum(rng().normal(size=200)) * 0.1
    with pm.Model() as model:
        rho, sigma = pm.Normal("rho", 0, 0.5, shape=3), pm.HalfNormal("sigma", 1)
        start = pm.Normal.dist(0, 1, size=2)
        pm.AR("y", rho, sigma=sigma, constant=True, init_dist=start, observed=y)
    return model


def local_level() -> pm.Model:
    """The flow of a river in 100 years, a level that walks."""
    y = 1000 + rng().normal(0, 120, 100)
    with pm.Model() as model:
        z = pm.Normal("z", shape=100)
        level = 1000 + pt.cumsum(pm.HalfNormal("step", 50) * z)
        pm.Normal("y", level, pm.HalfNormal("sigma", 150), observed=y)
    return model


def garch() -> pm.Model:
    """GARCH(1, 1) of 500 returns, the variances by a scan."""
    y = rng().normal(size=500)
    with pm.Model() as model:
        a0, a1 = pm.HalfNormal("a0", 1), pm.Uniform("a1", 0, 1)
        b1 = pm.Uniform("b1", 0, 1)
        before = pt.as_tensor(y[:-1] ** 2)
        variance = pytensor.scan(
            lambda square, v, a0, a1, b1: a0 + a1 * square + b1 * v,
            sequences=[before],
            outputs_info=[pt.constant(1.0, dtype="float64")],
            non_sequences=[a0, a1, (1 - a1) * b1],
            return_updates=False,
        )
        pm.Normal("y", 0, pt.sqrt(variance), observed=y[1:])
    return model


def forecast() -> pm.Model:
    """Daily values of eight years: a trend with 25 changes of slope, ten waves."""
    r, days = rng(), 2920
    t = np.linspace(0, 1, days)
    changes = np.linspace(0, 0.8, 25)
    after = (t[:, None] > changes).astype(float)
    waves = np.column_stack([f(k * 16 * np.pi * t) for k in range(1, 6) for f in (np.sin, np.cos)])
    with pm.Model() as model:
        rate, level = pm.Normal("rate", 0, 5), pm.Normal("level", 0, 5)
        delta = pm.Laplace("delta", 0, 0.1, shape=25)
        grows = (rate + pt.dot(after, delta)) * t + (level + pt.dot(after, -changes * delta))
        season = pt.dot(waves, pm.Normal("season", 0, 1, shape=10))
        pm.Normal("y", grows + season, pm.HalfNormal("sigma", 0.5), observed=r.normal(size=days))
    return model


def media_mix() -> pm.Model:
    """Sales of 179 weeks by two channels with carry-over and saturation."""
    r = rng()
    spend, week = r.gamma(2, 0.5, (179, 2)), np.arange(179) / 179
    lags = np.stack([np.vstack([np.zeros((i, 2)), spend[: 179 - i]]) for i in range(8)])
    with pm.Model(coords={"channel": ["x1", "x2"]}) as model:
        keep, lam = pm.Beta("keep", 1, 3, dims="channel"), pm.Gamma("lam", 3, 1, dims="channel")
        beta = pm.HalfNormal("beta", 2, dims="channel")
        weights = pt.exp(np.arange(8)[:, None] * pt.log(keep)[None, :])
        carried = (lags * (weights / weights.sum(axis=0))[:, None, :]).sum(axis=0)
        grown = (1 - pt.exp(-lam * carried)) / (1 + pt.exp(-lam * carried))
        mu = pm.Normal("a", 0, 2) + pm.Normal("t", 0, 1) * week + (beta * grown).sum(axis=-1)
        pm.Normal("y", mu, pm.HalfNormal("sigma", 2), observed=r.normal(3, 1, 179))
    return model


def captures() -> pm.Model:
    """Histories of 255 birds over seven years, survival and recapture summed by hand (CJS)."""
    r = rng()
    first = r.integers(0, 6, 255)
    seen = (r.random((255, 7)) < 0.5) & (np.arange(7) > first[:, None])
    last = np.where(seen.any(axis=1), 6 - np.argmax(seen[:, ::-1], axis=1), first)
    with pm.Model() as model:
        phi, p = pm.Uniform("phi", 0, 1), pm.Uniform("p", 0, 1)
        never = [pt.ones(())]  # not seen again after the last year, the one before, ...
        for _ in range(6):
            never.append((1 - phi) + phi * (1 - p) * never[-1])
        gone = pt.log(pt.stack(never))[6 - last]
        alive = (last - first) * pt.log(phi)
        caught = seen.sum(axis=1)
        met = caught * pt.log(p) + (last - first - caught) * pt.log1p(-p)
        pm.Potential("histories", alive + met + gone)
    return model


def closed_captures() -> pm.Model:
    """Animals of an unknown number in five nights: 200 histories, most of them never seen."""
    r = rng()
    counts = np.where(r.random(200) < 0.5, r.binomial(5, 0.4, 200), 0)
    with pm.Model() as model:
        psi, p = pm.Beta("psi", 0.001, 1), pm.Uniform("p", 0, 1)
        pm.ZeroInflatedBinomial("y", psi=psi, n=5, p=p, observed=counts)
    return model


def occupancy() -> pm.Model:
    """Beetles at 27 sites with three to six visits, by height of the site."""
    r = rng()
    visits, height = r.integers(3, 7, 27), r.normal(size=27)
    y = r.binomial(visits, 0.3) * r.integers(0, 2, 27)
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2)
        psi = pm.math.invlogit(a + b * height)
        pm.ZeroInflatedBinomial("y", psi=psi, n=visits, p=pm.Beta("p", 1, 1), observed=y)
    return model


def lynxes() -> pm.Model:
    """Hares and lynxes of 21 years: Lotka-Volterra by steps of a scan."""
    y = rng().lognormal(3, 0.5, (21, 2))
    with pm.Model() as model:
        rates = pm.LogNormal("rates", np.log([0.5, 0.025, 0.8, 0.025]), 0.3, shape=4)
        start, sigma = pm.LogNormal("start", np.log(20), 0.5, shape=2), pm.HalfNormal("sigma", 1)

        def step(state: pt.TensorVariable, rates: pt.TensorVariable) -> pt.TensorVariable:
            h, m = state[0], state[1]
            change = [rates[0] * h - rates[1] * h * m, rates[3] * h * m - rates[2] * m]
            return state + 0.1 * pt.stack(change)

        path = pytensor.scan(
            step, outputs_info=[start], non_sequences=[rates], n_steps=200, return_updates=False
        )
        states = pt.concatenate([start[None], path[9::10]])
        pm.LogNormal("y", pt.log(pt.maximum(states, 1e-3)), sigma, observed=y)
    return model


MODELS: dict[str, Callable[[], pm.Model]] = {
    "Rasch": rasch,
    "two-parameter items": two_parameters,
    "graded answers": grades,
    "geyser": geyser,
    "sunspots": sunspots,
    "outliers": outliers,
    "raters": raters,
    "factors, integrated out": factors,
    "factors of each row": factors_of_rows,
    "films": films,
    "covariance": covariance,
    "marginal process": marginal_process,
    "latent process": latent_process,
    "births": births,
    "coal mining": coal,
    "volatility": volatility,
    "autoregression": autoregression,
    "local level": local_level,
    "GARCH": garch,
    "forecast": forecast,
    "media mix": media_mix,
    "capture histories": captures,
    "closed captures": closed_captures,
    "occupancy": occupancy,
    "lynxes": lynxes,
}
