"""Rows that repeat: the forms, and that nothing else changes."""

from __future__ import annotations

import logging
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from comparing import (
    IN_PYTHON,
    check_equal,
    check_not_worse,
    evaluated,
    far_points,
    function,
    plainly,
    points,
)
from exact import roundings, truth
from selection import thorough

import synkhronos as synk
from synkhronos.pymc._density.likelihood import Likelihood
from synkhronos.pymc._group import likelihood as _group_likelihood
from synkhronos.pymc._reading.declared import Declared
from synkhronos.pymc._reading.facts import Facts
from synkhronos.pymc._reading.reading import read
from synkhronos.pymc._repeated.least_squares import LeastSquares, least_squares
from synkhronos.pymc._repeated.quadratic import QuadraticForm

# numpy's words on overflow, and PyMC's on imputed values
pytestmark = [
    pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Data in y contains missing values:"),
]

R = np.random.default_rng(47)
N = 420
G, H = R.integers(0, 5, N), R.integers(0, 3, N)
X, TABLE = R.normal(size=N), R.normal(size=(N, 3))
FEW = R.normal(size=N).round(0) + 0.0  # without -0.0
COUNTS = R.integers(0, 4, N)
POSITIVE = R.gamma(2, size=N)
GRID = np.random.default_rng(48).integers(0, 4, (30, 25))
MASKED = np.ma.masked_array(FEW, np.arange(N) % 100 == 7)


def z(name: str = "z", shape: Any = 5) -> Any:
    return pm.Normal(name, shape=shape)


def scale(name: str = "s", **how: Any) -> Any:
    return pm.HalfNormal(name, **how)


def e(name: str = "z") -> Any:
    """A positive parameter of each group."""
    return pm.math.exp(z(name)[G])


def weighted(left: int) -> str:
    return f"{left} distinct (with weights)"


def summed(left: int) -> str:
    return f"{left} distinct but for what is observed (sums by group)"


def cells(left: str) -> str:
    return f"{GRID.size} cells, {left}"


def quadratic(left: int) -> str:
    return f"{left} coefficients (a quadratic form)"


