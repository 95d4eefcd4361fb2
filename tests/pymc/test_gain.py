"""Terms without a gain stay PyMC's: the number of rows and the graph decide."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from comparing import check_equal, evaluated, plainly, points
from selection import thorough

import synkhronos as synk
from synkhronos.pymc._density.faster import Faster
from synkhronos.pymc._reading.reading import read

FEW = 100


@pytest.fixture(autouse=True)
def _as_for_users(_few_rows: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is the one that users have, and not that of the other tests."""
    monkeypatch.undo()


def line(rows: int = FEW) -> None:
    r = np.random.default_rng(4)
    x = pm.Data("x", r.normal(size=rows))
    mu = pm.Normal("a") + pm.Normal("b") * x
    pm.Normal("y", mu, pm.HalfNormal("sd"), observed=r.normal(size=rows))


def long_line() -> None:
    line(2000)


def products_with_data(columns: int = 5) -> None:
    r = np.random.default_rng(4)
    mu = pt.dot(r.normal(size=(FEW, columns)), pm.Normal("b", shape=columns))
    pm.Normal("y", mu, pm.HalfNormal("sd"), observed=r.normal(size=FEW))


def small_products_with_data() -> None:
    products_with_data(2)


def products_and_latents() -> None:
    r = np.random.default_rng(4)
    mu = pt.dot(r.normal(size=(FEW, 5)), pm.Normal("b", shape=5)) + pm.Normal("own", shape=FEW)
    pm.Normal("y", mu, pm.HalfNormal("sd"), observed=r.normal(size=FEW))


def many_latents(function: Callable[[pt.TensorVariable], pt.TensorVariable] = pt.neg) -> None:
    r = np.random.default_rng(4)
    mu = pm.Normal("loading") * function(pm.Normal("own", shape=3000))
    pm.Normal("y", mu, observed=r.normal(size=3000))


def many_functions_of_latents() -> None:
    many_latents(pt.exp)


def vectors(rows: int = FEW) -> None:
    r = np.random.default_rng(4)
    chol = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.Exponential.dist(1.0, shape=2))[0]
    pm.MvNormal("y", pm.Normal("mu", shape=2), chol=chol, observed=r.normal(size=(rows, 2)))


def many_columns() -> None:
    r = np.random.default_rng(4)
    mu = pm.Normal("a") + pm.Normal("b", shape=30) * r.normal(size=(FEW, 1))
    pm.Normal("y", mu, pm.HalfNormal("sd"), observed=r.normal(size=(FEW, 30)))


def many_vectors() -> None:
    vectors(500)


def products_of_parameters() -> None:
    r = np.random.default_rng(4)
    mu = pt.dot(pm.Normal("w", shape=(3, 2)), pm.Normal("f", shape=(2, FEW)))
    pm.Normal("y", mu, pm.HalfNormal("sd"), observed=r.normal(size=(3, FEW)))


def groups(rows: int = FEW) -> None:
    r = np.random.default_rng(4)
    mu = pm.Normal("b", shape=5)[np.arange(rows) % 5]
    pm.Normal("y", mu, pm.HalfNormal("sd"), observed=r.normal(size=rows))


def large_groups() -> None:
    groups(1500)


def groups_that_can_be_set() -> None:
    """The arrays of the sums are as many inputs of a function that PyTensor compiles."""
    r = np.random.default_rng(4)
    mu = pm.Normal("b", shape=5)[pm.Data("group", np.arange(1300) % 5)]
    pm.Normal("y", mu, pm.HalfNormal("sd"), observed=r.normal(size=1300))


def groups_of_answers() -> None:
    p = pm.math.invlogit(pm.Normal("b", shape=5)[np.arange(FEW) % 5])
    pm.Bernoulli("y", p, observed=np.arange(FEW) % 3 > 0)


def functions() -> None:
    r = np.random.default_rng(4)
    x = r.normal(size=FEW)
    rate = pt.exp(pm.Normal("a") + pm.Normal("b") * x)
    pm.NegativeBinomial("y", rate, pm.HalfNormal("alpha"), observed=r.poisson(3, size=FEW))


