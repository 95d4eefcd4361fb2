"""Groups, persons, items and factors; mixtures and states that are summed out."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from kinds import Kind, N, rng


def rasch_panel() -> pm.Model:
    """Each person answers each item; persons and items are dimensions."""
    r = rng()
    with pm.Model(coords={"person": range(N), "item": range(7)}) as model:
        ability = pm.Normal("ability", dims="person")
        difficulty = pm.ZeroSumNormal("difficulty", dims="item")
        eta = ability[:, None] - difficulty[None, :]
        y = r.integers(0, 2, (N, 7))
        pm.Bernoulli("y", logit_p=eta, observed=y, dims=("person", "item"))
    return model


def guessing() -> pm.Model:
    """Three parameters of each item: slope, difficulty, and the chance of a right guess."""
    r = rng()
    person, item = r.integers(0, 9, N), r.integers(0, 6, N)
    with pm.Model() as model:
        ability, difficulty = pm.Normal("ability", shape=9), pm.Normal("difficulty", shape=6)
        slope, guess = pm.LogNormal("slope", 0, 0.5, shape=6), pm.Beta("guess", 2, 8, shape=6)
        known = pm.math.sigmoid(slope[item] * (ability[person] - difficulty[item]))
        p = guess[item] + (1 - guess[item]) * known
        pm.Bernoulli("y", p=p, observed=r.integers(0, 2, N))
    return model


def graded_response() -> pm.Model:
    """Cut points of each item's own."""
    r = rng()
    person, item = r.integers(0, 9, N), r.integers(0, 4, N)
    with pm.Model() as model:
        ability = pm.Normal("ability", shape=9)
        first = np.tile([-1.0, 0.0, 1.0], (4, 1))
        ordered = pm.distributions.transforms.ordered
        cuts = pm.Normal("cuts", first, 1, transform=ordered, initval=first, shape=(4, 3))
        eta, y = ability[person], r.integers(0, 4, N)
        pm.OrderedLogistic("y", eta=eta, cutpoints=cuts[item], observed=y)
    return model


def radon() -> pm.Model:
    """Intercept and slope of each county correlate; uranium predicts the county's level."""
    r = rng()
    coords = {"obs": range(N), "county": range(9), "effect": ["level", "floor"]}
    uranium, county, floor = r.normal(size=9), r.integers(0, 9, N), r.integers(0, 2, N)
    with pm.Model(coords=coords) as model:
        gamma = pm.Normal("gamma", shape=3)
        sd = pm.Exponential.dist(1, shape=2)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=sd)
        z = pm.Normal("z", dims=("county", "effect"))
        each = pm.Deterministic("each", pt.dot(chol, z.T).T, dims=("county", "effect"))
        level = gamma[0] + gamma[1] * uranium + each[:, 0]
        mu = level[county] + (gamma[2] + each[county, 1]) * floor
        pm.Normal("y", mu, pm.Exponential("sigma", 1), observed=r.normal(size=N), dims="obs")
    return model


def eight_schools() -> pm.Model:
    effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = mu + tau * pm.Normal("z", shape=8)
        pm.Normal("y", theta, errors, observed=effects)
    return model


def two_groups() -> pm.Model:
    """Two groups of different sizes, with a mean and a scale each and one tail."""
    r = rng()
    with pm.Model() as model:
        nu = pm.Exponential("nu", 1 / 29) + 1
        for name, rows in (("drug", N), ("placebo", 40)):
            mu, sigma = pm.Normal(f"mu_{name}"), pm.Uniform(f"sigma_{name}", 0.1, 5)
            pm.StudentT(name, nu=nu, mu=mu, sigma=sigma, observed=r.normal(size=rows))
    return model