# name: (the observed variables, the form of each part)
KINDS: dict[str, tuple[Callable[[], object], list[str]]] = {
    "logit": (
        lambda: pm.Bernoulli("y", logit_p=pm.Normal("a") + z()[G], observed=COUNTS > 1),
        [summed(5)],
    ),
    "p": (
        lambda: pm.Bernoulli("y", pm.Beta("z", 1, 1, shape=5)[G], observed=COUNTS % 2),
        [summed(5)],
    ),
    "never": (lambda: pm.Bernoulli("y", logit_p=z()[G], observed=np.zeros(N)), [summed(5)]),
    "binomial": (
        lambda: pm.Binomial("y", n=3 + H, logit_p=z()[G], observed=COUNTS),
        [summed(5)],
    ),
    "binomial of p": (
        lambda: pm.Binomial("y", n=9, p=pm.Beta("z", 1, 1, shape=5)[G], observed=COUNTS),
        [summed(5)],
    ),
    "poisson": (lambda: pm.Poisson("y", (1 + H) * e(), observed=COUNTS), [summed(15)]),
    "exponential": (lambda: pm.Exponential("y", e(), observed=POSITIVE), [summed(5)]),
    "gamma": (
        lambda: pm.Gamma("y", alpha=scale(), beta=e(), observed=POSITIVE),
        [summed(5)],
    ),
    "gamma by its mean": (
        lambda: pm.Gamma("y", mu=e(), sigma=scale(), observed=POSITIVE),
        [summed(5)],
    ),
    "beta": (
        lambda: pm.Beta("y", alpha=scale(), beta=e(), observed=1 / (1 + POSITIVE)),
        [summed(5)],
    ),
    "lognormal": (lambda: pm.LogNormal("y", z()[G], scale(), observed=POSITIVE), [summed(5)]),
    "normal": (
        lambda: pm.Normal("y", z()[G], scale(shape=3)[H], observed=1e6 + X),
        [summed(15)],
    ),
    "one distinct": (lambda: pm.Normal("y", pm.Normal("a"), scale(), observed=X), [summed(1)]),
    "vectors": (
        lambda: pm.Normal("y", z()[G][:, None] + z("k", 3), scale(), observed=TABLE),
        [summed(5)],
    ),
    "one number": (
        lambda: pm.Potential("y", pm.logp(pm.Poisson.dist(e()), 0).sum()),
        [summed(5)],
    ),
    "one vector": (
        lambda: pm.Potential(
            "y", pm.logp(pm.Normal.dist(z()[G][:, None] + z("k", 3), 1), TABLE[0]).sum()
        ),
        [summed(5)],
    ),
    "one column": (
        lambda: pm.Potential(
            "y",
            pm.logp(
                pm.Normal.dist(z()[pm.Data("g", G)][:, None] + z("k", 3), 1), TABLE[:, :1]
            ).sum(),
        ),
        [summed(5)],
    ),
    "student": (lambda: pm.StudentT("y", nu=3, mu=z()[G], observed=COUNTS * 1.0), [weighted(20)]),
    "signs of zero": (
        lambda: pm.StudentT("y", nu=3, mu=z()[G], observed=np.where(H > 0, 0.0, -0.0)),
        [weighted(10)],
    ),
    "rows as vectors": (
        lambda: pm.MvNormal(
            "y", z()[G][:, None] * np.ones(2), np.eye(2), observed=TABLE[:, :2] > 0
        ),
        [weighted(20)],
    ),
    "rows in columns": (
        lambda: pm.Laplace("y", z()[G] + z("k", 2)[:, None], 1, observed=TABLE[:, :2].T > 0),
        [weighted(20)],
    ),
    "cells": (
        lambda: pm.Bernoulli("y", logit_p=pm.Normal("a") * GRID + z()[0], observed=GRID[::-1] > 1),
        [cells(weighted(8))],
    ),
    "cells with a check": (
        lambda: pm.Bernoulli(
            "y", p=pm.Beta("z", 2, 1) ** (GRID + 1), observed=GRID.T.reshape(30, 25) > 1
        ),
        [cells(weighted(8))],
    ),
    "cells of rows and columns": (
        lambda: pm.StudentT(
            "y",
            nu=3,
            mu=pm.Normal("a") * (GRID[:, :1] > 1) + z("k")[GRID] * (np.arange(25) > 9),
            observed=GRID % 2,
        ),
        [cells(weighted(16))],
    ),
    "columns with parameters": (
        lambda: pm.StudentT("y", nu=3, mu=z("k", 25) * GRID, observed=GRID % 2),
        [""],
    ),
    "zero-inflated": (
        lambda: pm.ZeroInflatedPoisson("y", pm.Beta("w", 1, 1), e(), observed=COUNTS),
        [weighted(20)],
    ),
    "ordered": (
        lambda: pm.OrderedLogistic(
            "y", eta=z()[G], cutpoints=np.array([-1.0, 0, 1]), observed=COUNTS
        ),
        [weighted(20)],
    ),
    "censored": (
        lambda: pm.Censored("y", pm.Normal.dist(z()[G], scale()), -1, 1, observed=FEW.clip(-1, 1)),
        [weighted(15)],
    ),
    "potential": (
        lambda: pm.Potential("y", -pt.sqr(z()[G] - FEW.clip(-1, 1)).sum()),
        [weighted(15)],
    ),
    "shared columns": (
        lambda: (
            pm.Poisson("y", e(), observed=COUNTS),
            pm.StudentT("y2", nu=3, mu=z("k")[G], observed=COUNTS % 2),
        ),
        [weighted(20)],  # one function to call for few rows
    ),
    "regression": (
        lambda: pm.Normal(
            "y",
            pm.Normal("a")
            + TABLE @ z("b", 3)
            - pm.Normal("c") * (X - 1) / 2
            + (scale("d") * z())[G],
            scale(),
            observed=X + 50,
        ),
        [quadratic(10)],
    ),
    "no noise": (
        lambda: pm.Normal(
            "y", pm.Normal("a") + TABLE @ z("b", 3), scale(), observed=0.3 + TABLE @ [0.1, 0.7, -2]
        ),
        [quadratic(4)],
    ),
    "sums of products": (
        lambda: pm.Normal("y", (TABLE * z("b", 3)).sum(-1) + z("t", (5, 3))[G, H], 2, observed=X),
        [quadratic(18)],
    ),
    "all distinct": (lambda: pm.StudentT("y", nu=3, mu=pm.Normal("a"), observed=X), [""]),
    "latent by row": (lambda: pm.Normal("y", z("z", N), 1, observed=FEW), [""]),
    "imputed": (lambda: pm.Normal("y", z()[G], 1, observed=MASKED), [""]),
}
# logit also in the tests below
DEFAULT = ("normal", "shared columns", "regression", "cells of rows and columns")


