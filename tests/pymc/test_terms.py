"""Terms that are sums, Potentials, missing values, and what stays in the master."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from comparing import IN_PYTHON, check_equal, evaluated, plainly, points
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.raise_op import Assert
from selection import thorough

import synkhronos as synk
from synkhronos.pymc._group import parallel as _parallel
from synkhronos.pymc._group import rest_terms
from synkhronos.pymc._group.advice import Advice, ModeAdvice
from synkhronos.pymc._reading import reading as _reading
from synkhronos.pymc._reading import summands

N = 37
R = np.random.default_rng(20170101)
X, Y, W = R.normal(size=(N, 2)), R.normal(size=N), R.uniform(0.5, 1.5, N)


def check_divided(model: pm.Model, names: list[str], members: int = 2, dim: str = "") -> None:
    """Divided are these variables, and value and gradient are the plain model's."""
    at = points(model, 3)
    plain = plainly(model, at)
    with synk.pymc.parallel(model, dim or None, members=members) as parallel:
        assert parallel.names == names
        check_equal(plain, evaluated(model, at))
    check_equal(plain, evaluated(model, at))


def refusal(model: pm.Model, dim: str | None = None) -> str:
    with pytest.raises(synk.InputError) as caught:
        _reading.read(model, dim)
    return str(caught.value)


def custom(logp: Callable[..., object]) -> pm.Model:
    with pm.Model() as model:
        mu, scale = pm.Normal("mu"), pm.HalfNormal("scale")
        pm.CustomDist("y", mu, scale, logp=logp, observed=Y)
    return model


def potential(term: Callable[..., object]) -> pm.Model:
    with pm.Model() as model:
        b, scale = pm.Normal("b", shape=2), pm.HalfNormal("scale")
        pm.Potential("p", term(b, scale))
    return model


# -- sums --------------------------------------------------------------------------------------

SUMS = {
    "a sum": lambda v, mu, s: (-0.5 * ((v - mu) / s) ** 2).sum(),
    "a sum times a number": lambda v, mu, s: -0.5 * pt.sum(((v - mu) / s) ** 2),
    "less what counts rows": lambda v, mu, s: (
        -0.5 * pt.sum(((v - mu) / s) ** 2) - v.shape[0] * pt.log(s)
    ),
    "several sums": lambda v, mu, s: (
        -pt.sum(abs(v - mu)) / s + (2 * pt.log(s) - mu) - pt.sum((v * mu) ** 2) * mu
    ),
    "a mean": lambda v, mu, s: -pt.mean((v - mu) ** 2) / s,
    "a product of vectors": lambda v, mu, s: -0.5 * pt.dot(v - mu, v - mu) / s**2,
    "a weighted mean": lambda v, mu, s: -pt.sum(W * (v - mu) ** 2) / pt.sum(W * s),
    "PyMC's own density": lambda v, mu, s: pm.logp(pm.Normal.dist(mu, s), v).sum(),
}


@pytest.mark.parametrize(
    "name", ["several sums", *thorough(*(n for n in SUMS if n != "several sums"))]
)
def test_a_custom_distribution_that_ends_with_a_sum(name: str) -> None:
    check_divided(custom(SUMS[name]), ["y"])


@pytest.mark.thorough
@pytest.mark.parametrize("members", [1, 3])
def test_sums_and_a_rest_over_any_number_of_members(members: int) -> None:
    check_divided(custom(SUMS["less what counts rows"]), ["y"], members)


NO_SUMS = {
    "the square of a sum": lambda v, mu, s: -(pt.sum(v - mu) ** 2) / s,
    "the logarithm of a sum": lambda v, mu, s: -pt.log(pt.sum((v - mu) ** 2)) / s,
    "a product of two sums": lambda v, mu, s: -pt.sum((v - mu) ** 2) * pt.sum((v - s) ** 2),
    "a sum in a divisor": lambda v, mu, s: -s / pt.sum((v - mu) ** 2),
    "a maximum": lambda v, mu, s: -pt.max(abs(v - mu)) / s,
    "a sum over sorted rows": lambda v, mu, s: -pt.sum((pt.sort(v * mu) - mu) ** 2) / s,
    "a sum over neighbours": lambda v, mu, s: -pt.sum(pt.cumsum((v - mu) / s) ** 2),
    "a rounded sum": lambda v, mu, s: pt.cast(-pt.sum((v - mu) ** 2), "int64") * s,
}


