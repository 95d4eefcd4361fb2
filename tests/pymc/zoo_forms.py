"""How a model is written: potentials, missing values, sizes, names, custom densities, data."""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from kinds import Kind, N, rng
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.signal import convolve1d


def named(data: str = "x", latent: str = "b", observed: str = "y") -> pm.Model:
    r = rng()
    with pm.Model() as model:
        x = pm.Data(data, r.normal(size=N))
        mu = pm.Normal(latent) * x + pm.Normal("level", shape=N)
        pm.Normal(observed, mu, 1.0, observed=r.normal(size=N))
    return model


def total_size(size: object) -> pm.Model:
    y = rng().normal(size=N)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1, observed=y, total_size=size)
    return model


def custom_sum() -> pm.Model:
    r = rng()

    def logp(value, mu):
        return (-0.5 * (value - mu) ** 2).sum()

    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.CustomDist("y", mu * r.normal(size=N), logp=logp, observed=r.normal(size=N))
    return model


def custom_joint() -> pm.Model:
    """One number for all rows, which is not a sum."""

    def logp(value, mu):
        return -pt.logsumexp((value - mu) ** 2)

    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("mu"), logp=logp, observed=rng().normal(size=N))
    return model


def custom_by_dist() -> pm.Model:
    """The density follows from how the variable is drawn."""

    def dist(mu, sigma, size):
        return pt.exp(pm.Normal.dist(mu, sigma, size=size))

    with pm.Model() as model:
        mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
        pm.CustomDist("y", mu, sigma, dist=dist, observed=rng().lognormal(size=N))
    return model


class _Squares(Op):
    """-(y - mu)^2 / 2 in Python, with a gradient; PyTensor knows nothing of it."""

    def make_node(self, y, mu):
        y, mu = pt.as_tensor(y), pt.as_tensor(mu)
        return Apply(self, [y, mu], [pt.vector(dtype="float64")])

    def infer_shape(self, node, shapes):
        return [shapes[0]]

    def perform(self, node, inputs, outputs):
        y, mu = inputs
        outputs[0][0] = -0.5 * (y - mu) ** 2

    def pullback(self, inputs, outputs, cotangents):
        y, mu = inputs
        [given] = cotangents
        slopes = _Slopes()(y, mu)
        return [-given * slopes, given * slopes]


class _Slopes(_Squares):
    def perform(self, node, inputs, outputs):
        y, mu = inputs
        outputs[0][0] = y - mu


def black_box() -> pm.Model:
    def logp(value, mu):
        return _Squares()(value, mu * pt.ones_like(value))

    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("mu"), logp=logp, observed=rng().normal(size=N))
    return model


def graph_inside() -> pm.Model:
    a, b = pt.vectors("a", "b")
    squares = OpFromGraph([a, b], [-0.5 * pt.sqr(a - b)])
    r = rng()
    with pm.Model() as model:
        mu = pm.Normal("mu") * r.normal(size=N)
        pm.CustomDist("y", mu, logp=squares, observed=r.normal(size=N))
    return model


def missing_of_regression() -> pm.Model:
    r = rng()
    y, x = r.normal(size=N), r.normal(size=N)
    y[[5, 17, 18]] = np.nan
    with warnings.catch_warnings(), pm.Model(coords={"obs": range(N)}) as model:
        warnings.simplefilter("ignore")  # PyMC says that it imputes
        mu = pm.Normal("a") + pm.Normal("b") * x
        pm.Normal("y", mu, 1, observed=np.ma.masked_invalid(y), dims="obs")
    return model


def missing_covariate() -> pm.Model:
    r = rng()
    x = r.normal(size=N)
    x[[3, 40]] = np.nan
    with warnings.catch_warnings(), pm.Model() as model:
        warnings.simplefilter("ignore")
        full = pm.Normal("x", pm.Normal("mu"), 1, observed=np.ma.masked_invalid(x))
        pm.Normal("y", pm.Normal("b") * full, 1, observed=r.normal(size=N))
    return model


def missing_beside() -> pm.Model:
    """Another variable has no missing values, and is named by its dimension."""
    r = rng()
    counts = r.normal(size=20)
    counts[5] = np.nan
    with warnings.catch_warnings(), pm.Model(coords={"obs": range(N)}) as model:
        warnings.simplefilter("ignore")
        mu = pm.Normal("mu")
        pm.Normal("z", mu, 1, observed=np.ma.masked_invalid(counts))
        pm.Normal("y", mu * r.normal(size=N), 1, observed=r.normal(size=N), dims="obs")
    return model