def model_of(kind: str) -> pm.Model:
    with pm.Model() as model:
        KINDS[kind][0]()
    return model


@pytest.mark.parametrize("kind", [*DEFAULT, *thorough(*[k for k in KINDS if k not in DEFAULT])])
def test_a_form_is_found_and_equals_the_plain_model(kind: str) -> None:
    model = model_of(kind)
    near, far = points(model, 2), far_points(model)[:4]
    plain = evaluated(model, near + far)
    with synk.pymc.parallel(model, members=2) as divided:
        assert divided._evaluator is not None
        parts = divided._evaluator.likelihood.parts
        found = evaluated(model, near + far)
        again = evaluated(model, near)
    assert [part.form.described for part in parts] == KINDS[kind][1]
    check_equal(plain[:2], found[:2])
    check_not_worse(model, far, plain[2:], found[2:])
    assert [value for value, _ in again] == [value for value, _ in found[:2]]


EXACT = ("binomial", "poisson", "exponential", "gamma", "gamma by its mean", "beta", "lognormal")
EXACT += ("normal", "vectors", "no noise")
# of the roundings of each row: an error beyond that of the plain sum
MORE_OF_A_VALUE, MORE_OF_A_SLOPE = 2, {"regression": 6}


@pytest.mark.parametrize("kind", thorough("logit", "p", *EXACT, "regression"))
def test_no_digit_is_lost_near_the_mode_and_far_out(kind: str) -> None:
    """Both differ from the true value by their rounding, at four points."""
    model = model_of(kind)
    start, rng = model.initial_point(0), np.random.default_rng(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        best = pm.find_MAP(model=model, progressbar=False, include_transformed=True, maxeval=200)
    mode = {name: np.asarray(best[name]) for name in start}
    at = [
        {k: v + 1e-3 * rng.normal(size=v.shape) for k, v in start.items()},
        mode,
        {k: v + 1e-4 * rng.normal(size=v.shape) for k, v in mode.items()},
        {k: v + 5 * rng.normal(size=v.shape) for k, v in start.items()},
    ]
    plain = evaluated(model, at)
    with synk.pymc.parallel(model, members=1):
        found = evaluated(model, at)
    exact, rounded = truth(model), roundings(model)
    for point, (value, slope), (other, other_slope) in zip(at, plain, found, strict=True):
        known = exact(point)
        assert known is not None
        true, true_slope = known
        of_rows, slope_of_rows = rounded(point)
        more = 2**-52 * MORE_OF_A_VALUE * of_rows
        assert abs(other - true) <= abs(value - true) + more
        more_of_slope = 2**-52 * MORE_OF_A_SLOPE.get(kind, 3) * slope_of_rows
        gap = np.abs(other_slope - true_slope)
        assert np.all(gap <= np.abs(slope - true_slope) + more_of_slope)


def no_command(*given: object) -> None:
    raise AssertionError(given)


def test_few_rows_that_are_left_need_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("logit")
    at = points(model, 2)
    plain = plainly(model, at)
    with synk.pymc.parallel(model, members=2) as divided:
        assert divided.group is not None
        logp, slope = model.compile_logp(), model.compile_dlogp()
        monkeypatch.setattr(divided.group.runner, "run", no_command)
        check_equal(plain, [(logp(point), slope(point)) for point in at])
        monkeypatch.undo()
    with pytest.raises(synk.GroupError):
        logp(at[0])


@pytest.mark.parametrize("members", thorough(1, 3))
def test_the_order_of_rows_changes_rounding_alone(
    members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_group_likelihood, "_FEW_ROWS", 0)  # members divide them all the same
    order = R.permutation(N)

    def model_with(order: Any) -> pm.Model:
        with pm.Model() as model:
            eta = pm.Normal("a") + z()[G[order]] + z("k", 3)[H[order]]
            pm.Bernoulli("y", logit_p=eta, observed=COUNTS[order] > 1)
            pm.StudentT("t", nu=3, mu=eta, observed=FEW[order])
            pm.Normal("x", TABLE[order] @ z("b", 3), scale(), observed=X[order])
        return model

    at = points(model_with(slice(None)), 2)
    results = []
    for chosen in (slice(None), order):
        model = model_with(chosen)
        with synk.pymc.parallel(model, members=members) as divided:
            assert divided._evaluator is not None
            assert all(p.form.described for p in divided._evaluator.likelihood.parts)
            results.append(evaluated(model, at))
    for (value, slope), (other, other_slope) in zip(*results, strict=True):
        assert value == pytest.approx(other, rel=1e-13)
        np.testing.assert_allclose(slope, other_slope, rtol=1e-11, atol=1e-11)


def settable() -> pm.Model:
    """A sum by group, distinct rows and a quadratic form, of data that can be set."""
    with pm.Model() as model:
        g, y = pm.Data("g", G), pm.Data("counts", COUNTS)
        few, x, other = pm.Data("few", FEW), pm.Data("x", TABLE), pm.Data("other", FEW)
        grid = pm.Data("grid", TABLE.round(0))
        pm.Poisson("y", pm.math.exp(z()[g]), observed=y)
        pm.StudentT("t", nu=3, mu=z("k")[g], observed=few)
        pm.Normal("r", x @ z("b", 3), scale(), observed=other)
        pm.StudentT("cells", nu=3, mu=pm.Normal("a") * grid, observed=grid > 0)
    return model


SET: dict[str, Callable[[], dict[str, np.ndarray]]] = {
    "other values": lambda: {
        "g": G[::-1].copy(),
        "counts": COUNTS + 3,
        "few": FEW * 2,
        "x": -TABLE,
    },
    "empty groups": lambda: {"g": G.clip(0, 1), "counts": COUNTS, "few": FEW, "x": TABLE},
    "longer": lambda: {
        "g": np.tile(G, 3),
        "counts": np.tile(COUNTS, 3),
        "few": np.tile(FEW, 3),
        "x": np.tile(TABLE, (3, 1)) ** 2,
    },
    "shorter": lambda: {"g": G[:2], "counts": COUNTS[:2], "few": FEW[:2], "x": TABLE[:2]},
    "no rows": lambda: {"g": G[:0], "counts": COUNTS[:0], "few": FEW[:0], "x": TABLE[:0]},
    "one row": lambda: {"g": G[:1], "counts": COUNTS[:1], "few": FEW[:1], "x": TABLE[:1]},
    "all distinct": lambda: {"g": G, "counts": COUNTS, "few": X, "x": TABLE},
    "not full rank": lambda: {"g": G, "counts": COUNTS, "few": FEW, "x": TABLE * [1, 1, 0]},
    "from the end": lambda: {"g": G - 5, "counts": COUNTS, "few": -FEW, "x": TABLE},
    "nan": lambda: {
        "g": G,
        "counts": COUNTS,
        "few": np.where(np.arange(N) % 50 == 9, np.nan, FEW),
        "x": TABLE,
    },
    "outside": lambda: {"g": G, "counts": COUNTS - 1, "few": FEW, "x": TABLE},
    "infinite": lambda: {
        "g": G,
        "counts": COUNTS,
        "few": np.where(np.arange(N) == 9, np.inf, FEW),
        "x": TABLE,
    },
}


@pytest.mark.parametrize(
    "kinds", [("other values", "longer", "no rows", "outside"), *thorough((tuple(SET),))]
)
def test_the_rows_are_found_again_when_data_are_set(kinds: tuple[str, ...]) -> None:
    """No weights of other data survive; the first data give the first bits again."""
    model, other = settable(), settable()
    at = points(model, 2)
    with synk.pymc.parallel(model, members=2) as divided:
        assert divided._evaluator is not None
        parts = divided._evaluator.likelihood.parts
        assert all(part.form.described for part in parts)
        by_forms, by_rows = function(model), function(other)
        before = by_forms(at)
        for data in [SET[kind] for kind in kinds]:
            for each in (model, other):
                with each:
                    more = {"other": data()["few"], "grid": data()["x"].round(0)}
                    pm.set_data(data() | more)
            found = by_forms(at)
            for (value, slope), (plain, plain_slope) in zip(found, by_rows(at), strict=True):
                np.testing.assert_allclose(value, plain, rtol=1e-10)
                if np.isfinite(plain):
                    np.testing.assert_allclose(slope, plain_slope, rtol=1e-8, atol=1e-8)
        with model:
            first_data = {"g": G, "counts": COUNTS, "few": FEW, "x": TABLE, "other": FEW}
            pm.set_data(first_data | {"grid": TABLE.round(0)})
        for (value, slope), (first, first_slope) in zip(evaluated(model, at), before, strict=True):
            assert value == first
            assert np.array_equal(slope, first_slope)


BAD: dict[str, tuple[dict[str, np.ndarray], type[Exception], str]] = {
    "above": (
        {"g": np.where(np.arange(N) == 17, 7, G)},
        IndexError,
        "index 7 of row 17 is out of bounds for 5 elements",
    ),
    "below": (
        {"g": np.where(np.arange(N) >= 3, -6, G)},
        IndexError,
        "index -6 of row 3 is out of bounds for 5 elements",
    ),
    "columns": ({"x": TABLE[:, :1]}, synk.InputError, "has 1 columns, and there are 3"),
}


def test_bad_data_name_the_users_row_and_the_next_are_taken() -> None:
    model = settable()
    [at] = points(model, 1)
    with synk.pymc.parallel(model, members=1), model:
        logp = model.compile_logp(mode=IN_PYTHON)
        before = logp(at)
        for data, error, words in BAD.values():
            pm.set_data(data)
            with pytest.raises(error, match=words):
                logp(at)
            pm.set_data({"g": G, "x": TABLE})
            assert logp(at) == before


def test_bad_data_of_a_fast_model_leave_no_old_value() -> None:
    model = synk.pymc.fast(settable())
    [at] = points(model, 1)
    logp = model.compile_logp(mode=IN_PYTHON)
    before = logp(at)
    with model, pytest.raises(IndexError, match="index 7 of row 17"):
        pm.set_data(BAD["above"][0])
    assert np.isnan(logp(at))
    with model:
        pm.set_data({"g": G})
    assert logp(at) == before


def test_a_line_says_what_was_found_and_a_switch_leaves_rows_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "synkhronos")
    model = model_of("logit")
    with synk.pymc.parallel(model, members=1) as divided:
        pass
    assert f"y: {N} rows, {summed(5)}" in caplog.text
    caplog.clear()
    with synk.pymc.parallel(model, members=1, repeated=False) as divided:
        assert divided._evaluator is not None
        [part] = divided._evaluator.likelihood.parts
        assert {len(a) for a in part.arrays()[0]} == {N}
    assert "distinct" not in caplog.text