@pytest.mark.parametrize("name", NO_SUMS)
def test_what_is_no_sum_is_refused_and_the_user_told_what_to_write(name: str) -> None:
    assert "Let logp return one value per row" in refusal(custom(NO_SUMS[name]))


def test_parts_add_up() -> None:
    a, b = pt.vector("a"), pt.vector("b")
    term = 2 * a.sum() - (b.sum() - pt.exp(a.sum())) / 3
    parts = summands.summands_of(term)
    assert [len(p.arrays) for p in parts].count(0) == 1
    given = {a: np.arange(3.0), b: np.ones(4)}
    total = sum(p.value.eval(given, on_unused_input="ignore") for p in parts)
    np.testing.assert_allclose(total, term.eval(given))
    for part in parts:
        for array in part.arrays:
            np.testing.assert_allclose(
                array.sum().eval(given, on_unused_input="ignore"),
                part.value.eval(given, on_unused_input="ignore"),
            )


def test_parts_that_do_not_add_up_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(term: object) -> list[summands.Summand]:
        return [
            summands.Summand(p.value, tuple(a * (1 + 1e-6) for a in p.arrays)) for p in right(term)
        ]

    right = _reading.summands_of
    monkeypatch.setattr(_reading, "summands_of", wrong)
    model = custom(SUMS["a sum"])
    with pytest.raises(synk.InputError, match="the parts of y do not add up: its log-density"):
        synk.pymc.parallel(model, members=1)
    assert "logp" not in vars(model)


@pytest.mark.thorough
def test_autoregression_has_rows_that_depend_on_data_alone() -> None:
    with pm.Model() as model:
        rho = pm.Normal("rho", 0, 0.5, shape=2)
        sigma = pm.HalfNormal("sigma")
        init = pm.Normal.dist(0, 1, shape=2)
        pm.AR("y", rho, sigma=sigma, init_dist=init, observed=Y)
    reading = _reading.read(model)
    assert [t.rows for t in reading.terms] == [N - 2]
    assert list(reading.rests) == ["y"]  # the two initial values
    check_divided(model, ["y"], 3)


# -- total_size --------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [*thorough(N, (N,)), 5 * N])
def test_all_rows_with_a_total_size(total: object) -> None:
    """The scale is 1, or what the model says: the divided model is the plain one."""
    with pm.Model() as model:
        pm.Normal("y", X @ pm.Normal("b", shape=2), 1, observed=Y, total_size=total)
    check_divided(model, ["y"])


def test_a_minibatch_stays_what_it_is() -> None:
    x, y = pm.Minibatch(X, Y, batch_size=5)
    with pm.Model() as model:
        pm.Normal("y", x @ pm.Normal("b", shape=2), 1, observed=y, total_size=N)
    assert "other rows at each evaluation" in refusal(model)


# -- missing values ----------------------------------------------------------------------------


def with_missing(shape: tuple[int, ...] = (N,)) -> np.ma.MaskedArray:
    values = R.normal(size=shape)
    values[3] = np.nan
    values.flat[11::7] = np.nan
    return np.ma.masked_invalid(values)


def imputed(make: Callable[[], object]) -> pm.Model:
    with warnings.catch_warnings(), pm.Model(coords={"obs": range(N)}) as model:
        warnings.simplefilter("ignore")  # PyMC says that it imputes
        make()
    return model


@pytest.mark.parametrize("dim", [*thorough(""), "obs"])
def test_observed_values_beside_missing_ones(dim: str) -> None:
    def make() -> None:
        mean = X @ pm.Normal("b", shape=2)
        pm.Normal("y", mean, pm.HalfNormal("s"), observed=with_missing(), dims="obs")

    check_divided(imputed(make), ["y_observed"], 3 if dim else 2, dim)


