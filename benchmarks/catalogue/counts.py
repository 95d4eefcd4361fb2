"""Counts, shares and times of events. Data are drawn in the sizes of the real ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def roaches() -> pm.Model:
    """A. Gelman, J. Hill: roaches in 262 flats, with the days of the traps."""
    r = rng()
    before, treated, senior = r.gamma(0.5, 80, 262), r.integers(0, 2, 262), r.integers(0, 2, 262)
    days = r.uniform(0.8, 1.5, 262)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 2.5, shape=4)
        eta = b[0] + b[1] * before / 100 + b[2] * treated + b[3] * senior
        y = r.negative_binomial(0.5, 0.02, 262)
        pm.Poisson("y", pt.exp(eta + np.log(days)), observed=y)
    return model


def sneezes() -> pm.Model:
    """J. Sedar: 4,000 days of sneezing by alcohol and medicine, negative binomial."""
    r = rng()
    alcohol, medicine = np.repeat([0, 1, 0, 1], 1000), np.repeat([0, 0, 1, 1], 1000)
    y = r.negative_binomial(5, 5 / (5 + np.array([5, 10, 15, 35])[alcohol + 2 * medicine]))
    with pm.Model() as model:
        b = pm.Normal("b", 0, 10, shape=4)
        alpha = pm.Exponential("alpha", 0.5)
        eta = b[0] + b[1] * alcohol + b[2] * medicine + b[3] * alcohol * medicine
        pm.NegativeBinomial("y", mu=pt.exp(eta), alpha=alpha, observed=y)
    return model


def fish() -> pm.Model:
    """Fish of 250 groups of campers, zero-inflated Poisson."""
    r = rng()
    persons, child, camper = r.integers(1, 5, 250), r.integers(0, 4, 250), r.integers(0, 2, 250)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=4)
        mu = pt.exp(b[0] + b[1] * persons + b[2] * child + b[3] * camper)
        psi = pm.math.invlogit(pm.Normal("c", 0, 1) + pm.Normal("d", 0, 1) * child)
        y = r.poisson(1.5, 250) * r.binomial(1, 0.6, 250)
        pm.ZeroInflatedPoisson("y", psi=psi, mu=mu, observed=y)
    return model


def visits() -> pm.Model:
    """Visits of 4,406 persons to a doctor: zeros apart, negative binomial above (hurdle)."""
    r, rows = rng(), 4406
    health, chronic, school = (
        r.integers(0, 3, rows),
        r.integers(0, 6, rows),
        r.integers(0, 19, rows),
    )
    with pm.Model() as model:
        b, c = pm.Normal("b", 0, 1, shape=4), pm.Normal("c", 0, 1, shape=4)
        x = np.column_stack([np.ones(rows), health, chronic, school / 10])
        y = r.negative_binomial(1, 0.15, rows)
        mu, psi = pt.exp(x @ b), pm.math.sigmoid(x @ c)
        alpha = pm.Exponential("alpha", 1)
        pm.HurdleNegativeBinomial("y", psi=psi, mu=mu, alpha=alpha, observed=y)
    return model


def rain() -> pm.Model:
    """Rain of 1,461 days at four stations: dry days apart, Gamma above (hurdle)."""
    r = rng()
    season = np.column_stack([f(np.arange(1461) * 2 * np.pi / 365.25) for f in (np.sin, np.cos)])
    y = r.gamma(0.7, 8, (1461, 4)) * r.binomial(1, 0.4, (1461, 4))
    with pm.Model(coords={"station": list("abcd")}) as model:
        a, b = pm.Normal("a", dims="station"), pm.Normal("b", shape=(2, 4))
        c, d = pm.Normal("c", dims="station"), pm.Normal("d", shape=(2, 4))
        alpha = pm.Gamma("alpha", 4, 4, dims="station")
        mu, psi = pt.exp(a + pt.dot(season, b)), pm.math.sigmoid(c + pt.dot(season, d))
        pm.HurdleGamma("y", psi=psi, alpha=alpha, beta=alpha / mu, observed=y)
    return model


def seizures() -> pm.Model:
    """Seizures of 59 patients in four visits, with an effect of each patient and each row."""
    r = rng()
    patient, visit = np.repeat(np.arange(59), 4), np.tile(np.arange(4), 59)
    treated, base = r.integers(0, 2, 59)[patient], r.gamma(2, 1, 59)[patient]
    with pm.Model() as model:
        b, sd = pm.Normal("b", 0, 1, shape=4), pm.HalfCauchy("sd", 1, shape=2)
        eta = b[0] + b[1] * treated + b[2] * np.log(base) + b[3] * (visit == 3)
        eta += sd[0] * pm.Normal("patient", shape=59)[patient] + sd[1] * pm.Normal("row", shape=236)
        pm.Poisson("y", pt.exp(eta), observed=r.poisson(4 * base))
    return model


def tools() -> pm.Model:
    """R. McElreath: tools of ten islands by population and contact."""
    r = rng()
    population, contact = r.uniform(1000, 300_000, 10), r.integers(0, 2, 10)
    with pm.Model() as model:
        a, b = pm.Normal("a", 1, 1, shape=2), pm.Exponential("b", 1, shape=2)
        g = pm.Exponential("g", 1)
        mu = pt.exp(a[contact]) * population ** b[contact] / g
        pm.Poisson("tools", mu, observed=r.poisson(35, 10))
    return model


def germination() -> pm.Model:
    """Seeds that germinate on 21 plates by seed and root, beta-binomial."""
    r = rng()
    seed, root, n = r.integers(0, 2, 21), r.integers(0, 2, 21), r.integers(4, 80, 21)
    with pm.Model() as model:
        b, theta = pm.Normal("b", 0, 2, shape=3), pm.Exponential("theta", 0.1) + 2
        p = pm.math.invlogit(b[0] + b[1] * seed + b[2] * root)
        y = r.binomial(n, 0.5)
        pm.BetaBinomial("y", alpha=p * theta, beta=(1 - p) * theta, n=n, observed=y)
    return model


def forests() -> pm.Model:
    """Trees of five species in ten forests of 50, Dirichlet-multinomial."""
    trees = rng().multinomial(50, [0.45, 0.3, 0.15, 0.09, 0.01], 10)
    with pm.Model(coords={"forest": range(10), "tree": list("abcde")}) as model:
        share = pm.Dirichlet("share", np.ones(5), dims="tree")
        conc = pm.LogNormal("conc", 1, 1)
        pm.DirichletMultinomial("y", n=50, a=share * conc, observed=trees, dims=("forest", "tree"))
    return model


def adoptions() -> pm.Model:
    """R. McElreath: days to adoption of 22,356 cats by colour, many still wait."""
    r, rows = rng(), 22_356
    black, days = r.binomial(1, 0.15, rows), np.ceil(r.exponential(50, rows))
    adopted = r.binomial(1, 0.5, rows)
    with pm.Model() as model:
        rate = 1 / pt.exp(pm.Normal("a", 0, 1, shape=2))
        seen, waits = adopted == 1, adopted == 0
        pm.Exponential("adopted", rate[black[seen]], observed=days[seen])
        pm.Potential("waiting", -(rate[black[waits]] * days[waits]))
    return model


def weibull() -> pm.Model:
    """Times of 228 patients by age and sex, censored: accelerated failure with a Potential."""
    r = rng()
    sex, age, event = r.integers(0, 2, 228), r.normal(size=228), r.binomial(1, 0.7, 228) == 1
    y = np.log(r.weibull(1.3, 228) * 300)
    with pm.Model() as model:
        b, s = pm.Normal("b", [5, 0, 0], 3, shape=3), pm.HalfNormal("s", 5)
        eta = b[0] + b[1] * sex + b[2] * age
        pm.Gumbel("events", eta[event], s, observed=y[event])
        z = (y[~event] - eta[~event]) / s
        pm.Potential("censored", pt.log1p(-pt.exp(-pt.exp(-z))))
    return model


def censored_times() -> pm.Model:
    """1,000 Weibull times, each with a limit of its own."""
    r = rng()
    x, limit = r.normal(size=(1000, 4)), r.uniform(0.5, 3, 1000)
    y = np.minimum(r.weibull(1.5, 1000), limit)
    upper = np.where(y < limit, np.inf, limit)
    with pm.Model() as model:
        eta = pm.Normal("a") + x @ pm.Normal("b", shape=4)
        law = pm.Weibull.dist(pm.Gamma("alpha", 2, 1), pt.exp(eta))
        pm.Censored("y", law, lower=None, upper=upper, observed=y)
    return model


def mastectomy() -> pm.Model:
    """Survival of 44 patients in 76 intervals, a piecewise constant hazard."""
    r = rng()
    metastasized, ends = r.integers(0, 2, 44), r.integers(5, 76, 44)
    step = np.arange(76)
    exposure = np.clip(3.0 * (ends[:, None] - step + 1), 0, 3.0)
    death = (step == ends[:, None]) & (r.random((44, 1)) < 0.6)
    with pm.Model(coords={"patient": range(44), "interval": step}) as model:
        hazard = pm.Gamma("hazard", 0.01, 0.01, dims="interval", initval=np.full(76, 0.01))
        beta = pm.Normal("beta", 0, sigma=1000)
        each = pm.Deterministic("each", pt.outer(pt.exp(beta * metastasized), hazard))
        mu = pm.Deterministic("mu", exposure * each)
        pm.Poisson("y", mu, observed=death.astype(int), dims=("patient", "interval"))
    return model


def attrition() -> pm.Model:
    """A Cox model by intervals of 3,770 employees: 12 intervals, 10 columns, a job's frailty."""
    r, rows = rng(), 3770
    x, job = r.normal(size=(rows, 10)), r.integers(0, 10, rows)
    ends = r.integers(0, 12, rows)
    exposure = (np.arange(12) <= ends[:, None]).astype(float)
    left = (np.arange(12) == ends[:, None]) & (r.random((rows, 1)) < 0.3)
    with pm.Model() as model:
        base = pm.Gamma("base", 1, 1, shape=12)
        beta, frail = pm.Normal("beta", 0, 1, shape=10), pm.Gamma("frail", 4, 4, shape=10)
        mu = exposure * pt.outer(frail[job] * pt.exp(pm.math.dot(x, beta)), base)
        pm.Poisson("y", mu, observed=left.astype(int))
    return model