def outliers() -> pm.Model:
    """A line and outliers: each row is one or the other (D. W. Hogg and others, 2010)."""
    r = rng()
    x, y, error = r.normal(size=N), r.normal(size=N), r.uniform(0.1, 0.5, N)
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b")
        centre, wide = pm.Normal("centre", 0, 5), pm.HalfNormal("wide", 5)
        share = pm.Uniform("share", 0, 0.5)
        inlier = pm.logp(pm.Normal.dist(a + b * x, error), y)
        outlier = pm.logp(pm.Normal.dist(centre, pt.sqrt(error**2 + wide**2)), y)
        rows = pt.logaddexp(pt.log1p(-share) + inlier, pt.log(share) + outlier)
        pm.Potential("rows", rows)
    return model


def switched_outliers() -> pm.Model:
    """The same with one discrete parameter for each row, and sums by hand."""
    r = rng()
    x, y, error = r.normal(size=N), r.normal(size=N), r.uniform(0.1, 0.5, N)
    with pm.Model() as model:
        a, b, wide = pm.Normal("a"), pm.Normal("b"), pm.HalfNormal("wide", 5)
        out = pm.Bernoulli("out", 0.2, shape=N)
        inlier = pm.logp(pm.Normal.dist(a + b * x, error), y)
        outlier = pm.logp(pm.Normal.dist(0, error + wide), y)
        pm.Potential("rows", ((1 - out) * inlier).sum() + (out * outlier).sum())
    return model


def mixture_by_hand() -> pm.Model:
    y = rng().normal(size=N)
    with pm.Model() as model:
        w, mu = pm.Dirichlet("w", np.ones(3)), pm.Normal("mu", 0, 2, shape=3)
        each = pm.logp(pm.Normal.dist(mu, 1.0), y[:, None])
        pm.Potential("rows", pt.logsumexp(pt.log(w) + each, axis=1).sum())
    return model


def intervals() -> pm.Model:
    """Rounded data: the probability of each row's interval."""
    low = np.floor(rng().normal(size=N))
    with pm.Model() as model:
        law = pm.Normal.dist(pm.Normal("mu"), pm.HalfNormal("sigma"))
        inside = pm.math.logdiffexp(pm.logcdf(law, low + 1), pm.logcdf(law, low))
        pm.Potential("rows", inside)
    return model


def potential_of_a_change() -> pm.Model:
    """The time of a change, summed out: the logarithm of a sum over all rows' products."""
    y = rng().normal(size=N)
    with pm.Model() as model:
        early, late = pm.Normal("early"), pm.Normal("late")
        first, second = -0.5 * (y - early) ** 2, -0.5 * (y - late) ** 2
        before = pt.cumsum(first) + second.sum() - pt.cumsum(second)
        pm.Potential("when", pt.logsumexp(before))
    return model


def potential_of_parameters() -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=N)
        pm.Potential("smooth", -0.5 * ((mu[1:] - mu[:-1]) ** 2).sum())
        pm.Normal("y", mu, 1, observed=rng().normal(size=N))
    return model


def truncated_by_row() -> pm.Model:
    r = rng()
    low = r.uniform(-2, -1, N)
    with pm.Model() as model:
        law = pm.Normal.dist(pm.Normal("mu"), pm.HalfNormal("sigma"))
        y = np.maximum(r.normal(size=N), low + 0.01)
        pm.Truncated("y", law, lower=low, upper=None, observed=y)
    return model


def doubly_censored() -> pm.Model:
    r = rng()
    with pm.Model() as model:
        law = pm.Normal.dist(pm.Normal("a") + pm.Normal("b") * r.normal(size=N), 1.0)
        y = np.clip(r.normal(size=N), -1, 1)
        pm.Censored("y", law, lower=-1, upper=1, observed=y)
    return model


def new_data() -> pm.Model:
    """Written with data of another length, then given N rows."""
    r = rng()
    with pm.Model(coords={"obs": range(7)}) as model:
        x = pm.Data("x", np.zeros((7, 2)), dims=("obs", "feature"))
        group = pm.Data("group", np.zeros(7, int), dims="obs")
        y = pm.Data("data", np.zeros(7), dims="obs")
        level, b = pm.Normal("level", shape=4), pm.Normal("b", shape=2)
        pm.Normal("y", level[group] + x @ b, 1, observed=y, dims="obs")
        new = {
            "x": r.normal(size=(N, 2)),
            "group": r.integers(0, 4, N),
            "data": r.normal(size=N),
        }
        pm.set_data(new, coords={"obs": range(N)})
    return model


def conditioned() -> pm.Model:
    """A generative model, of which variables are observed afterwards."""
    r = rng()
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
        x = pm.Normal("x", mu, 1, shape=N)
        pm.Normal("y", x, sigma, shape=N)
    return pm.observe(model, {"y": r.normal(size=N), "x": r.normal(size=N)})