@pytest.mark.thorough
def test_missing_values_that_are_predictors_too() -> None:
    def make() -> None:
        x = pm.Normal("x", pm.Normal("mean"), 1, observed=with_missing())
        pm.Normal("y", pm.Normal("slope") * x, 1, observed=Y)

    check_divided(imputed(make), ["x_observed", "y"])


@pytest.mark.thorough
def test_missing_values_of_multivariate_rows() -> None:
    def make() -> None:
        pm.MvNormal("y", pm.Normal("mu", shape=3), np.eye(3) + 0.5, observed=with_missing((N, 3)))

    check_divided(imputed(make), ["y_observed"])


# -- Potentials --------------------------------------------------------------------------------

CENSORED = Y > 0.5


def outliers(b: object, s: object) -> object:
    """Hogg, Bovy and Lang (2010), equation 17."""
    inside = pm.logp(pm.Normal.dist(X @ b, 1), Y)
    outside = pm.logp(pm.Normal.dist(0, 10 * s), Y)
    return pt.logaddexp(pt.log(0.9) + inside, pt.log(0.1) + outside)


POTENTIALS = {
    "one value per row": outliers,
    "a sum": lambda b, s: outliers(b, s).sum(),
    "a weighted sum and a penalty": lambda b, s: pt.sum(W * outliers(b, s)) - s * pt.sum(b**2),
    "censored rows": lambda b, s: pt.switch(
        CENSORED,
        pm.logccdf(pm.Normal.dist(X @ b, s), 0.5),
        pm.logp(pm.Normal.dist(X @ b, s), Y),
    ),
    "sums over another axis": lambda b, s: (-(((X - b) / s) ** 2)).sum(axis=0),
    "rows picked by index": lambda b, s: pm.logp(pm.Normal.dist(X[np.arange(5, 30)] @ b, s), 0.3),
}


@pytest.mark.thorough  # one of them: test_potentials_over_any_number_of_members
@pytest.mark.parametrize("name", POTENTIALS)
def test_a_model_with_a_potential_alone(name: str) -> None:
    check_divided(potential(POTENTIALS[name]), ["p"])


@pytest.mark.each_choice
@pytest.mark.parametrize("members", [*thorough(1), 3])
def test_potentials_over_any_number_of_members(members: int) -> None:
    check_divided(potential(POTENTIALS["a weighted sum and a penalty"]), ["p"], members)


SERIAL = {
    "no data": lambda b, s: -pt.sum(b**2) / s,
    "rows that are mixed": lambda b, s: -pt.sum(pt.cumsum(X @ b - Y) ** 2) / s,
    "a function of a sum": lambda b, s: -pt.log(pt.sum((X @ b - Y) ** 2 / s)),
    "integers": lambda b, s: -1 * pt.sum(pt.gt(X @ b, Y)),
}


@pytest.mark.parametrize("name", SERIAL)
def test_what_is_no_sum_over_rows_of_data_is_not_divided(name: str) -> None:
    assert (
        "there is nothing to divide" in (text := refusal(potential(SERIAL[name])))
        or "the Potential p cannot be divided" in text
    )


def test_a_potential_that_raises_is_not_divided() -> None:
    model = potential(lambda b, s: Assert("no")(outliers(b, s), pt.gt(s, 0)).sum())
    assert "p" in refusal(model)


@pytest.mark.parametrize(
    "term",
    [
        lambda inner: pt.logaddexp(inner, -0.5 * Y**2).sum(),
        *thorough(
            lambda inner: -inner.sum(),
            lambda inner: pt.switch(Y > 0, inner, -1.0).sum(),
            lambda inner: inner.sum() * 2 + 1,
        ),
    ],
)
def test_checks_of_parameters_below_other_functions(term: Callable[..., object]) -> None:
    """A standard deviation below 0 makes a density -inf, and what follows what it is in PyMC."""
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu"), pm.Normal("sigma")
        pm.Potential("p", term(pm.logp(pm.Normal.dist(mu, sigma), Y)))
    at = [{"mu": np.array(0.3), "sigma": np.array(s)} for s in (-1.0, 2.0)]
    plain = evaluated(model, at)
    with synk.pymc.parallel(model, members=2) as parallel:
        assert parallel.names == ["p"]
        for (value, _), (other, _) in zip(plain, evaluated(model, at), strict=True):
            np.testing.assert_allclose(other, value, rtol=1e-10)