def kidneys() -> pm.Model:
    """Times to infection of 38 patients twice, Weibull with frailty."""
    r = rng()
    patient, age, sex = np.repeat(np.arange(38), 2), r.normal(size=76), r.integers(0, 2, 76)
    with pm.Model() as model:
        b, sd = pm.Normal("b", 0, 2, shape=3), pm.HalfNormal("sd", 1)
        eta = b[0] + b[1] * age + b[2] * sex + sd * pm.Normal("patient", shape=38)[patient]
        law = pm.Weibull.dist(pm.Gamma("alpha", 2, 2), pt.exp(eta))
        pm.Censored("t", law, None, np.full(76, 3.0), observed=np.minimum(r.weibull(1, 76), 3.0))
    return model


def customers() -> pm.Model:
    """Purchases of 2,357 customers in 39 weeks (P. Fader: BG/NBD), by a Potential."""
    r, rows = rng(), 2357
    x = r.poisson(1, rows)
    age = r.uniform(27, 39, rows)
    last = np.where(x > 0, age * r.uniform(0, 1, rows), 0)
    with pm.Model() as model:
        a, b = pm.HalfNormal("a", 10), pm.HalfNormal("b", 10)
        alpha, shape = pm.HalfNormal("alpha", 10), pm.HalfNormal("shape", 10)
        one = pt.gammaln(shape + x) - pt.gammaln(shape) + shape * pt.log(alpha)
        two = pt.gammaln(a + b) + pt.gammaln(b + x) - pt.gammaln(b) - pt.gammaln(a + b + x)
        three = -(shape + x) * pt.log(alpha + age)
        four = pt.log(a) - pt.log(b + pt.maximum(x, 1) - 1) - (shape + x) * pt.log(alpha + last)
        both = pt.switch(x > 0, pt.logaddexp(three, four), three)
        pm.Potential("purchases", one + two + both)
    return model