def test_rows_stay_the_users_for_predictions_and_log_likelihoods() -> None:
    model = model_of("logit")
    with synk.pymc.parallel(model, members=1), model:
        draws = pm.sample_prior_predictive(draws=3, random_seed=1)
        assert draws.prior_predictive["y"].shape == (1, 3, N)
        [factor] = model.logp(model["y"], sum=False)
        assert factor.eval(Facts(model, Declared()).start()).shape == (N,)


def test_the_arrays_are_kept_until_other_data_are_set() -> None:
    model = settable()
    likelihood = Likelihood(read(model))
    again = pickle.loads(pickle.dumps(likelihood.parts[0].form))
    assert again.described == likelihood.parts[0].form.described
    for part in likelihood.parts:
        rows, whole = part.arrays()
        assert part.arrays()[0] is rows
        assert len(rows) == len(part.scattered)
        assert len(whole) == len(part.broadcast) - 1
        assert part.rows == N


def test_few_rows_are_left_alone() -> None:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a"), 1, observed=np.zeros(50))
    [part] = Likelihood(read(model)).parts
    assert not part.form.described


def test_a_regression_without_noise_keeps_the_digits_of_its_residuals() -> None:
    """Residuals of 1e-16 of the data are sums of digits that the plain sum has lost."""
    model = model_of("no noise")
    best = {"a": np.array(0.3), "b": np.array([0.1, 0.7, -2])}
    at = [best | {"s_log__": np.array(s)} for s in (-15.0, -30.0)]
    faster = synk.pymc.fast(model)
    exact = truth(model)
    for point, (value, slope), (other, other_slope) in zip(
        at, evaluated(model, at), evaluated(faster, at), strict=True
    ):
        known = exact(point)
        assert known is not None
        true, true_slope = known
        assert abs(other - true) <= max(0.01 * abs(value - true), 2**-52 * abs(true))
        gap = np.abs(other_slope - true_slope).max()
        assert gap <= 0.01 * np.abs(slope - true_slope).max()


