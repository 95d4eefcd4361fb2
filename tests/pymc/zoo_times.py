"""Times and places: survival, series, Gaussian processes, neighbours."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from kinds import Kind, N, rng


def piecewise_exponential() -> pm.Model:
    """Cox's model as Poisson counts of deaths, by subject and interval."""
    r = rng()
    coords = {"subject": range(N), "interval": range(5)}
    with pm.Model(coords=coords) as model:
        base = pm.Gamma("base", 1, 1, dims="interval")
        hazard = pt.outer(pt.exp(pm.Normal("b") * r.integers(0, 2, N)), base)
        exposure, death = r.uniform(0.1, 1, (N, 5)), r.integers(0, 2, (N, 5))
        pm.Poisson("y", exposure * hazard, observed=death, dims=("subject", "interval"))
    return model


def frailty() -> pm.Model:
    """Counts of recurrences, with a gamma frailty of each patient."""
    r = rng()
    patient = r.integers(0, 12, N)
    with pm.Model() as model:
        theta, b = pm.Gamma("theta", 2, 1), pm.Normal("b", shape=2)
        frail = pm.Gamma("frail", theta, theta, shape=12)
        rate = frail[patient] * pt.exp(r.normal(size=(N, 2)) @ b)
        pm.Weibull("y", alpha=1.2, beta=rate ** (-1 / 1.2), observed=r.weibull(1.2, N))
    return model


def accelerated_failure(by_row: bool) -> pm.Model:
    """Gumbel errors of log times; each row has a time of censoring, or observes the event."""
    r = rng()
    event, x, y = r.integers(0, 2, N).astype(bool), r.normal(size=(N, 2)), r.gumbel(size=N)
    with pm.Model() as model:
        b, scale = pm.Normal("b", shape=2), pm.HalfNormal("scale")
        if by_row:
            upper = np.where(event, np.inf, y)
            latent = pm.Gumbel.dist(x @ b, scale)
            pm.Censored("y", latent, lower=None, upper=upper, observed=y)
        else:
            pm.Gumbel("seen", x[event] @ b, scale, observed=y[event])
            late = (y[~event] - x[~event] @ b) / scale
            pm.Potential("late", pt.log1p(-pt.exp(-pt.exp(-late))))
    return model


def autoregression_by_hand() -> pm.Model:
    y = rng().normal(size=N)
    with pm.Model() as model:
        a, rho = pm.Normal("a"), pm.Normal("rho", 0, 0.5, shape=2)
        mu = a + rho[0] * y[1:-1] + rho[1] * y[:-2]
        pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=y[2:])
    return model


def autoregression_by_scan() -> pm.Model:
    """A scan over the times whose steps read observed lags, and carry nothing."""
    y = rng().normal(size=N)
    with pm.Model() as model:
        rho = pm.Normal("rho", 0, 0.5)
        lags = pt.as_tensor(y[:-1])
        how = {"non_sequences": [rho], "strict": True, "return_updates": False}
        mu = pytensor.scan(lambda lag, rho: rho * lag, [lags], **how)
        pm.Normal("y", mu, 1, observed=y[1:])
    return model


def vector_autoregression() -> pm.Model:
    y = rng().normal(size=(N + 2, 3))
    with pm.Model() as model:
        first, second = pm.Normal("first", shape=(3, 3)), pm.Normal("second", shape=(3, 3))
        mu = y[1:-1] @ first + y[:-2] @ second
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2, sd_dist=pm.Exponential.dist(1, shape=3))
        pm.MvNormal("y", mu, chol=chol, observed=y[2:])
    return model


def walking_coefficients() -> pm.Model:
    """A regression whose coefficients walk from month to month."""
    r = rng()
    month = np.arange(N) // 6
    with pm.Model() as model:
        init = pm.Normal.dist(0, 1)
        b = pm.GaussianRandomWalk("b", sigma=0.3, init_dist=init, shape=(2, month.max() + 1))
        mu = b[0, month] + b[1, month] * r.normal(size=N)
        pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=r.normal(size=N))
    return model


def trend_and_seasons() -> pm.Model:
    """A trend that bends at change points, and waves of a year."""
    r = rng()
    t = np.linspace(0, 1, N)
    bends = np.linspace(0.1, 0.9, 5)
    after = (t[:, None] > bends) * 1.0
    waves = np.concatenate([f(2 * np.pi * t[:, None] * [1, 2, 3]) for f in (np.sin, np.cos)], 1)
    with pm.Model(coords={"time": range(N), "bend": range(5), "wave": range(6)}) as model:
        k, m = pm.Normal("k", 0, 5), pm.Normal("m", 0, 5)
        delta, season = pm.Laplace("delta", 0, 0.1, dims="bend"), pm.Normal("season", dims="wave")
        trend = (k + pt.dot(after, delta)) * t + m + pt.dot(after, -bends * delta)
        mu = trend * (1 + pt.dot(waves, season))
        pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=r.normal(size=N), dims="time")
    return model