def with_outliers(rows: int = 400) -> pm.Model:
    """The bounds of the second component, and the scale of the first one, may be impossible."""
    with pm.Model() as model:
        low, high = pm.Normal("low", -9), pm.Normal("high", 9)
        first = pm.Normal.dist(pm.Normal("mu"), pm.HalfNormal("sigma"))
        second = pm.Uniform.dist(low, high)
        pm.Mixture("y", [0.9, 0.1], [first, second], observed=np.linspace(-1, 1, rows))
    return model


IMPOSSIBLE = {
    "bounds": {"low": 3.0, "high": -3.0},
    "a scale of 0": {"sigma_log__": -800.0},
    "both": {"low": 3.0, "high": -3.0, "sigma_log__": -800.0},
    "none": {},
}


@pytest.mark.parametrize("faster", [True, *thorough(False)])
def test_a_component_with_impossible_parameters_is_left_out(faster: bool) -> None:
    """PyMC gives it no probability. So the mixture has that of the others."""
    model = with_outliers()
    start = model.initial_point()
    at = [start | {k: np.array(v) for k, v in each.items()} for each in IMPOSSIBLE.values()]
    plain = evaluated(model, at)
    assert [bool(np.isfinite(value)) for value, _ in plain] == [True, True, False, True]
    if faster:
        copy = synk.pymc.fast(model)
        assert copy.logp.reading.names == ["y"]
        found = evaluated(copy, at)
    else:
        with synk.pymc.parallel(model, members=2) as parallel:
            assert parallel.names == ["y"]
            found = evaluated(model, at)
    for (value, slope), (other, other_slope) in zip(plain, found, strict=True):
        np.testing.assert_allclose(other, value, rtol=1e-10)
        known = np.isfinite(slope)  # by a scale of 0 PyMC has no gradient
        np.testing.assert_allclose(other_slope[known], slope[known], rtol=1e-8, atol=1e-9)


def both() -> pm.Model:
    """An observed variable, and a Potential of as many rows with a part that stays."""
    with pm.Model() as model:
        b, scale = pm.Normal("b", shape=2), pm.HalfNormal("scale")
        pm.Poisson("y", pt.exp(X @ b), observed=R.poisson(1, N))
        pm.Potential("p", outliers(b, scale).sum() - scale * pt.sum(b**2))
        pm.Potential("prior", -(scale**2))
    return model


@pytest.mark.thorough  # without Potentials: test_parallel.py
def test_parts_of_the_log_density_with_a_divided_potential() -> None:
    model = both()
    point = points(model, 1)[0]
    y, p, prior, b = (model[n] for n in ("y", "p", "prior", "b"))
    asked = {
        "all": None,
        "observed": [y],
        "observed and priors": [y, b],
        "potentials": [p, prior],
        "one potential": [p],
        "divided ones": [y, p],
        "priors": model.free_RVs,
    }

    def compiled(value: object) -> Callable[..., object]:
        given = {"inputs": model.value_vars, "on_unused_input": "ignore"}
        return model.compile_fn(value, mode=IN_PYTHON, **given)

    def answers() -> dict[str, object]:
        found = {name: compiled(model.logp(vars=given)) for name, given in asked.items()}
        more = {"data": model.datalogp, "potential": model.potentiallogp, "var": model.varlogp}
        found |= {k: compiled(v) for k, v in more.items()}
        values: dict[str, object] = {name: f(point) for name, f in found.items()}
        values["rows"] = model.compile_logp(sum=False, mode=IN_PYTHON)(point)
        return values

    plain = answers()
    with synk.pymc.parallel(model, members=2) as parallel:
        assert parallel.names == ["y", "p"]
        divided = answers()
        assert len(parallel._more) == 2  # one operation for all, and one for what is observed
    for name, value in plain.items():
        for one, other in (
            zip(np.atleast_1d(value), np.atleast_1d(divided[name]), strict=True)
            if (name != "rows")
            else zip(value, divided[name], strict=True)
        ):
            np.testing.assert_allclose(other, one, rtol=1e-12, err_msg=name)
    assert not parallel._more


