"""Random models: parameters, expressions of rows, densities, potentials, forms of data.

Lengths are few and often equal (as many groups or features as rows), so that a reader that tells
axes by their lengths is deceived. Among the operations are some that mix rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy], Any]


def _reordered(v: Any, c: Context) -> Any:
    return v[c.rng.permutation(c.rows)]


def _replaced(v: Any, c: Context) -> Any:
    return pt.set_subtensor(v[0], 0.5)


def _doubled(v: Any, c: Context) -> Any:
    """Sums over the first half of the rows and the second, joined again: lengths agree."""
    return pt.concatenate([v, v]).reshape((c.rows, 2)).sum(axis=1)


def _square(v: Any, c: Context) -> Any:
    return pt.dot(c.rng.normal(size=(c.rows, c.rows)) / c.rows, v)


BY_ROW = [
    pt.tanh,
    lambda v: pt.exp(0.5 * pt.tanh(v)),
    pt.sqr,
    pt.sigmoid,
    pt.softplus,
    lambda v: pt.switch(v > 0, v, 0.3 * v),
    lambda v: pt.clip(v, -2, 2),
    lambda v: pt.stack([v, 2 * v], axis=1).sum(axis=1),
    lambda v: pt.atleast_2d(v).T[:, 0],
    lambda v: pt.logsumexp(pt.stack([v, pt.zeros_like(v)], axis=0), axis=0),
]
MIXING = [
    lambda v, c: pt.cumsum(v) / c.rows,
    lambda v, c: pt.sort(v),
    lambda v, c: v[::-1],
    lambda v, c: pt.roll(v, 1),
    lambda v, c: pt.concatenate([v[:1], pt.diff(v)]),
    lambda v, c: pt.concatenate([v[1:], v[:1]]),
    lambda v, c: pt.special.softmax(v),
    lambda v, c: v - v.mean(),
    lambda v, c: v / (1 + pt.sqr(v).sum()),
    lambda v, c: v * pt.max(v),
    lambda v, c: pt.outer(v, v).mean(axis=0),
    lambda v, c: pt.outer(v, v).T.ravel()[: c.rows],
    lambda v, c: pt.repeat(v, 2)[: c.rows],
    lambda v, c: pt.linalg.cholesky(pt.diag(1 + pt.sqr(v)))[:, 0],
    _reordered,
    _replaced,
    _doubled,
    _square,
]
JOINED = [
    lambda v, w: v + w,
    lambda v, w: v * w,
    lambda v, w: pt.maximum(v, w),
    lambda v, w: pt.switch(v > w, v, -w),
    lambda v, w: v / (1 + pt.sqr(w)),
]
POSITIVE = {
    "HalfNormal": lambda name, **k: pm.HalfNormal(name, 1, **k),
    "Exponential": lambda name, **k: pm.Exponential(name, 1, **k),
    "Gamma": lambda name, **k: pm.Gamma(name, 2, 2, **k),
    "LogNormal": lambda name, **k: pm.LogNormal(name, 0, 0.5, **k),
    "Uniform": lambda name, **k: pm.Uniform(name, 0.2, 3, **k),
    "truncated": lambda name, **k: pm.TruncatedNormal(name, 1, 1, lower=0.1, **k),
}


@dataclass
class Context:
    """The model that grows.

    Attributes
    ----------
    lengths : sequence of int
        Of axes that are not the rows; some are equal to `rows`.
    pool : list
        Vectors of earlier expressions, which later ones use again.
    """

    draw: Draw
    rows: int
    lengths: Sequence[int]
    rng: np.random.Generator
    pool: list[Any] = field(default_factory=list)
    names: int = 0

    def one_of(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def often(self) -> bool:
        return self.draw(st.booleans())

    def seldom(self) -> bool:
        return self.draw(st.integers(0, 5)) == 5

    def name(self, start: str) -> str:
        self.names += 1
        return f"{start}{self.names}"

    def length(self) -> int:
        return self.one_of(self.lengths)

    def data(self, value: np.ndarray) -> Any:
        return pm.Data(self.name("data"), value) if self.often() else value

    def groups(self, count: int) -> Any:
        return self.data(self.rng.integers(0, count, self.rows))


def positive(c: Context, **how: Any) -> Any:
    return POSITIVE[c.one_of(POSITIVE)](c.name("s"), **how)


def parameters(c: Context, length: int) -> Any:
    """A vector of parameters, of one of many priors and transforms."""
    name = c.name("b")
    match c.one_of(["normal", "centred", "zero-sum", "walk", "simplex", "ordered", "joint"]):
        case "zero-sum" if length > 1:
            return pm.ZeroSumNormal(name, shape=length)
        case "walk" if length > 1:
            init = pm.Normal.dist(0, 1)
            return pm.GaussianRandomWalk(name, sigma=0.5, init_dist=init, shape=length)
        case "simplex" if length > 1:
            return pm.Dirichlet(name, np.ones(length))
        case "ordered":
            start = np.linspace(-1, 1, length)
            kind = pm.distributions.transforms.ordered
            return pm.Normal(name, 0, 1, shape=length, transform=kind, initval=start)
        case "joint":
            return pm.MvNormal(name, np.zeros(length), np.eye(length) + 0.3)
        case "centred":
            return pm.Normal(name, pm.Normal(c.name("m")), positive(c), shape=length)
    return pm.Normal(name, shape=length)


def leaf(c: Context) -> Any:
    """A vector with the rows, or a scalar."""
    match c.one_of(["data", "scalar", "groups", "product", "latent", "column", "pool", "table"]):
        case "data":
            return pt.as_tensor(c.data(c.rng.normal(size=c.rows)))
        case "scalar":
            return pm.Normal(c.name("a"))
        case "groups":
            count = c.length()
            return parameters(c, count)[c.groups(count)]
        case "product":
            count = c.length()
            return pt.dot(c.data(c.rng.normal(size=(c.rows, count))), parameters(c, count))
        case "latent":
            return parameters(c, c.rows)
        case "column":
            count = c.length()
            x = pt.as_tensor(c.data(c.rng.normal(size=(c.rows, count))))
            return x[:, count - 1] * pm.Normal(c.name("a"))
        case "table":
            one, two = c.length(), c.length()
            table = pm.Normal(c.name("t"), shape=(one, two))
            return table[c.groups(one), c.groups(two)]
        case _ if c.pool:
            return c.one_of(c.pool)
    return pm.Normal(c.name("a"))


def expression(c: Context, depth: int, mixing: bool) -> Any:
    """A vector with the rows, or a scalar."""
    if depth == 0:
        return leaf(c)
    if c.often():
        found = c.one_of(JOINED)(expression(c, depth - 1, mixing), expression(c, depth - 1, mixing))
    else:
        found = c.one_of(BY_ROW[:6])(expression(c, depth - 1, mixing))
        if found.ndim == 1:
            found = c.one_of(BY_ROW)(found)
    if c.seldom():  # gradients by two vectors are then the same
        found = found + parameters(c, c.rows)
    if mixing and found.ndim == 1 and c.seldom():
        found = c.one_of(MIXING)(found, c)
    if found.ndim == 1:
        c.pool.append(found)
    return found


def counts(c: Context, high: int = 4) -> np.ndarray:
    return c.rng.integers(0, high, c.rows)


def observe(c: Context, mixing: bool) -> None:
    """An observed vector of one of many densities."""
    v, r, y = expression(c, c.one_of([0, 1, 2]), mixing), c.rng, c.name("y")
    known = c.data(r.normal(size=c.rows))
    many = c.data(counts(c))
    cuts = np.array([-1.0, 0.5])
    like: dict[str, Callable[[], Any]] = {
        "normal": lambda: pm.Normal(y, v, positive(c), observed=known),
        "scale": lambda: pm.Normal(y, 0, 0.1 + pt.sqr(v), observed=known),
        "t": lambda: pm.StudentT(y, nu=3, mu=v, sigma=positive(c), observed=known),
        "laplace": lambda: pm.Laplace(y, v, positive(c), observed=known),
        "logit": lambda: pm.Bernoulli(y, logit_p=v, observed=counts(c, 2)),
        "p": lambda: pm.Bernoulli(y, p=pt.sigmoid(v), observed=counts(c, 2)),
        "poisson": lambda: pm.Poisson(y, pt.exp(pt.tanh(v)), observed=many),
        "negative": lambda: pm.NegativeBinomial(
            y, mu=pt.softplus(v) + 0.1, alpha=positive(c), observed=many
        ),
        "zero": lambda: pm.ZeroInflatedPoisson(y, 0.7, pt.softplus(v) + 0.1, observed=many),
        "binomial": lambda: pm.Binomial(y, 5, pt.sigmoid(v), observed=many),
        "gamma": lambda: pm.Gamma(
            y, alpha=2, beta=pt.softplus(v) + 0.1, observed=r.gamma(2, size=c.rows)
        ),
        "censored": lambda: pm.Censored(
            y, pm.Normal.dist(v, positive(c)), -1, 1, observed=r.normal(size=c.rows).clip(-1, 1)
        ),
        "truncated": lambda: pm.Truncated(
            y, pm.Normal.dist(v, 1), lower=-5, observed=r.normal(size=c.rows)
        ),
        "mixture": lambda: pm.NormalMixture(
            y,
            pm.Dirichlet(c.name("w"), np.ones(2)),
            pm.Normal(c.name("m"), shape=2),
            observed=known,
        ),
        "ordered": lambda: pm.OrderedLogistic(
            y, eta=v + np.zeros(c.rows), cutpoints=cuts, observed=counts(c, 3)
        ),
        "custom": lambda: custom(c, y, v, mixing, known),
    }
    like[c.one_of(like)]()


def custom(c: Context, name: str, v: Any, mixing: bool, known: Any) -> None:
    first, second = c.one_of(BY_ROW), c.one_of(BY_ROW)
    mix = c.one_of(MIXING) if mixing else None
    seed = int(c.rng.integers(1 << 30))

    def logp(value: Any, v: Any) -> Any:
        rest = first(value - v)
        if mix is not None:  # with the same numbers in each graph of the log-density
            rest = mix(rest, replace(c, rng=np.random.default_rng(seed)))
        return -pt.sqr(second(rest))

    pm.CustomDist(name, v, logp=logp, observed=known)


def observe_table(c: Context, mixing: bool) -> None:
    """An observed matrix, whose rows are on either axis; some densities are joint ones."""
    v, width, y, r = expression(c, 1, mixing), c.length(), c.name("y"), c.rng
    wide = r.normal(size=(c.rows, width))
    column = (v + np.zeros(c.rows))[:, None]
    match c.one_of(["rows", "columns", "joint", "softmax", "multinomial", "product", "latent"]):
        case "rows":
            pm.Normal(y, column + parameters(c, width), positive(c), observed=c.data(wide))
        case "columns":
            pm.Normal(y, v + parameters(c, width)[:, None], 1, observed=c.data(wide.T))
        case "joint":
            chol = np.tril(r.uniform(0.5, 1, (width, width)))
            pm.MvNormal(y, column + parameters(c, width), chol=chol, observed=wide)
        case "softmax" if width > 1:
            logits = column * parameters(c, width)
            pm.Categorical(y, logit_p=logits, observed=counts(c, width))
        case "multinomial" if width > 1:
            p = pt.special.softmax(column * r.normal(size=width), axis=-1)
            seen = r.multinomial(6, np.ones(width) / width, c.rows)
            pm.Multinomial(y, 6, p, observed=seen)
        case "product":
            inner = c.length()
            left, right = parameters(c, c.rows * inner), parameters(c, inner * width)
            mu = left.reshape((c.rows, inner)) @ right.reshape((inner, width))
            pm.Normal(y, mu, 1, observed=c.data(wide))
        case _:
            pm.Normal(y, pm.Normal(c.name("z"), shape=(c.rows, width)), 1, observed=wide)


def observe_oddly(c: Context) -> None:
    """Forms that may be refused: missing values, sizes, series, a single value."""
    y, values = c.name("y"), c.rng.normal(size=c.rows)
    mu = pm.Normal(c.name("a"))
    match c.one_of(["missing", "size", "series", "walk", "one", "column"]):
        case "missing":
            values[0] = np.nan
            pm.Normal(y, mu, 1, observed=np.ma.masked_invalid(values))
        case "size":
            pm.Normal(y, mu, 1, observed=values, total_size=c.one_of([c.rows, 100]))
        case "series":
            pm.AR(y, [0.5], sigma=1.0, init_dist=pm.Normal.dist(0, 1), observed=values)
        case "walk":
            init = pm.Normal.dist(0, 1)
            pm.GaussianRandomWalk(y, mu=mu, sigma=1, init_dist=init, observed=values)
        case "one":
            pm.Normal(y, mu, 1, observed=0.3)
        case "column":
            pm.Normal(y, mu, 1, observed=values[:, None])


def potential(c: Context, mixing: bool) -> None:
    v = -pt.sqr(expression(c, 1, mixing) - c.data(c.rng.normal(size=c.rows)))
    shape = c.one_of([lambda v: v, pt.sum, pt.mean, pt.logsumexp, lambda v: 2 * v.sum() + 1])
    pm.Potential(c.name("p"), shape(v))


class Coarse:
    """A source of random numbers of few values, among them -0.0 and 0.0: rows repeat."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def normal(self, *given: Any, **named: Any) -> Any:
        return 0.75 * self._rng.normal(*given, **named).round(0)

    def gamma(self, *given: Any, **named: Any) -> Any:
        return 0.5 + self._rng.gamma(*given, **named).round(0)

    def integers(self, low: int, high: int | None = None, size: Any = None) -> Any:
        return self._rng.integers(low, high, size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rng, name)


@st.composite
def models(draw: Draw, mixing: bool, repeating: bool = False) -> pm.Model:
    """A model with one to three observed variables of one or two lengths.

    `mixing`: whether some operations mix rows; `repeating`: whether most rows are equal.
    """
    rows = draw(st.sampled_from([24, 40] if repeating else [2, 3, 5, 8]))
    lengths = [1, 2, 3] if repeating else [1, 2, 3, rows]
    rng: Any = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    rng = Coarse(rng) if repeating else rng
    with warnings.catch_warnings(), pm.Model() as model:
        warnings.simplefilter("ignore")  # PyMC says that it imputes
        c = Context(draw, rows, lengths, rng)
        pm.Normal(c.name("a"))
        for _ in range(draw(st.integers(1, 2))):
            if c.seldom():
                observe_table(c, mixing)
            else:
                observe(c, mixing)
        if c.seldom():
            observe(Context(draw, rows + 1, [*lengths, rows + 1], rng, names=100), mixing)
        if c.seldom():
            potential(c, mixing)
        if mixing and c.seldom():
            observe_oddly(c)
    return model