def matches() -> pm.Model:
    """Scores of two teams: two observed variables with the same rows."""
    r = rng()
    home, away = r.integers(0, 6, N), r.integers(0, 6, N)
    with pm.Model() as model:
        attack, defence = pm.ZeroSumNormal("attack", shape=6), pm.ZeroSumNormal("defence", shape=6)
        a, at_home = pm.Normal("a"), pm.Normal("at_home")
        theirs = pt.exp(a + at_home + attack[home] - defence[away])
        others = pt.exp(a + attack[away] - defence[home])
        pm.Poisson("home", theirs, observed=r.poisson(1.5, N))
        pm.Poisson("away", others, observed=r.poisson(1, N))
    return model


def bradley_terry() -> pm.Model:
    r = rng()
    first, second = r.integers(0, 8, N), r.integers(0, 8, N)
    with pm.Model() as model:
        skill = pm.Normal("skill", 0, pm.HalfNormal("scale"), shape=8)
        pm.Bernoulli("y", logit_p=skill[first] - skill[second], observed=r.integers(0, 2, N))
    return model


def matrix_factorisation() -> pm.Model:
    r = rng()
    user, film = r.integers(0, 10, N), r.integers(0, 8, N)
    with pm.Model() as model:
        users, films = pm.Normal("users", shape=(10, 3)), pm.Normal("films", shape=(8, 3))
        mu = (users[user] * films[film]).sum(axis=1)
        pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=r.normal(size=N))
    return model


def factors_of_rows() -> pm.Model:
    """Factor analysis with the factors of each row as parameters."""
    r = rng()
    with pm.Model(coords={"obs": range(N), "factor": range(2), "column": range(5)}) as model:
        loads = pm.Normal("loads", dims=("column", "factor"))
        factors = pm.Normal("factors", dims=("factor", "obs"))
        noise = pm.HalfNormal("noise", dims="column")
        mu = pt.dot(loads, factors).T
        pm.Normal("y", mu, noise, observed=r.normal(size=(N, 5)), dims=("obs", "column"))
    return model


def added_effects() -> pm.Model:
    """Two parameters of each row, whose gradients are the same."""
    r = rng()
    with pm.Model() as model:
        walk = pm.GaussianRandomWalk("walk", 0.2, init_dist=pm.Normal.dist(0, 1), shape=N)
        mu = walk + pm.Normal("noise", shape=N)
        pm.Poisson("y", pt.exp(mu), observed=r.poisson(1, N))
    return model


def factors_integrated() -> pm.Model:
    """Factor analysis with the factors integrated out: a covariance for all rows."""
    r = rng()
    with pm.Model() as model:
        loads, noise = pm.Normal("loads", shape=(4, 2)), pm.HalfNormal("noise", shape=4)
        cov = loads @ loads.T + pt.diag(noise**2 + 0.1)
        pm.MvNormal("y", np.zeros(4), cov=cov, observed=r.normal(size=(N, 4)))
    return model


def robust_multivariate() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=3, eta=2, sd_dist=pm.Exponential.dist(1, shape=3))
        nu, mu = pm.Gamma("nu", 2, 0.1), pm.Normal("mu", shape=3)
        pm.MvStudentT("y", nu, mu=mu, scale=chol @ chol.T, observed=r.normal(size=(N, 3)))
    return model


def covariance_of_rows() -> pm.Model:
    """Each row has a Cholesky factor of its own."""
    r = rng()
    chol = np.tril(r.uniform(0.5, 1, (N, 2, 2)))
    with pm.Model() as model:
        mu, scale = pm.Normal("mu", shape=2), pm.LogNormal("scale", 0, 0.3)
        pm.MvNormal("y", mu, chol=scale * chol, observed=r.normal(size=(N, 2)))
    return model


def stick_breaking() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        beta = pm.Beta("beta", 1, pm.Gamma("alpha", 2, 1), shape=5)
        left = pt.concatenate([pt.ones(1), pt.extra_ops.cumprod(1 - beta)[:-1]])
        w = pm.Deterministic("w", beta * left / (beta * left).sum())
        mu, tau = pm.Normal("mu", 0, 2, shape=5), pm.Gamma("tau", 2, 1, shape=5)
        pm.NormalMixture("y", w, mu, tau=tau, observed=r.normal(size=N))
    return model


