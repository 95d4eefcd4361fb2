"""Models of pymc_gallery.py: their sizes are those of data sets in PyMC's and others' examples.

Each is a generative model unless `y` is given. Its data are one draw from its prior.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt

type Observed = np.ndarray | None


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def with_data(make: Callable[..., pm.Model]) -> pm.Model:
    """The model, whose variable "y" is observed at a draw from the prior.

    Of 20 draws it is the first whose values are finite and not all equal.
    """
    model = make()
    for seed in itertools.count(1):
        drawn = pm.draw(model["y"], random_seed=seed, mode="FAST_COMPILE")
        if (np.isfinite(drawn).all() and np.ptp(drawn) > 0) or seed == 20:
            return make(drawn)
    raise AssertionError


def item_response(y: Observed = None) -> pm.Model:
    """Two parameters of each of 32 items, 1,500 persons, 46,861 answers."""
    r, rows = rng(), 46_861
    person, item = r.integers(0, 1500, rows), r.integers(0, 32, rows)
    with pm.Model() as model:
        ability = pm.Normal("ability", shape=1500)
        difficulty, slope = (
            pm.Normal("difficulty", shape=32),
            pm.LogNormal("slope", 0, 0.5, shape=32),
        )
        eta = slope[item] * (ability[person] - difficulty[item])
        pm.Bernoulli("y", logit_p=eta, shape=rows, observed=y)
    return model


def election(y: Observed = None) -> pm.Model:
    """Votes of 11,566 persons by state, region, age, education, and both (A. Gelman, J. Hill)."""
    r, rows = rng(), 11_566
    state, age, edu = r.integers(0, 51, rows), r.integers(0, 4, rows), r.integers(0, 4, rows)
    region, past = r.integers(0, 5, 51), r.normal(0, 0.1, 51)
    female, black = r.integers(0, 2, rows), r.integers(0, 2, rows)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=5)
        sd = pm.HalfNormal("sd", 0.5, shape=5)
        of_region = pm.Normal("region", 0, sd[0], shape=5)
        of_state = of_region[region] + b[0] * past + sd[1] * pm.Normal("state", shape=51)
        of_age, of_edu = sd[2] * pm.Normal("age", shape=4), sd[3] * pm.Normal("edu", shape=4)
        both = sd[4] * pm.Normal("both", shape=(4, 4))
        fixed = b[1] + b[2] * female + b[3] * black + b[4] * female * black
        eta = fixed + of_state[state] + of_age[age] + of_edu[edu] + both[age, edu]
        pm.Bernoulli("y", logit_p=eta, shape=rows, observed=y)
    return model


def cumulative(y: Observed = None) -> pm.Model:
    """Ordered answers of 10,000 rows, eight covariates, an effect of each of 100 groups."""
    r, rows = rng(), 10_000
    x, group = r.normal(size=(rows, 8)), r.integers(0, 100, rows)
    with pm.Model() as model:
        cuts = ordered_cuts(4)
        b, sd = pm.Normal("b", 0, 0.5, shape=8), pm.HalfNormal("sd", 0.5)
        eta = x @ b + (sd * pm.Normal("group", shape=100))[group]
        pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, compute_p=False, shape=rows, observed=y)
    return model


def ordered_cuts(count: int) -> pt.TensorVariable:
    start = np.linspace(-2, 2, count)
    transform = pm.distributions.transforms.ordered
    return pm.Normal("cuts", start, 0.2, transform=transform, initval=start, shape=count)


def censored(y: Observed = None) -> pm.Model:
    """Weibull times of 20,000 rows with six covariates, censored at a time of the study's end."""
    r, rows = rng(), 20_000
    x = r.normal(size=(rows, 6))
    with pm.Model() as model:
        b, alpha = pm.Normal("b", 0, 0.3, shape=6), pm.LogNormal("alpha", 0, 0.3)
        law = pm.Weibull.dist(alpha, pt.exp(x @ b))
        pm.Censored("y", law, lower=None, upper=1.5, shape=rows, observed=y)
    return model


def neural_network(y: Observed = None) -> pm.Model:
    """Classes of 5,000 rows by two hidden layers of 20."""
    r, rows = rng(), 5000
    x = r.normal(size=(rows, 10))
    with pm.Model() as model:
        first, second = pm.Normal("first", shape=(10, 20)), pm.Normal("second", shape=(20, 20))
        last = pm.Normal("last", shape=20)
        hidden = pt.tanh(pt.tanh(x @ first) @ second)
        pm.Bernoulli("y", logit_p=hidden @ last, shape=rows, observed=y)
    return model


