"""Eight small models as people write them, each as an edit of it, and as a Stan program.

Data are drawn by a seed; with `longer` there are some rows more. The edit adds a parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

type Arrays = dict[str, Any]


@dataclass(frozen=True)
class Small:
    """A model: its data, and what makes it of them in PyMC and in Stan."""

    arrays: Callable[[np.random.Generator, int], Arrays]
    rows: int
    build: Callable[..., None]  # of PyMC and of the arrays, and the parameter that an edit adds
    data: str
    parameters: str
    statements: str

    def program(self) -> str:
        """The Stan program."""
        blocks = {"data": self.data, "parameters": self.parameters, "model": self.statements}
        return "\n".join(f"{name} {{ {text} }}" for name, text in blocks.items())


def arrays_of(name: str, seed: int, longer: bool) -> Arrays:
    """The data of a model."""
    model = MODELS[name]
    return model.arrays(np.random.default_rng(seed), model.rows + 7 * longer)


def model_of(name: str, seed: int, longer: bool, edited: bool) -> Any:
    """The model in PyMC."""
    import pymc as pm

    given = arrays_of(name, seed, longer)
    with pm.Model(coords={"county": np.arange(85)}) as found:
        extra = pm.Normal("extra", 0, 0.1) * np.sin(np.arange(len(given["y"]))) if edited else 0.0
        MODELS[name].build(pm, extra, **given)
    return found


def schools(rng: np.random.Generator, rows: int) -> Arrays:
    errors = np.resize([15.0, 10, 16, 11, 9, 11, 10, 18], rows)
    return {"y": rng.normal(8, 10, rows), "errors": errors}


def build_schools(pm: Any, extra: Any, y: np.ndarray, errors: np.ndarray) -> None:
    mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
    theta = pm.Deterministic("theta", mu + tau * pm.Normal("t", shape=len(y)))
    pm.Normal("y", theta + extra, errors, observed=y)


def linear(rng: np.random.Generator, rows: int) -> Arrays:
    x = rng.normal(size=(rows, 3))
    return {"x": x, "y": x @ [1.0, 2, 3] + rng.normal(size=rows)}


def build_linear(pm: Any, extra: Any, x: np.ndarray, y: np.ndarray) -> None:
    a, b, s = pm.Normal("a", 0, 10), pm.Normal("b", 0, 10, shape=3), pm.HalfNormal("s", 5)
    pm.Normal("y", a + x @ b + extra, s, observed=y)


def logistic(rng: np.random.Generator, rows: int) -> Arrays:
    x = rng.normal(size=(rows, 5))
    chance = 1 / (1 + np.exp(-x @ [1, -1, 0.5, 0, 2.0]))
    return {"x": x, "y": (rng.random(rows) < chance).astype(int)}


def build_logistic(pm: Any, extra: Any, x: np.ndarray, y: np.ndarray) -> None:
    a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2, shape=5)
    pm.Bernoulli("y", logit_p=a + x @ b + extra, observed=y)


def radon(rng: np.random.Generator, rows: int) -> Arrays:
    county, floor = rng.integers(0, 85, rows), rng.integers(0, 2, rows)
    return {"county": county, "floor": floor, "y": rng.normal(1.3 - 0.6 * floor, 1)}


def build_radon(pm: Any, extra: Any, county: np.ndarray, floor: np.ndarray, y: np.ndarray) -> None:
    ma, sa = pm.Normal("ma", 0, 10), pm.HalfNormal("sa", 1)
    mb, sb = pm.Normal("mb", 0, 10), pm.HalfNormal("sb", 1)
    a = ma + sa * pm.Normal("za", dims="county")
    b = mb + sb * pm.Normal("zb", dims="county")
    s = pm.Exponential("s", 1)
    pm.Normal("y", a[county] + b[county] * floor + extra, s, observed=y)


def counts(rng: np.random.Generator, rows: int) -> Arrays:
    x = rng.normal(size=(rows, 2))
    return {"x": x, "y": rng.poisson(np.exp(1 + x @ [0.3, -0.2]))}


def build_counts(pm: Any, extra: Any, x: np.ndarray, y: np.ndarray) -> None:
    a, b, alpha = pm.Normal("a"), pm.Normal("b", shape=2), pm.Exponential("alpha", 1)
    pm.NegativeBinomial("y", mu=pm.math.exp(a + x @ b + extra), alpha=alpha, observed=y)


def mixture(rng: np.random.Generator, rows: int) -> Arrays:
    first = rng.random(rows) < 0.4
    return {"y": np.where(first, rng.normal(-2, 1, rows), rng.normal(2, 0.5, rows))}


def build_mixture(pm: Any, extra: Any, y: np.ndarray) -> None:
    w = pm.Dirichlet("w", np.ones(2))
    ordered = pm.distributions.transforms.ordered
    mu = pm.Normal("mu", [-1, 1], 5, transform=ordered, initval=[-1.0, 1.0])
    s = pm.HalfNormal("s", 2, shape=2)
    if isinstance(extra, float):
        pm.NormalMixture("y", w=w, mu=mu, sigma=s, observed=y)
    else:
        pm.NormalMixture("y", w=w, mu=mu + extra[:, None], sigma=s, observed=y)


def walk(rng: np.random.Generator, rows: int) -> Arrays:
    return {"y": 0.1 * np.cumsum(rng.normal(size=rows)) + rng.normal(0, 0.3, rows)}


def build_walk(pm: Any, extra: Any, y: np.ndarray) -> None:
    s, start = pm.HalfNormal("s", 1), pm.Normal.dist(0, 1)
    level = pm.GaussianRandomWalk("level", sigma=0.1, init_dist=start, shape=len(y))
    pm.Normal("y", level + extra, s, observed=y)


def process(rng: np.random.Generator, rows: int) -> Arrays:
    x = np.linspace(0, 1, rows)
    return {"x": x, "y": np.sin(6 * x) + rng.normal(0, 0.2, rows)}


def build_process(pm: Any, extra: Any, x: np.ndarray, y: np.ndarray) -> None:
    scale, eta = pm.InverseGamma("scale", 5, 1), pm.HalfNormal("eta", 1)
    s = pm.HalfNormal("s", 1)
    if not isinstance(extra, float):
        s = s * pm.math.exp(extra.mean())
    gp = pm.gp.Marginal(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, scale))
    gp.marginal_likelihood("y", X=x[:, None], y=y, sigma=s)


MODELS = {
    "eight schools": Small(
        schools,
        8,
        build_schools,
        "int N; vector[N] y; vector[N] errors;",
        "real mu; real<lower=0> tau; vector[N] t;",
        "mu ~ normal(0, 5); tau ~ cauchy(0, 5); t ~ std_normal(); "
        "y ~ normal(mu + tau * t, errors);",
    ),
    "linear": Small(
        linear,
        100,
        build_linear,
        "int N; matrix[N, 3] x; vector[N] y;",
        "real a; vector[3] b; real<lower=0> s;",
        "a ~ normal(0, 10); b ~ normal(0, 10); s ~ normal(0, 5); y ~ normal(a + x * b, s);",
    ),
    "logistic": Small(
        logistic,
        500,
        build_logistic,
        "int N; matrix[N, 5] x; array[N] int y;",
        "real a; vector[5] b;",
        "a ~ normal(0, 2); b ~ normal(0, 2); y ~ bernoulli_logit(a + x * b);",
    ),
    "radon": Small(
        radon,
        919,
        build_radon,
        "int N; array[N] int county; vector[N] floor; vector[N] y;",
        "real ma; real<lower=0> sa; real mb; real<lower=0> sb; vector[85] za; vector[85] zb; "
        "real<lower=0> s;",
        "ma ~ normal(0, 10); sa ~ std_normal(); mb ~ normal(0, 10); sb ~ std_normal(); "
        "za ~ std_normal(); zb ~ std_normal(); s ~ exponential(1); "
        "vector[85] a = ma + sa * za; vector[85] b = mb + sb * zb; "
        "y ~ normal(a[county] + b[county] .* floor, s);",
    ),
    "negative binomial": Small(
        counts,
        300,
        build_counts,
        "int N; matrix[N, 2] x; array[N] int y;",
        "real a; vector[2] b; real<lower=0> alpha;",
        "a ~ std_normal(); b ~ std_normal(); alpha ~ exponential(1); "
        "y ~ neg_binomial_2_log(a + x * b, alpha);",
    ),
    "mixture": Small(
        mixture,
        500,
        build_mixture,
        "int N; vector[N] y;",
        "simplex[2] w; ordered[2] mu; vector<lower=0>[2] s;",
        "mu[1] ~ normal(-1, 5); mu[2] ~ normal(1, 5); s ~ normal(0, 2); for (n in 1:N) target += "
        "log_mix(w[1], normal_lpdf(y[n] | mu[1], s[1]), normal_lpdf(y[n] | mu[2], s[2]));",
    ),
    "random walk": Small(
        walk,
        200,
        build_walk,
        "int N; vector[N] y;",
        "real<lower=0> s; vector[N] level;",
        "s ~ std_normal(); level[1] ~ std_normal(); "
        "level[2:N] ~ normal(level[1:(N - 1)], 0.1); y ~ normal(level, s);",
    ),
    "Gaussian process": Small(
        process,
        60,
        build_process,
        "int N; array[N] real x; vector[N] y;",
        "real<lower=0> scale; real<lower=0> eta; real<lower=0> s;",
        "scale ~ inv_gamma(5, 1); eta ~ std_normal(); s ~ std_normal(); "
        "matrix[N, N] K = gp_exp_quad_cov(x, eta, scale) + diag_matrix(rep_vector(square(s), N)); "
        "y ~ multi_normal_cholesky(rep_vector(0, N), cholesky_decompose(K));",
    ),
}


def stan_data(name: str, seed: int, longer: bool) -> Arrays:
    """The data of the Stan program, which counts from 1."""
    given = arrays_of(name, seed, longer)
    if "county" in given:
        given |= {"county": given["county"] + 1, "floor": given["floor"].astype(float)}
    return given | {"N": len(given["y"])}