def multivariate_mixture() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(2))
        mu = [pm.Normal(f"mu_{k}", k, 1, shape=2) for k in range(2)]
        chol = np.eye(2)
        parts = [pm.MvNormal.dist(m, chol=chol) for m in mu]
        pm.Mixture("y", w, parts, observed=r.normal(size=(N, 2)))
    return model


def mixture_of_regressions() -> pm.Model:
    r = rng()
    x = r.normal(size=N)
    with pm.Model() as model:
        a, b = pm.Normal("a", shape=2), pm.Normal("b", np.array([-1.0, 1.0]), 1, shape=2)
        w = pm.Dirichlet("w", np.ones(2))
        parts = pm.Normal.dist(a + b * x[:, None], pm.HalfNormal("sigma", shape=2))
        pm.Mixture("y", w, parts, observed=r.normal(size=N))
    return model


def latent_class_analysis() -> pm.Model:
    """Answers of a row are independent, given the class of the row, which is summed out."""
    r = rng()

    def logp(value, w, p):
        each = value[:, None, :] * pt.log(p) + (1 - value[:, None, :]) * pt.log1p(-p)
        return pt.logsumexp(pt.log(w) + each.sum(axis=-1), axis=-1)

    with pm.Model() as model:
        w, p = pm.Dirichlet("w", np.ones(3)), pm.Beta("p", 2, 2, shape=(3, 5))
        y = r.integers(0, 2, (N, 5))
        pm.CustomDist("y", w, p, logp=logp, signature="(k),(k,m)->(m)", observed=y)
    return model


def topics() -> pm.Model:
    """Words of documents, with the topic of each word summed out."""
    r = rng()
    document, word = r.integers(0, 6, N), r.integers(0, 11, N)
    with pm.Model() as model:
        theta = pm.Dirichlet("theta", np.ones(3), shape=(6, 3))
        phi = pm.Dirichlet("phi", np.ones(11), shape=(3, 11))
        pm.Categorical("y", p=theta[document] @ phi, observed=word)
    return model


def naive_bayes() -> pm.Model:
    r = rng()
    label = r.integers(0, 3, N)
    with pm.Model() as model:
        prior = pm.Dirichlet("prior", np.ones(3), shape=(N, 3))
        mu, sigma = pm.Normal("mu", shape=(3, 4)), pm.HalfNormal("sigma", shape=(3, 4))
        pm.Categorical("label", p=prior, observed=label)
        pm.Normal("x", mu[label], sigma[label], observed=r.normal(size=(N, 4)))
    return model


def zero_inflated_negative_binomial() -> pm.Model:
    r = rng()
    x = r.normal(size=(N, 2))
    with pm.Model() as model:
        b, c = pm.Normal("b", shape=2), pm.Normal("c", shape=2)
        psi, mu = pm.math.sigmoid(x @ c), pt.exp(x @ b)
        alpha = pm.Exponential("alpha", 1)
        y = r.poisson(1, N) * r.integers(0, 2, N)
        pm.ZeroInflatedNegativeBinomial("y", psi=psi, mu=mu, alpha=alpha, observed=y)
    return model


def zero_inflated_binomial() -> pm.Model:
    """Closed capture-recapture: animals that were never seen may not exist."""
    r = rng()
    with pm.Model() as model:
        exists, seen = pm.Beta("exists", 2, 2), pm.Beta("seen", 2, 2)
        y = r.binomial(5, 0.4, N) * r.integers(0, 2, N)
        pm.ZeroInflatedBinomial("y", exists, n=5, p=seen, observed=y)
    return model