def test_integers_of_small_types_keep_their_digits() -> None:
    """A cell above 127, a quotient, and a product above 2**24."""
    r, rows = np.random.default_rng(8), 6000
    g, h = (r.integers(0, n, rows).astype("int8") for n in (12, 11))
    x, u = r.integers(-30_000, 30_000, (2, rows)).astype("int16")
    with pm.Model() as model:
        mu = z("cell", (12, 11))[g, h] + pm.Normal("c") / (1 + h) + pm.Normal("d") * x * u
        pm.Normal("y", mu, 1, observed=r.normal(size=rows))
    [part] = Likelihood(read(model)).parts
    assert isinstance(part.form, QuadraticForm)
    _, cell, _, by_c, by_d = part.form.data.arrays(*part._data.arrays())
    assert np.array_equal(cell, g.astype(int) * 11 + h)
    assert np.array_equal(by_c[:, 0], 1 / (1.0 + h))
    assert np.array_equal(by_d[:, 0], x.astype(float) * u)


@pytest.mark.parametrize("kind", ["one number", "one vector", "one column"])
def test_what_is_observed_may_have_no_rows(kind: str) -> None:
    copy = synk.pymc.fast(model_of(kind))  # whose log-density is proved
    assert copy.logp.reading.names == ["y"]