@pytest.mark.thorough
def test_map_advi_smc_and_stored_likelihoods_with_a_divided_potential() -> None:
    model = both()

    def run() -> tuple[object, ...]:
        peak = pm.find_MAP(model=model, progressbar=False)
        fit = pm.fit(20, model=model, progressbar=False, random_seed=3)
        smc = pm.sample_smc(
            10, model=model, chains=1, cores=1, progressbar=False, random_seed=3,
            compute_convergence_checks=False,
        )  # fmt: skip
        stored = pm.compute_log_likelihood(smc, model=model, progressbar=False)
        return peak["b"], fit.hist, smc.posterior["b"].values, stored.log_likelihood["y"].values

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = run()
        with synk.pymc.parallel(model, members=2):
            divided = run()
    for a, b in zip(plain, divided, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_a_named_dimension_is_that_of_potentials_too() -> None:
    with pm.Model(coords={"obs": range(N)}) as model:
        b = pm.Normal("b", shape=2)
        pm.Potential("p", outliers(b, 1.0).sum())
        pm.Potential("other", -pt.sum((b[0] - np.arange(2.0 * N)) ** 2))
    check_divided(model, ["p"], dim="obs")
    with pm.Model(coords={"obs": range(N), "k": range(3)}) as model:
        pm.Normal("y", pm.Normal("b"), 1, observed=Y, dims="obs")
        pm.Potential("p", -(model["b"] ** 2))
    assert "no observed variable has this dimension" in refusal(model, "k")


def test_potentials_follow_new_data() -> None:
    with pm.Model() as model:
        data = pm.Data("data", Y)
        pm.Potential("p", -pt.mean((data - pm.Normal("mu")) ** 2) * 10)
    with synk.pymc.parallel(model, members=2):
        divided = model.compile_logp(mode=IN_PYTHON)
        for rows in (N, 9, 50):
            model["data"].set_value(np.arange(float(rows)))
            plain = model.compile_fn(
                type(model).logp(model), mode=IN_PYTHON, inputs=model.value_vars
            )
            for point in points(model, 2):
                np.testing.assert_allclose(divided(point), plain(point), rtol=1e-10)


# -- what stays --------------------------------------------------------------------------------


def with_a_process(rows: int = N) -> pm.Model:
    with pm.Model(coords={"obs": range(rows)}) as model:
        mu = pm.Normal("mu", shape=12)
        pm.Normal("y", mu[np.arange(rows) % 12], 1, observed=R.normal(size=rows), dims="obs")
        cov = np.exp(-((np.arange(12.0)[:, None] - np.arange(12.0)) ** 2)) + np.eye(12)
        pm.MvNormal("z", mu, cov, observed=np.arange(12.0))
    return model


def test_what_cannot_be_divided_stays_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "synkhronos"):
        check_divided(with_a_process(), ["y"])
    [line] = [r.getMessage() for r in caplog.records if "stays in the master" in r.getMessage()]
    assert re.fullmatch(
        r"z stays in the master: z \(\S+\) cannot be divided by row: .*not a sum over rows.*"
        r" \(about \d+ % of a gradient\)",
        line,
    )


class ValueOnly(Op):
    """An operation of the user's in Python, without a gradient."""

    __props__ = ()

    def make_node(self, x: Any) -> Apply:
        return Apply(self, [pt.as_tensor(x)], [pt.dscalar()])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: Any) -> None:
        outputs[0][0] = -np.sum(inputs[0] ** 2)


def test_a_term_without_a_gradient_stays(caplog: pytest.LogCaptureFixture) -> None:
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=Y)
        pm.Potential("black", ValueOnly()(X[:, 0] - mu))
    at = points(model, 2)
    value = model.compile_logp(mode=IN_PYTHON)
    plain = [value(point) for point in at]
    with caplog.at_level("INFO", "synkhronos"), synk.pymc.parallel(model, members=2) as parallel:
        assert parallel.names == ["y"]
        value = model.compile_logp(mode=IN_PYTHON)
        np.testing.assert_allclose([value(point) for point in at], plain)
    assert "black stays in the master" in caplog.text