def media_mix() -> pm.Model:
    """Spending works on for some weeks, with less and less effect for more."""
    r = rng()
    spent = r.gamma(1, size=(N, 2))
    lags = np.stack([np.pad(spent, ((k, 0), (0, 0)))[:N] for k in range(4)], axis=2)
    with pm.Model(coords={"week": range(N), "channel": list("ab")}) as model:
        alpha, lam = pm.Beta("alpha", 1, 3, dims="channel"), pm.Gamma("lam", 3, 1, dims="channel")
        weights = alpha[:, None] ** np.arange(4)
        stock = (lags * weights / weights.sum(axis=1, keepdims=True)).sum(axis=2)
        saturated = (1 - pt.exp(-lam * stock)) / (1 + pt.exp(-lam * stock))
        beta = pm.HalfNormal("beta", dims="channel")
        mu = pm.Normal("a") + pt.dot(saturated, beta)
        pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=r.normal(size=N), dims="week")
    return model


def media_mix_by_convolution() -> pm.Model:
    """The same lags, made in the graph from one series of spending."""
    r = rng()
    with pm.Model() as model:
        spent = pm.Data("spent", r.gamma(1, size=N))
        alpha, beta = pm.Beta("alpha", 1, 3), pm.HalfNormal("beta")
        lags = [pt.concatenate([pt.zeros(k), spent[: N - k]]) for k in range(4)]
        stock = pt.stack(lags, axis=1) @ (alpha ** np.arange(4))
        pm.Normal("y", beta * pt.tanh(stock), 1.0, observed=r.normal(size=N))
    return model


def hilbert_space_process() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        ell, eta = pm.InverseGamma("ell", 5, 5), pm.HalfNormal("eta")
        cov = eta**2 * pm.gp.cov.Matern52(1, ls=ell)
        gp = pm.gp.HSGP(m=[8], c=1.5, cov_func=cov)
        f = gp.prior("f", X=np.linspace(0, 1, N)[:, None])
        pm.Normal("y", f, pm.HalfNormal("sigma"), observed=r.normal(size=N))
    return model


def robust_process() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        ell, eta = pm.Gamma("ell", 2, 1), pm.HalfNormal("eta", 5)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ell))
        f = gp.prior("f", X=np.linspace(0, 10, 100)[:, None])
        pm.StudentT("y", mu=f, lam=1, nu=4, observed=r.normal(size=100))
    return model


def neighbours() -> np.ndarray:
    """The districts of a ring, each beside two others."""
    beside = np.eye(N, k=1) + np.eye(N, k=-1)
    beside[0, -1] = beside[-1, 0] = 1
    return beside


def besag_york_mollie() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        theta, phi = pm.Normal("theta", shape=N), pm.ICAR("phi", W=neighbours())
        rho, sigma = pm.Beta("rho", 0.5, 0.5), pm.HalfNormal("sigma")
        mixed = pt.sqrt(1 - rho) * theta + pt.sqrt(rho / 0.7) * phi
        log_e = np.log(r.uniform(1, 5, N))
        mu = pt.exp(log_e + pm.Normal("a") + pm.Normal("b") * r.normal(size=N) + sigma * mixed)
        pm.Poisson("y", mu, observed=r.poisson(2, N))
    return model


def conditional_autoregression() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        tau, alpha = pm.Gamma("tau", 2, 2), pm.Beta("alpha", 2, 2)
        phi = pm.CAR("phi", mu=np.zeros(N), W=neighbours(), alpha=alpha, tau=tau)
        pm.Poisson("y", pt.exp(pm.Normal("a") + phi), observed=r.poisson(2, N))
    return model


def car_observed() -> pm.Model:
    with pm.Model() as model:
        mu, tau = pm.Normal("mu"), pm.Gamma("tau", 2, 2)
        y = rng().normal(size=N)
        pm.CAR("y", mu=mu * np.ones(N), W=neighbours(), alpha=0.5, tau=tau, observed=y)
    return model


def walk_of_vectors() -> pm.Model:
    with pm.Model() as model:
        mu, init = pm.Normal("mu", shape=2), pm.MvNormal.dist(np.zeros(2), np.eye(2))
        y = np.cumsum(rng().normal(size=(N, 2)), axis=0)
        pm.MvGaussianRandomWalk("y", mu=mu, chol=np.eye(2), init_dist=init, observed=y)
    return model