def few_functions() -> None:
    r = np.random.default_rng(4)
    rate = pt.exp(pm.Normal("a") + pm.Normal("b") * r.normal(size=10))
    pm.NegativeBinomial("y", rate, pm.HalfNormal("alpha"), observed=r.poisson(3, size=10))


def mixtures() -> None:
    r = np.random.default_rng(4)
    w, sd = pm.Dirichlet("w", np.ones(3)), pm.HalfNormal("sd", shape=3)
    pm.NormalMixture("y", w, pm.Normal("mu", shape=3), sd, observed=r.normal(size=FEW))


def choices() -> None:
    r = np.random.default_rng(4)
    p = pm.math.softmax(pm.Normal("b") * r.normal(size=(FEW, 3)), axis=1)
    pm.Categorical("y", p=p, observed=r.integers(3, size=FEW))


def answers_of_persons() -> None:
    """The rows are the second axis."""
    r = np.random.default_rng(4)
    level = pm.Normal("ability", shape=FEW)[None, :] - pm.Normal("difficulty", shape=5)[:, None]
    pm.Bernoulli("y", logit_p=level, observed=r.integers(2, size=(5, FEW)))


def constant_powers() -> None:
    r = np.random.default_rng(4)
    x = r.normal(size=FEW) ** 2
    mu = (pm.HalfNormal("a") + x) ** 2 + (pm.HalfNormal("b") + x) ** 3
    pm.Normal("y", mu, pm.HalfNormal("sd"), observed=r.normal(size=FEW))


def made(of: Callable[[], None]) -> pm.Model:
    with pm.Model() as model:
        of()
    return model


@pytest.mark.parametrize(
    ("of", "gains"),
    [
        (line, False),
        (long_line, True),
        (products_with_data, True),
        (small_products_with_data, False),
        (many_functions_of_latents, True),
        (large_groups, True),
        (groups_that_can_be_set, False),
        (functions, True),
        (few_functions, False),
        (choices, True),
        *thorough(  # of these kinds
            (products_and_latents, False),
            (products_of_parameters, False),
            (many_latents, False),
            (vectors, False),
            (many_vectors, True),
            (many_columns, True),
            (groups, False),
            (groups_of_answers, True),
            (mixtures, True),
            (answers_of_persons, True),
            (constant_powers, False),
        ),
    ],
)
def test_terms_gain_by_matrices_functions_and_repeated_rows(
    of: Callable[[], None], gains: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "synkhronos")
    copy = synk.pymc.fast(made(of))
    assert copy.logp.reading.names == ["y"] * gains
    assert (
        "y: nothing to gain, the log-density stays the plain one" in caplog.messages
    ) is not gains


def test_a_plain_copy_is_the_model_and_follows_its_data() -> None:
    model = made(line)
    at = points(model, 2)
    copy = synk.pymc.fast(model)
    check_equal(plainly(model, at), evaluated(copy, at))
    for each in (model, copy):
        pm.set_data({"x": np.linspace(-3.0, 2.0, FEW)}, model=each)
    check_equal(plainly(model, at), evaluated(copy, at))


def test_other_terms_of_the_model_are_faster() -> None:
    with pm.Model() as model:
        line()
        mu = pt.dot(np.random.default_rng(5).normal(size=(FEW // 2, 9)), pm.Normal("w", shape=9))
        pm.Normal("z", mu * model["b"], observed=np.arange(FEW / 2))
    copy = synk.pymc.fast(model)
    assert copy.logp.reading.names == ["z"]
    at = points(model, 2)
    check_equal(plainly(model, at), evaluated(copy, at))


def test_chains_on_one_core_have_the_same_rule() -> None:
    model = made(line)
    with Faster(model, read(model)):
        assert model.logp.reading.names == []
    assert "logp" not in vars(model)


def test_data_of_a_chain_cannot_be_set() -> None:
    model = made(groups_that_can_be_set)
    with Faster(model, read(model)):
        assert model.logp.reading.names == ["y"]


def test_initial_values_may_be_a_dict_of_the_user() -> None:
    model = made(line)
    model.rvs_to_initial_values = given = dict.fromkeys(model.free_RVs)
    with Faster(model, read(model)):
        assert "logp" in vars(model)
    assert "logp" not in vars(model)
    assert model.rvs_to_initial_values is given