def goals() -> pm.Model:
    """Goals of 380 matches of 20 teams."""
    r = rng()
    home, away = r.integers(0, 20, 380), r.integers(0, 20, 380)
    team, rival, at_home = np.r_[home, away], np.r_[away, home], np.repeat([1, 0], 380)
    with pm.Model(coords={"team": range(20)}) as model:
        attack = pm.ZeroSumNormal("attack", sigma=pm.HalfNormal("sd", 1), dims="team")
        defence = pm.ZeroSumNormal("defence", sigma=pm.HalfNormal("sd_d", 1), dims="team")
        eta = pm.Normal("a") + pm.Normal("home") * at_home + attack[team] - defence[rival]
        pm.Poisson("goals", pm.math.exp(eta), observed=r.poisson(1.4, 760))
    return model


MODELS: dict[str, Callable[[], pm.Model]] = {
    "roaches": roaches,
    "sneezes": sneezes,
    "fish": fish,
    "visits": visits,
    "rain": rain,
    "seizures": seizures,
    "tools of islands": tools,
    "germination": germination,
    "forests": forests,
    "cat adoptions": adoptions,
    "Weibull by a Potential": weibull,
    "censored times": censored_times,
    "mastectomy": mastectomy,
    "attrition": attrition,
    "kidneys": kidneys,
    "customers": customers,
    "goals": goals,
}