def test_latents_belong_to_one_part() -> None:
    """Each part would write the gradient by them to the same place."""
    r, rows = np.random.default_rng(4), 200
    group = r.integers(0, 3, rows)
    with pm.Model() as model:
        latent = pm.Normal("latent", shape=rows)
        for name in ("of latents", "of latents, too"):
            pm.Normal(name, latent, 1, observed=r.normal(size=rows))
        for k in range(3):
            pm.Poisson(f"of groups {k}", pm.math.exp(z(f"z{k}", 3)[group]), observed=group)
    first, *others = Likelihood(read(model)).parts
    assert (first.names, first.latents) == (["of latents", "of latents, too"], [0])
    assert [part.form.described for part in others] == [summed(3)] * 3


@pytest.mark.parametrize("rank", [4, 2, 0])
def test_least_squares_near_its_solution(rank: int) -> None:
    """The sum of squares and its slope, near the solution, in long doubles."""
    r = np.random.default_rng(rank)
    x = r.normal(size=(40_000, 4)) * 10.0 ** np.arange(4)
    x[:, rank:] = x[:, :1] if rank else 0.0
    y = x @ r.normal(size=4) + 1e-3 * r.normal(size=len(x))
    found = least_squares(lambda begin, end: x[begin:end], y, 4)
    expected = np.linalg.lstsq(x, y, rcond=None)[0]
    fitted, scale = x @ found.centre, np.abs(x) @ np.abs(expected)
    assert np.all(np.abs(fitted - x @ expected) <= 1e-8 * scale + 1e-9)
    assert np.count_nonzero(found.root.any(axis=0)) == rank
    for far in (0.0, 1e-6, 1.0):
        check_squares(found, x, y, expected + far * r.normal(size=4))


def check_squares(found: LeastSquares, x: np.ndarray, y: np.ndarray, b: np.ndarray) -> None:
    """The sum of squares and its slope at b, in long doubles."""
    left = y.astype(np.longdouble) - x.astype(np.longdouble) @ b.astype(np.longdouble)
    ours = found.rest - found.root @ (found.joined @ b - found.centre)
    assert np.sum(ours**2) == pytest.approx(float(np.sum(left**2)), rel=1e-13)
    slope, true = found.joined.T @ (found.root.T @ ours), np.asarray(left @ x, np.float64)
    terms = np.abs(x) * (np.abs(y) + np.abs(x) @ np.abs(b))[:, None]  # of each row
    rounding = np.sqrt(np.sum(terms**2, axis=0)) + np.abs(x).T @ np.abs(left.astype(float))
    allowed = 2**-50 * rounding + 1e-300
    assert np.all(np.abs(slope - true) <= allowed)