def garch() -> pm.Model:
    with pm.Model() as model:
        omega, alpha = pm.HalfNormal("omega"), pm.Uniform("alpha", 0, 1)
        beta = pm.Uniform("beta", 0, 1 - alpha)
        y = rng().normal(size=N)
        pm.GARCH11("y", omega, alpha, beta, initial_vol=1.0, observed=y)
    return model


def diffusion() -> pm.Model:
    with pm.Model() as model:
        rate = pm.HalfNormal("rate")
        y = np.cumsum(rng().normal(size=N)) * 0.1
        init = pm.Normal.dist(0, 1)
        pm.EulerMaruyama(
            "y", 0.1, lambda x, rate: (-rate * x, 0.3), (rate,), init_dist=init, observed=y
        )
    return model


def smoothed_states() -> pm.Model:
    """A level that follows the data by a recurrence: a scan that carries its state."""
    y = rng().normal(size=N)

    def step(seen, level, alpha):
        return alpha * seen + (1 - alpha) * level, (seen - level) ** 2

    def logp(value, alpha):
        start = [np.zeros(1), None]
        found = pytensor.scan(step, [value], start, [alpha], strict=True, return_updates=False)
        return -0.5 * found[1][:, 0]

    with pm.Model() as model:
        pm.CustomDist("y", pm.Beta("alpha", 2, 2), logp=logp, observed=y)
    return model


def kronecker() -> pm.Model:
    with pm.Model() as model:
        ell = pm.Gamma("ell", 2, 2)
        near = pt.exp(-((np.arange(5)[:, None] - np.arange(5)) ** 2) / ell**2) + pt.eye(5)
        y = rng().normal(size=15)
        pm.KroneckerNormal("y", mu=np.zeros(15), covs=[near, np.eye(3)], sigma=0.5, observed=y)
    return model


def matrix_normal() -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu")
        y = rng().normal(size=(N, 3))
        pm.MatrixNormal(
            "y", mu=mu * np.ones((N, 3)), rowcov=np.eye(N), colcov=np.eye(3), observed=y
        )
    return model


def series_in_columns() -> pm.Model:
    """A level that follows each of four series: times depend on one another, series do not."""

    def step(seen, level, rate):
        return rate * seen + (1 - rate) * level, -((seen - level) ** 2)

    def logp(value, rate):
        start = [pt.zeros(value.shape[1]), None]
        how = {"strict": True, "return_updates": False}
        return pytensor.scan(step, [value], start, [rate[0]], **how)[1]

    with pm.Model() as model:
        pm.CustomDist("y", pm.Beta("rate", 2, 2), logp=logp, observed=rng().normal(size=(N, 4)))
    return model


KINDS = {
    "Cox's model as Poisson counts": Kind(piecewise_exponential),
    "frailty of patients": Kind(frailty),
    "accelerated failure, bounds of each row": Kind(lambda: accelerated_failure(True)),
    "accelerated failure, censoring in a potential": Kind(
        lambda: accelerated_failure(False), names=("seen", "late")
    ),
    "autoregression by hand, observed lags": Kind(autoregression_by_hand),
    "autoregression by a scan over observed lags": Kind(autoregression_by_scan),
    "vector autoregression, observed lags": Kind(vector_autoregression),
    "stochastic differential equation": Kind(diffusion),
    "coefficients that walk": Kind(walking_coefficients),
    "trend, change points and seasons": Kind(trend_and_seasons),
    "media mix, adstock and saturation": Kind(media_mix),
    "media mix, lags made in the graph": Kind(media_mix_by_convolution),
    "Gaussian process, Hilbert space": Kind(hilbert_space_process),
    "Gaussian process, Student's t noise": Kind(robust_process, rtol=1e-5),
    "neighbours (BYM, ICAR)": Kind(besag_york_mollie),
    "neighbours (CAR effects)": Kind(conditional_autoregression),
    "neighbours observed (CAR)": Kind(car_observed, "not a sum over rows"),
    "random walk of vectors": Kind(walk_of_vectors, "not a sum over rows"),
    "GARCH": Kind(garch, "not a sum over rows"),
    "states of series in columns, by a scan": Kind(series_in_columns),
    "scan that carries a state": Kind(smoothed_states, "mixes rows"),
    "Kronecker normal": Kind(kronecker, "not a sum over rows"),
    "matrix normal": Kind(matrix_normal, "not a sum over rows"),
}