def frailty(y: Observed = None) -> pm.Model:
    """Recurrent events of 500 patients, each with a gamma frailty: 10,000 intervals."""
    r, rows = rng(), 10_000
    patient, x = r.integers(0, 500, rows), r.normal(size=(rows, 4))
    exposure = r.uniform(0.2, 2, rows)
    with pm.Model() as model:
        b, theta = pm.Normal("b", 0, 0.3, shape=4), pm.Gamma("theta", 4, 2)
        base, frail = pm.Gamma("base", 4, 4), pm.Gamma("frail", theta, theta, shape=500)
        pm.Poisson("y", exposure * base * frail[patient] * pt.exp(x @ b), shape=rows, observed=y)
    return model


def multivariate(y: Observed = None) -> pm.Model:
    """10,000 rows of five columns with a correlation matrix."""
    with pm.Model() as model:
        sd = pm.Exponential.dist(1, shape=5)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=5, eta=2, sd_dist=sd)
        pm.MvNormal("y", pm.Normal("mu", shape=5), chol=chol, shape=(10_000, 5), observed=y)
    return model


def radon(y: Observed = None) -> pm.Model:
    """12,573 houses in 386 counties; intercepts and slopes of counties correlate."""
    r, rows, counties = rng(), 12_573, 386
    county, floor = r.integers(0, counties, rows), r.integers(0, 2, rows)
    uranium = r.normal(size=counties)
    with pm.Model() as model:
        gamma = pm.Normal("gamma", shape=3)
        sd = pm.Exponential.dist(1, shape=2)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=sd)
        each = pt.dot(chol, pm.Normal("z", shape=(2, counties))).T
        level = gamma[0] + gamma[1] * uranium + each[:, 0]
        mu = level[county] + (gamma[2] + each[county, 1]) * floor
        pm.Normal("y", mu, pm.Exponential("sigma", 1), shape=rows, observed=y)
    return model


def trolley(y: Observed = None) -> pm.Model:
    """9,930 answers out of seven by 331 persons to 30 stories (R. McElreath)."""
    r, rows = rng(), 9930
    person, story = r.integers(0, 331, rows), r.integers(0, 30, rows)
    treated = r.integers(0, 2, (rows, 3))
    with pm.Model() as model:
        cuts = ordered_cuts(6)
        sd, b = pm.HalfNormal("sd", 1, shape=2), pm.Normal("b", 0, 0.5, shape=3)
        eta = treated @ b + sd[0] * pm.Normal("person", shape=331)[person]
        eta += sd[1] * pm.Normal("story", shape=30)[story]
        pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, compute_p=False, shape=rows, observed=y)
    return model


def factorisation(y: Observed = None) -> pm.Model:
    """100,000 ratings of 1,682 films by 943 users, ten factors: 26,250 parameters."""
    r, rows = rng(), 100_000
    user, film = r.integers(0, 943, rows), r.integers(0, 1682, rows)
    with pm.Model() as model:
        users, films = pm.Normal("users", shape=(943, 10)), pm.Normal("films", shape=(1682, 10))
        pm.Normal("y", (users[user] * films[film]).sum(axis=1), 1.0, shape=rows, observed=y)
    return model


def survey(y: Observed = None) -> pm.Model:
    """1,000,000 answers by state, age, education, race and sex: 12,240 cells."""
    r, rows = rng(), 1_000_000
    state, age, edu, race, female = (r.integers(0, k, rows) for k in (51, 6, 5, 4, 2))
    with pm.Model() as model:
        b, sd = pm.Normal("b", shape=2), pm.HalfNormal("sd", 0.5, shape=4)
        eta = b[0] + b[1] * female + (sd[0] * pm.Normal("state", shape=51))[state]
        eta += (sd[1] * pm.Normal("age", shape=6))[age] + (sd[2] * pm.Normal("edu", shape=5))[edu]
        eta += (sd[3] * pm.Normal("race", shape=4))[race]
        pm.Bernoulli("y", logit_p=eta, shape=rows, observed=y)
    return model


def regression(y: Observed = None) -> pm.Model:
    """A linear regression of 1,000,000 rows on 20 features."""
    x = rng().normal(size=(1_000_000, 20))
    with pm.Model() as model:
        mu = pm.Normal("a") + x @ pm.Normal("b", shape=20)
        pm.Normal("y", mu, pm.Exponential("sigma", 1), shape=len(x), observed=y)
    return model


MODELS: dict[str, Callable[..., pm.Model]] = {
    "irt": item_response,
    "election88": election,
    "cumulative": cumulative,
    "censored": censored,
    "bnn": neural_network,
    "frailty": frailty,
    "mvnormal": multivariate,
    "radon": radon,
    "trolley": trolley,
    "factorisation": factorisation,
    "survey": survey,
    "regression": regression,
}
