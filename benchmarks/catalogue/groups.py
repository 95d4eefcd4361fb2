"""Groups: schools, counties, states, teams, persons. Data are drawn in sizes of the real ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def eight_schools() -> pm.Model:
    """D. B. Rubin: effects of coaching in 8 schools, with known standard errors."""
    effect = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    error = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        z = pm.Normal("z", dims="school")
        theta = pm.Deterministic("theta", mu + tau * z, dims="school")
        pm.Normal("y", theta, error, observed=effect, dims="school")
    return model


def houses() -> tuple[np.ndarray, ...]:
    """County and floor of 919 houses, uranium of 85 counties, log radon."""
    r = rng()
    county, floor = np.sort(r.integers(0, 85, 919)), r.binomial(1, 0.17, 919)
    uranium = r.normal(0, 0.4, 85)
    level = 1.5 + 0.7 * uranium + r.normal(0, 0.2, 85)
    return county, floor, uranium, level[county] - 0.7 * floor + r.normal(0, 0.75, 919)


def radon() -> pm.Model:
    """A. Gelman, J. Hill: radon in the counties of Minnesota, varying intercepts."""
    county, floor, uranium, y = houses()
    coords = {"county": range(85), "obs": range(919)}
    with pm.Model(coords=coords) as model:
        of = pm.Data("county_of", county, dims="obs")
        basement = pm.Data("floor", floor, dims="obs")
        g = pm.Normal("g", 0, 10, shape=2)
        sd = pm.Exponential("sd", 1)
        a = pm.Normal("a", g[0] + g[1] * uranium, sd, dims="county")
        b = pm.Normal("b", 0, 10)
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("y", a[of] + b * basement, sigma, observed=y, dims="obs")
    return model


def radon_slopes() -> pm.Model:
    """The same with slopes that correlate with intercepts."""
    county, floor, _, y = houses()
    with pm.Model(coords={"county": range(85), "kind": ["level", "slope"]}) as model:
        sd = pm.Exponential.dist(0.5, shape=2)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=sd)
        mean = pm.Normal("mean", 0, 5, dims="kind")
        z = pm.Normal("z", dims=("kind", "county"))
        each = pm.Deterministic("each", pt.dot(chol, z).T, dims=("county", "kind"))
        mu = mean[0] + each[county, 0] + (mean[1] + each[county, 1]) * floor
        pm.Normal("y", mu, pm.Exponential("sigma", 1), observed=y)
    return model


def election88() -> pm.Model:
    """A. Gelman, J. Hill: 11,566 answers to a poll in 51 states."""
    r, rows = rng(), 11_566
    state, age, edu = r.integers(0, 51, rows), r.integers(0, 4, rows), r.integers(0, 4, rows)
    female, black = r.binomial(1, 0.6, rows), r.binomial(1, 0.08, rows)
    region, past = r.integers(0, 5, 51), r.normal(0.5, 0.1, 51)
    answer = r.binomial(1, 0.55, rows)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 100, shape=5)
        sd = pm.HalfNormal("sd", 5, shape=5)
        of_age, of_edu = pm.Normal("age", 0, sd[0], shape=4), pm.Normal("edu", 0, sd[1], shape=4)
        both = pm.Normal("age_edu", 0, sd[2], shape=(4, 4))
        of_region = pm.Normal("region", 0, sd[3], shape=5)
        of_state = pm.Normal("state", of_region[region] + beta[4] * past, sd[4], shape=51)
        eta = beta[0] + beta[1] * black + beta[2] * female + beta[3] * female * black
        eta = eta + of_age[age] + of_edu[edu] + both[age, edu] + of_state[state]
        pm.Bernoulli("y", p=pm.math.invlogit(eta), observed=answer)
    return model


def rugby() -> pm.Model:
    """D. Weitzenfeld, P. Coyle: scores of 60 matches of six teams."""
    r = rng()
    home, away = r.integers(0, 6, 60), r.integers(0, 6, 60)
    coords = {"team": range(6), "match": range(60)}
    with pm.Model(coords=coords) as model:
        home_of = pm.Data("home_team", home, dims="match")
        away_of = pm.Data("away_team", away, dims="match")
        advantage, level = pm.Normal("home", 0, 1), pm.Normal("intercept", 3, 1)
        sd = pm.HalfNormal("sd", 2, shape=2)
        attack = pm.Normal("attack_star", 0, sd[0], dims="team")
        defence = pm.Normal("defence_star", 0, sd[1], dims="team")
        attack = pm.Deterministic("attack", attack - pt.mean(attack), dims="team")
        defence = pm.Deterministic("defence", defence - pt.mean(defence), dims="team")
        for_home = pt.exp(level + advantage + attack[home_of] + defence[away_of])
        for_away = pt.exp(level + attack[away_of] + defence[home_of])
        pm.Poisson("home_points", for_home, observed=r.poisson(23, 60), dims="match")
        pm.Poisson("away_points", for_away, observed=r.poisson(19, 60), dims="match")
    return model


def cafes() -> pm.Model:
    """R. McElreath: 200 waits in 20 cafes, morning and afternoon, centred."""
    r = rng()
    cafe, afternoon = np.repeat(np.arange(20), 10), np.tile([0, 1], 100)
    wait = 3.5 - afternoon + r.normal(0, 1, 20)[cafe] + r.normal(0, 0.5, 200)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0))
        ab = pm.MvNormal("ab", mu=pm.Normal("mean", 5, 2, shape=2), chol=chol, shape=(20, 2))
        mu = ab[cafe, 0] + ab[cafe, 1] * afternoon
        pm.Normal("y", mu, pm.Exponential("sigma", 1), observed=wait)
    return model


def slopes_of_features() -> pm.Model:
    """Slopes of five features in 60 groups, 3,000 rows: ``(b[g] * x).sum(axis=1)``."""
    r = rng()
    g, x = r.integers(0, 60, 3000), r.normal(size=(3000, 5))
    y = r.poisson(np.exp(0.3 + (r.normal(0, 0.2, (60, 5))[g] * x).sum(axis=1)))
    with pm.Model(coords={"group": range(60), "feature": list("abcde")}) as model:
        mean = pm.Normal("mean", 0, 1, dims="feature")
        sd = pm.HalfNormal("sd", 0.5, dims="feature")
        b = pm.Normal("b", mean, sd, dims=("group", "feature"))
        eta = pm.Normal("a", 0, 1) + (b[g] * x).sum(axis=1)
        pm.Poisson("y", pt.exp(eta), observed=y)
    return model


def sleep_study() -> pm.Model:
    """G. Belenky: reaction times of 18 persons on ten days."""
    r = rng()
    person, day = np.repeat(np.arange(18), 10), np.tile(np.arange(10.0), 18)
    y = 250 + 10 * day + r.normal(0, 25, 18)[person] + r.normal(0, 25, 180)
    with pm.Model() as model:
        level, slope = pm.Normal("level", 250, 100), pm.Normal("slope", 0, 20)
        sd = pm.HalfNormal("sd", 50, shape=2)
        a, b = pm.Normal("a", 0, 1, shape=18), pm.Normal("b", 0, 1, shape=18)
        mu = level + sd[0] * a[person] + (slope + sd[1] * b[person]) * day
        pm.Normal("y", mu, pm.HalfNormal("sigma", 50), observed=y)
    return model


def rats() -> pm.Model:
    """A. Gelfand: weights of 30 rats in five weeks, a matrix."""
    r = rng()
    days = np.array([8.0, 15, 22, 29, 36])
    y = 100 + r.normal(0, 10, (30, 1)) + 6 * days + r.normal(0, 6, (30, 5))
    with pm.Model() as model:
        mean, sd = pm.Normal("mean", [100, 6], 100, shape=2), pm.HalfCauchy("sd", 10, shape=2)
        a = pm.Normal("a", mean[0], sd[0], shape=30)
        b = pm.Normal("b", mean[1], sd[1], shape=30)
        mu = a[:, None] + b[:, None] * (days - 22)
        pm.Normal("y", mu, pm.HalfCauchy("sigma", 10), observed=y)
    return model


def chimpanzees() -> pm.Model:
    """R. McElreath: 504 pulls by seven actors in six blocks, four treatments."""
    r = rng()
    actor, block, treatment = r.integers(0, 7, 504), r.integers(0, 6, 504), r.integers(0, 4, 504)
    with pm.Model() as model:
        a_bar = pm.Normal("a_bar", 0, 1.5)
        sd_a, sd_g = pm.Exponential("sd_a", 1), pm.Exponential("sd_g", 1)
        z, x = pm.Normal("z", 0, 1, shape=7), pm.Normal("x", 0, 1, shape=6)
        b = pm.Normal("b", 0, 0.5, shape=4)
        eta = a_bar + z[actor] * sd_a + x[block] * sd_g + b[treatment]
        p = pm.Deterministic("p", pm.math.invlogit(eta))
        pm.Binomial("pulled_left", 1, p, observed=r.binomial(1, 0.6, 504))
    return model


def baseball() -> pm.Model:
    """B. Efron, C. Morris: 18 players, hits of 45 times at bat."""
    hits = rng().binomial(45, 0.27, 18)
    with pm.Model() as model:
        phi = pm.Uniform("phi", 0.0, 1.0)
        kappa = pt.exp(pm.Exponential("kappa_log", 1.5))
        theta = pm.Beta("theta", alpha=phi * kappa, beta=(1.0 - phi) * kappa, shape=18)
        pm.Binomial("y", n=45, p=theta, observed=hits)
    return model


def contraception() -> pm.Model:
    """R. McElreath: 1,934 women in 60 districts, urban or not."""
    r = rng()
    district, urban = r.integers(0, 60, 1934), r.binomial(1, 0.3, 1934)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1, shape=2))
        mean = pm.Normal("mean", 0, [1, 0.5], shape=2)
        each = mean + pt.dot(chol, pm.Normal("z", shape=(2, 60))).T
        eta = each[district, 0] + each[district, 1] * urban
        pm.Bernoulli("y", logit_p=eta, observed=r.binomial(1, 0.4, 1934))
    return model


def reed_frogs() -> pm.Model:
    """R. McElreath: tadpoles that survive in 48 tanks."""
    r = rng()
    density = np.repeat([10, 25, 35], 16)
    with pm.Model() as model:
        a = pm.Normal("a", pm.Normal("a_bar", 0, 1.5), pm.Exponential("sd", 1), shape=48)
        p = pm.math.invlogit(a[np.arange(48)])
        pm.Binomial("survived", n=density, p=p, observed=r.binomial(density, 0.7))
    return model


def lecturers() -> pm.Model:
    """Ratings from 1 to 5 by 2,972 students of 1,128 lecturers: 73,421 rows, crossed effects."""
    r, rows = rng(), 73_421
    student, lecturer, dept = (r.integers(0, k, rows) for k in (2972, 1128, 14))
    service = r.binomial(1, 0.4, rows)
    y = np.clip(np.round(3.2 + r.normal(0, 1.3, rows)), 1, 5)
    with pm.Model() as model:
        b, sd = pm.Normal("b", 0, 5, shape=2), pm.HalfNormal("sd", 1, shape=3)
        mu = b[0] + b[1] * service + (sd[0] * pm.Normal("student", shape=2972))[student]
        mu += (sd[1] * pm.Normal("lecturer", shape=1128))[lecturer]
        mu += (sd[2] * pm.Normal("dept", shape=14))[dept]
        pm.Normal("y", mu, pm.HalfNormal("sigma", 2), observed=y)
    return model


def bradley_terry() -> pm.Model:
    """1,000 matches of 40 players."""
    r = rng()
    one, other = r.integers(0, 40, 1000), r.integers(0, 40, 1000)
    with pm.Model() as model:
        skill = pm.ZeroSumNormal("skill", sigma=pm.HalfNormal("sd", 1), shape=40)
        won = pm.Data("won", r.integers(0, 2, 1000))
        pm.Bernoulli("y", logit_p=skill[one] - skill[other], observed=won)
    return model


MODELS: dict[str, Callable[[], pm.Model]] = {
    "eight schools": eight_schools,
    "radon": radon,
    "radon, correlated slopes": radon_slopes,
    "election88": election88,
    "rugby": rugby,
    "cafes": cafes,
    "slopes of features by group": slopes_of_features,
    "sleep study": sleep_study,
    "rats": rats,
    "chimpanzees": chimpanzees,
    "baseball": baseball,
    "contraception": contraception,
    "reed frogs": reed_frogs,
    "lecturers": lecturers,
    "Bradley-Terry": bradley_terry,
}