@pytest.mark.parametrize(
    "columns",
    [lambda u, v: [np.ones(N), 1e16 * u], lambda u, v: [1e16 * u, u, v]],
    ids=["apart", "of two that depend on one another"],
)
def test_columns_of_another_scale_keep_their_slopes(columns: Callable[..., Any]) -> None:
    r = np.random.default_rng(3)
    x = np.column_stack(columns(*r.normal(size=(2, N))))
    scales, y = np.linalg.norm(x, axis=0), r.normal(size=N)
    found = least_squares(lambda begin, end: x[begin:end], y, x.shape[1])
    expected = np.linalg.lstsq(x / scales, y, rcond=None)[0]
    for far in (0.0, 1.0, 30.0):
        check_squares(found, x, y, (expected + far * r.normal(size=len(scales))) / scales)


def test_a_smooth_basis_whose_columns_nearly_depend_on_one_another() -> None:
    """Its solution is huge in the directions in which the basis vanishes, so these are left out."""
    r = np.random.default_rng(4)
    at = np.sort(r.uniform(-1, 1, size=600))[:, None]  # the functions are apart on -2 to 2
    x, y = np.sin((at + 2) * np.arange(1, 81) * np.pi / 4), np.sin(9 * at[:, 0])
    y += r.normal(size=len(y))
    found = least_squares(lambda begin, end: x[begin:end], y, 80)
    assert np.linalg.cond(x) > 1e15
    at_0 = found.rest + found.root @ found.centre
    assert np.sum(at_0**2) == pytest.approx(np.sum(y**2), rel=1e-13)
    for far in (3.0, 100.0):
        check_squares(found, x, y, far * r.normal(size=80))


def test_products_with_a_matrix_count_when_a_form_is_chosen() -> None:
    """A form of 100 coefficients takes longer than 900 numbers, and less than 900 such rows."""
    r = np.random.default_rng(5)
    x = r.normal(size=(900, 100))
    with pm.Model() as model:
        pm.Normal("y", x @ z("b", 100), scale(), observed=r.normal(size=900))
    [part] = Likelihood(read(model)).parts
    assert isinstance(part.form, QuadraticForm)
    assert part.form.cost > 900


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_design_that_is_not_finite_gives_nan(
    number: float, caplog: pytest.LogCaptureFixture
) -> None:
    """So the proof sees that nothing can be compared, and the model stays plain."""
    x = np.where(np.arange(3 * N).reshape(N, 3) == 50, number, TABLE)
    found = least_squares(lambda begin, end: x[begin:end], X, 3)
    assert np.isnan(found.root).all()
    with pm.Model() as model:
        pm.Normal("y", x @ z("b", 3), scale(), observed=X)
    caplog.set_level(logging.INFO, "synkhronos")
    assert "logp" not in vars(synk.pymc.fast(model))
    assert "or its gradient is not finite at the initial point" in caplog.text


@pytest.mark.parametrize("mean", [0.0, 1e3], ids=["apart", "beside years"])
def test_an_intercept_beside_effects_of_all_groups_is_added_to_them(mean: float) -> None:
    """Large coefficients that cancel leave the digits of what they leave."""
    r = np.random.default_rng(1)
    x = np.column_stack([np.ones(N), np.eye(5)[G], mean + X])
    y = 3 + x @ [0, *r.normal(size=5), 0.5] + 1e-6 * r.normal(size=N)
    found = least_squares(lambda begin, end: x[begin:end], y, 7)
    assert np.count_nonzero(found.root.any(axis=0)) == 6
    assert {*np.unique(found.joined)} <= {-1.0, 0.0, 1.0}
    b, *_ = np.linalg.lstsq(x, y, rcond=None)
    b = np.round(b, 9) + 2.0**30 * np.array([1, -1, -1, -1, -1, -1, 0])
    left = y.astype(np.longdouble) - x.astype(np.longdouble) @ b.astype(np.longdouble)
    ours = found.rest - found.root @ (found.joined @ b - found.centre)
    true = float(np.sum(left**2))
    assert np.sum(ours**2) == pytest.approx(true, rel=1e-6)
    if not mean:  # beside years plain has lost more digits
        assert np.sum((y - x @ b) ** 2) == pytest.approx(true, rel=1e-6)