def hurdle_gamma() -> pm.Model:
    r = rng()
    x = r.normal(size=N)
    with pm.Model() as model:
        psi = pm.math.sigmoid(pm.Normal("c") * x)
        mu, alpha = pt.exp(pm.Normal("b") * x), pm.Exponential("alpha", 1)
        y = r.gamma(2, size=N) * r.integers(0, 2, N)
        pm.HurdleGamma("y", psi=psi, alpha=alpha, beta=alpha / mu, observed=y)
    return model


def hurdle_negative_binomial() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        psi, mu, alpha = pm.Beta("psi", 2, 2), pm.Exponential("mu", 1), pm.Exponential("alpha", 1)
        pm.HurdleNegativeBinomial("y", psi, mu, alpha=alpha, observed=r.poisson(1, N))
    return model


def occupancy() -> pm.Model:
    """Sites that may be occupied, visited four times each; the state is summed out."""
    r = rng()
    x, visits = r.normal(size=N), r.integers(0, 2, (N, 4)) * r.integers(0, 2, (N, 1))

    def logp(value, psi, p):
        seen = (value * pt.log(p) + (1 - value) * pt.log1p(-p)).sum(axis=-1)
        empty = pt.switch(pt.eq(value.sum(axis=-1), 0), pt.log1p(-psi), -1e10)
        return pt.logaddexp(pt.log(psi) + seen, empty)

    with pm.Model() as model:
        psi = pm.math.sigmoid(pm.Normal("a") + pm.Normal("b") * x)
        p = pm.Beta("p", 2, 2, shape=4)
        pm.CustomDist("y", psi, p, logp=logp, signature="(),(t)->(t)", observed=visits)
    return model


def capture_histories() -> pm.Model:
    """Marked animals survive and are seen again, or not: one history in each row."""
    r = rng()
    history = np.concatenate([np.ones((N, 1)), r.integers(0, 2, (N, 4))], axis=1)

    def logp(value, phi, p):
        alive, dead = pt.ones_like(value[:, 0]), pt.zeros_like(value[:, 0])
        for t in range(1, 5):
            seen = value[:, t]
            alive, dead = (
                alive * phi * (seen * p[..., t] + (1 - seen) * (1 - p[..., t])),
                (dead + alive * (1 - phi)) * (1 - seen),
            )
        return pt.log(alive + dead)

    with pm.Model() as model:
        phi, p = pm.Beta("phi", 2, 2), pm.Beta("p", 2, 2, shape=5)
        pm.CustomDist("y", phi, p, logp=logp, signature="(),(t)->(t)", observed=history)
    return model


def hidden_states() -> pm.Model:
    """Sequences of a hidden Markov chain: the forward algorithm, one sequence in each row."""
    r = rng()

    def logp(value, start, move, mu, season):
        def emitted(t):
            return -0.5 * (value[:, t, None] - mu - season[..., t, None]) ** 2

        log_alpha = pt.log(start) + emitted(0)
        for t in range(1, 6):
            log_alpha = pt.logsumexp(log_alpha[:, :, None] + pt.log(move), axis=1) + emitted(t)
        return pt.logsumexp(log_alpha, axis=1)

    with pm.Model() as model:
        start, move = pm.Dirichlet("start", np.ones(2)), pm.Dirichlet("move", np.ones((2, 2)))
        mu = pm.Normal("mu", np.array([-1.0, 1.0]), 1)
        season = pm.ZeroSumNormal("season", shape=6)
        signature, y = "(k),(k,k),(k),(t)->(t)", r.normal(size=(N, 6))
        pm.CustomDist("y", start, move, mu, season, logp=logp, signature=signature, observed=y)
    return model