def test_checks_that_fail_at_the_initial_point() -> None:
    """PyMC's samplers move away from there first."""
    with pm.Model() as model:
        sigma = pm.Normal("b") * pm.Data("w", W)  # 0 there
        pm.Normal("y", 0, sigma, observed=pm.Data("data", Y))
    check_divided(model, ["y"])


def test_a_large_share_that_stays_is_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = with_a_process()
    reading = _reading.read(model)
    for share, level in ((0.04, logging.INFO), (0.12, logging.WARNING)):
        monkeypatch.setattr(rest_terms, "shares_of", lambda reading, names, s=share: {"z": s})
        with caplog.at_level(logging.INFO, "synkhronos"):
            rest_terms.tell_what_stays(reading)
        assert caplog.records[-1].levelno == level
        assert f"(about {100 * share:.0f} % of a gradient)" in caplog.records[-1].getMessage()


def test_shares_are_those_of_the_time() -> None:
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("small", mu, 1, observed=Y)
        pm.Normal("large", mu, 1, observed=np.zeros(300_000))
    found = rest_terms.shares_of(_reading.read(model), ["small", "large"])
    assert 0 < found["small"] < 0.5 < found["large"] <= 1


def test_if_nothing_can_be_divided_every_reason_is_given() -> None:
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=5)
        pm.MvNormal("one", mu, np.eye(5), observed=np.arange(5.0))
        pm.CustomDist("two", mu[0], logp=accumulates, observed=Y)
        pm.Potential("three", -pt.log(pt.sum((mu[0] - Y) ** 2)))
    text = refusal(model)
    assert text.startswith("nothing in the model can be divided:\n- one: one (")
    assert "\n- two: the log-density of two cannot be divided" in text
    assert "\n- three: the Potential three cannot be divided" in text


def accumulates(value: object, mu: object) -> object:
    return -pt.cumsum((value - mu) ** 2)


def test_a_variable_that_the_user_names_is_not_left_to_the_master() -> None:
    with pm.Model(coords={"obs": range(N)}) as model:
        mu = pm.Normal("mu")
        pm.CustomDist("y", mu, logp=accumulates, observed=Y, dims="obs")
        pm.Normal("z", mu, 1, observed=Y, dims="obs")
    assert "mixes rows" in refusal(model, "obs")
    assert _reading.read(model).names == ["z"]
    assert "mixes rows" in _reading.read(model).stays["y"]


def test_short_parts_stay_in_the_master() -> None:
    """Another number of rows would be another function to compile."""
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=np.zeros(200))
        pm.Potential("short", -pt.sum((mu - np.arange(3.0)) ** 2))
        pm.Potential("long", -pt.sum((mu - np.arange(30.0)) ** 2))
    assert _reading.read(model).names == ["y", "long"]


def test_the_verdict_says_no_below_a_gain_worth_having() -> None:
    parts = {1: 0.01, 2: 0.005, 4: 0.003, 8: 0.002}
    for rest, says in ((1.0, True), (0.1, False)):
        found = ModeAdvice("NUMBA", 1.01, 1.01, rest, parts, 1e-4)
        assert (
            "Dividing this model does not pay" in str(Advice(("y",), (2,), 2, (found,)))
        ) == says


@pytest.mark.thorough
def test_advice_says_no_where_nearly_all_stays() -> None:
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=150)
        pm.Normal("y", mu[0], 1, observed=[0.1, 0.2])
        cov = np.exp(-((np.arange(150.0)[:, None] - np.arange(150.0)) ** 2)) + np.eye(150)
        pm.MvNormal("z", mu, pm.HalfNormal("s") * cov, observed=np.zeros(150))
    advice = synk.pymc.advise(model, members=2, modes=["FAST_COMPILE"])
    assert advice.names == ("y",)
    assert advice.best.share < 0.5
    assert "Dividing this model does not pay" in str(advice)


def test_evaluators_of_a_closed_model_are_left() -> None:
    model = both()
    parallel = synk.pymc.parallel(model, members=1)
    made = list(parallel._more)
    assert isinstance(model.logp, _parallel.Divided)
    parallel.close()
    assert all(e._left for e in made)
