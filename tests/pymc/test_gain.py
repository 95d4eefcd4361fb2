"""Terms of few rows stay PyMC's: the number of rows and the graph decide."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from comparing import check_equal, evaluated, points

import synkhronos as synk
from synkhronos.pymc._density.faster import Faster
from synkhronos.pymc._reading.reading import read

FEW = 100


@pytest.fixture(autouse=True)
def _as_for_users(_few_rows: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of rows is the one that users have, and not that of the other tests."""
    monkeypatch.setattr("synkhronos.pymc._density.gain.FEW_ROWS", 2000)


def line(rows: int = FEW) -> None:
    r = np.random.default_rng(4)
    x = pm.Data("x", r.normal(size=rows))
    mu = pm.Normal("a") + pm.Normal("b") * x
    pm.Normal("y", mu, pm.HalfNormal("sd"), observed=r.normal(size=rows))


def long_line() -> None:
    line(2000)


def products_with_data() -> None:
    r = np.random.default_rng(4)
    mu = pt.dot(r.normal(size=(FEW, 3)), pm.Normal("b", shape=3))
    pm.Normal("y", mu, pm.HalfNormal("sd"), observed=r.normal(size=FEW))


def products_of_parameters() -> None:
    r = np.random.default_rng(4)
    mu = pt.dot(pm.Normal("w", shape=(3, 2)), pm.Normal("f", shape=(2, FEW)))
    pm.Normal("y", mu, pm.HalfNormal("sd"), observed=r.normal(size=(3, FEW)))


def groups() -> None:
    r = np.random.default_rng(4)
    mu = pm.Normal("b", shape=5)[np.arange(FEW) % 5]
    pm.Normal("y", mu, pm.HalfNormal("sd"), observed=r.normal(size=FEW))


def functions() -> None:
    r = np.random.default_rng(4)
    x = r.normal(size=FEW)
    rate = pt.exp(pm.Normal("a") + pm.Normal("b") * x)
    pm.NegativeBinomial("y", rate, pm.HalfNormal("alpha"), observed=r.poisson(3, size=FEW))


def few_functions() -> None:
    r = np.random.default_rng(4)
    rate = pt.exp(pm.Normal("a") + pm.Normal("b") * r.normal(size=10))
    pm.NegativeBinomial("y", rate, pm.HalfNormal("alpha"), observed=r.poisson(3, size=10))


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
        (products_of_parameters, False),
        (groups, True),
        (functions, True),
        (few_functions, False),
        (constant_powers, False),
    ],
)
def test_few_rows_gain_by_matrices_functions_and_repeated_rows(
    of: Callable[[], None], gains: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "synkhronos")
    copy = synk.pymc.fast(made(of))
    assert copy.logp.reading.names == ["y"] * gains
    assert ("y: few rows, the log-density stays the plain one" in caplog.messages) is not gains


def test_a_plain_copy_is_the_model_and_follows_its_data() -> None:
    model = made(line)
    at = points(model, 2)
    copy = synk.pymc.fast(model)
    check_equal(evaluated(model, at), evaluated(copy, at))
    for each in (model, copy):
        pm.set_data({"x": np.linspace(-3.0, 2.0, FEW)}, model=each)
    check_equal(evaluated(model, at), evaluated(copy, at))


def test_other_terms_of_the_model_are_faster() -> None:
    with pm.Model() as model:
        line()
        mu = pt.dot(np.random.default_rng(5).normal(size=(FEW // 2, 2)), pm.Normal("w", shape=2))
        pm.Normal("z", mu * model["b"], observed=np.arange(FEW / 2))
    copy = synk.pymc.fast(model)
    assert copy.logp.reading.names == ["z"]
    at = points(model, 2)
    check_equal(evaluated(model, at), evaluated(copy, at))


def test_chains_on_one_core_have_the_same_rule() -> None:
    model = made(line)
    with Faster(model, read(model)):
        assert model.logp.reading.names == []
    assert "logp" not in vars(model)


def test_initial_values_may_be_a_dict_of_the_user() -> None:
    model = made(line)
    model.rvs_to_initial_values = given = dict.fromkeys(model.free_RVs)
    with Faster(model, read(model)):
        assert "logp" in vars(model)
    assert "logp" not in vars(model)
    assert model.rvs_to_initial_values is given