def customers() -> pm.Model:
    """Purchases until customers leave: a beta-geometric law, counted once for each customer."""
    r = rng()
    repeats, until = r.poisson(2, N), r.uniform(5, 20, N)
    last = np.where(repeats > 0, until * r.uniform(0.2, 0.9, N), 0.0)

    def logp(x, rate, alpha, a, b, seen, end):
        counts = pt.gammaln(rate + x) - pt.gammaln(rate) + rate * pt.log(alpha)
        stays = pt.gammaln(a + b) + pt.gammaln(b + x) - pt.gammaln(b) - pt.gammaln(a + b + x)
        alive = -(rate + x) * pt.log(alpha + end)
        left = pt.log(a) - pt.log(b + pt.maximum(x, 1) - 1) - (rate + x) * pt.log(alpha + seen)
        return counts + stays + pt.switch(x > 0, pt.logaddexp(alive, left), alive)

    with pm.Model() as model:
        parameters = [pm.Exponential(name, 1) for name in ("rate", "alpha", "a", "b")]
        pm.CustomDist("y", *parameters, last, until, logp=logp, observed=repeats.astype(float))
    return model


def ordered_multinomial() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        b = pm.Normal("b")
        first = np.array([-1.0, 0.0, 1.0])
        ordered = pm.distributions.transforms.ordered
        cuts = pm.Normal("cuts", first, 1, transform=ordered, initval=first)
        y = r.multinomial(12, np.ones(4) / 4, N)
        pm.OrderedMultinomial("y", eta=b * r.normal(size=N), cutpoints=cuts, n=12, observed=y)
    return model


def dirichlet_multinomial_groups() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        share = pm.Dirichlet("share", np.ones(4), shape=(5, 4))
        conc = pm.LogNormal("conc", 1, 1)
        a, y = conc * share[r.integers(0, 5, N)], r.multinomial(9, np.ones(4) / 4, N)
        pm.DirichletMultinomial("y", 9, a, observed=y)
    return model


def shares_of_rows() -> pm.Model:
    """Counts in 12 categories, whose shares are parameters of each row."""
    r = rng()
    with pm.Model() as model:
        concentration = pm.Exponential("concentration", 1)
        shares = pm.Dirichlet("shares", a=concentration * np.ones((N, 12)))
        pm.Multinomial("y", n=20, p=shares, observed=r.multinomial(20, np.ones(12) / 12, N))
    return model


GROUPS = {
    "item response, persons by items (1PL)": Kind(rasch_panel),
    "item response with guessing (3PL)": Kind(guessing),
    "graded response, cut points of each item": Kind(graded_response),
    "radon, correlated effects of counties": Kind(radon),
    "eight schools": Kind(eight_schools),
    "two groups (BEST)": Kind(two_groups),
    "scores of two teams": Kind(matches),
    "Bradley-Terry": Kind(bradley_terry),
    "matrix factorisation": Kind(matrix_factorisation),
    "factor analysis, factors of each row": Kind(factors_of_rows),
    "two parameters of each row, added": Kind(added_effects),
    "factor analysis, factors integrated out": Kind(factors_integrated),
    "multivariate Student's t": Kind(robust_multivariate),
    "multivariate normal, a covariance of each row": Kind(covariance_of_rows),
}
MIXTURES = {
    "stick-breaking mixture": Kind(stick_breaking),
    "mixture of multivariate normals": Kind(multivariate_mixture),
    "mixture of regressions": Kind(mixture_of_regressions),
    "latent class analysis, summed out": Kind(latent_class_analysis),
    "topics of words, summed out": Kind(topics),
    "naive Bayes, two observed variables": Kind(naive_bayes),
    "zero-inflated negative binomial": Kind(zero_inflated_negative_binomial),
    "capture-recapture, closed (zero-inflated binomial)": Kind(zero_inflated_binomial),
    "hurdle gamma": Kind(hurdle_gamma),
    "hurdle negative binomial": Kind(hurdle_negative_binomial),
    "occupancy, summed out": Kind(occupancy),
    "capture-recapture, histories": Kind(capture_histories),
    "hidden Markov chains, one in each row": Kind(hidden_states),
    "customers' lifetimes (BG/NBD)": Kind(customers),
    "ordered multinomial": Kind(ordered_multinomial),
    "Dirichlet-multinomial by group": Kind(dirichlet_multinomial_groups),
    "multinomial, shares of each row": Kind(shares_of_rows),
}