def named_axes_of_groups() -> pm.Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pymc.dims says that it is new
        import pymc.dims as pmd
    r = rng()
    coords = {"obs": range(N), "group": range(5), "feature": range(3)}
    with pm.Model(coords=coords) as model:
        x = pmd.Data("x", r.normal(size=(N, 3)), dims=("obs", "feature"))
        group = pmd.Data("of", r.integers(0, 5, N), dims="obs")
        y = pmd.Data("data", r.integers(0, 2, N), dims="obs")
        level, b = pmd.Normal("level", dims="group"), pmd.Normal("b", dims="feature")
        eta = level.isel(group=group) + x.dot(b, dim="feature")
        pmd.Bernoulli("y", logit_p=eta, observed=y)
    return model


def simulator() -> pm.Model:
    def draw(rng, mu, size=None):
        return rng.normal(mu, 1, size=size)

    with pm.Model() as model:
        y = rng().normal(size=N)
        pm.Simulator("y", draw, pm.Normal("mu"), epsilon=1, sum_stat="sort", observed=y)
    return model


def density(name: str) -> pm.Model:
    """A density of each row that depends on other rows, too."""

    def logp(value, mu):
        return DENSITIES[name](value - mu, value, mu)

    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("mu"), logp=logp, observed=rng().normal(size=N))
    return model


def _normalised(z, value, mu):
    return -(((z - pt.mean(z)) / pt.std(value * mu)) ** 2)


# what mixes rows is refused; a value of all rows is data that every member gets whole
_TOTALS = {
    "share of the total": lambda z, *_: -(z**2) / pt.sum(z**2),
    "normalised by mean and deviation": _normalised,
    "distance to the largest": lambda z, *_: -((z - pt.max(z)) ** 2),
    "product with all rows": lambda z, *_: -z * pt.dot(np.full((N, N), 1 / N), z),
    "another row's value": lambda z, *_: -z * z[rng().permutation(N)],
}
_MIXED = {
    "softmax over rows": lambda z, value, mu: pt.special.log_softmax(z * mu),
    "difference of neighbours": lambda z, value, mu: pt.concatenate([z[:1], pt.diff(z)]) * mu,
    "rows reversed": lambda z, *_: -z * z[::-1],
    "rows rolled": lambda z, *_: -z * pt.roll(z, 1),
    "rows by their rank": lambda z, *_: -z * z[pt.argsort(z)],
    "moving mean": lambda z, *_: -(convolve1d(z, np.ones(3) / 3, mode="same") ** 2),
    "running product": lambda z, *_: pt.cumprod(z),
    "repeated half": lambda z, *_: pt.concatenate([z[: N // 2], z[: N - N // 2]]),
    "folded rows": lambda z, *_: pt.transpose(pt.outer(z, z)).ravel()[:N],
}
DENSITIES = {**_TOTALS, **_MIXED}

KINDS = {
    'a name with brackets, "f(a, b)"': Kind(lambda: named(observed="f(a, b)")),
    'data named "long"': Kind(lambda: named(data="long")),
    'data named "int"': Kind(lambda: named(data="int")),
    'a parameter named "double"': Kind(lambda: named(latent="double")),
    "total_size of all rows": Kind(lambda: total_size(N)),
    "total_size of more rows": Kind(lambda: total_size(1000)),
    "custom density that is a sum": Kind(custom_sum),
    "custom density of all rows, not a sum": Kind(custom_joint, "per row"),
    "custom distribution, density derived": Kind(custom_by_dist),
    "black-box operation": Kind(black_box, "row_wise=[_Squares]"),
    "black-box operation, declared": Kind(black_box, row_wise=("y",)),
    "missing values of a regression": Kind(missing_of_regression, names=("y_observed",)),
    "missing values of a covariate": Kind(missing_covariate),
    "missing values of another variable, dim named": Kind(missing_beside, dim="obs", names=("y",)),
    "outliers, summed out, in a potential": Kind(outliers, names=("rows",)),
    "outliers, discrete, in a potential": Kind(switched_outliers, names=("rows",)),
    "mixture by hand, in a potential": Kind(mixture_by_hand, names=("rows",)),
    "intervals, in a potential": Kind(intervals, names=("rows",)),
    "change point summed out, in a potential": Kind(potential_of_a_change, "Potential"),
    "a potential that smooths parameters": Kind(potential_of_parameters),
    "truncated, bounds of each row": Kind(truncated_by_row),
    "censored on both sides": Kind(doubly_censored),
    "data of another length set": Kind(new_data, dim="obs"),
    "observed afterwards (pm.observe)": Kind(conditioned),
    "axes with names, groups and products": Kind(named_axes_of_groups),
    "operation with a graph inside": Kind(graph_inside),
    "simulator (ABC)": Kind(simulator, "draws random numbers"),
    **{f"custom density, {name}": Kind(lambda n=name: density(n)) for name in _TOTALS},
    **{f"custom density, {name}": Kind(lambda n=name: density(n), "mix") for name in _MIXED},
}
