"""Recipes for many models, and for programs, give numbers that are known before."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytest
from recipes import run_recipe

import synkhronos as synk

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]  # each slot imports and compiles

ROWS = 60


@pytest.fixture(autouse=True)
def _no_compiler() -> Iterator[None]:
    """The mode of users."""
    with pytensor.config.change_flags(mode="NUMBA"):
        yield


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_all_calls_of_the_page_for_programs() -> None:
    """On counts whose mean is exp(1 + 0.5 x)."""
    done = run_recipe("recipe-program")
    assert done["idata"].posterior.sizes == {"chain": 4, "draw": 500}
    assert done["idata"].posterior_predictive["y"].shape == (4, 500, 300)
    assert done["elpd"].n_data_points == 300
    assert done["elpd"].n_samples == 2000
    means = done["new"].predictions["y"].mean(("chain", "draw")).values
    assert means == pytest.approx([np.exp(1), np.exp(1.5)], rel=0.15)
    drawn = done["approximation"].sample(300, random_seed=2)
    assert float(drawn.posterior["slope"].mean()) == pytest.approx(0.5, abs=0.1)
    assert float(done["again"].posterior["slope"].mean()) == pytest.approx(0.5, abs=0.1)
    assert done["slopes"] == pytest.approx({"first": 0.5, "second": 0.5}, abs=0.15)
    assert not hasattr(pm.sample, "__wrapped__")  # PyMC's own again


def test_slopes_of_shops() -> None:
    r = np.random.default_rng(0)
    right = {"north": -0.5, "south": 0.8}
    price = r.normal(size=(2, 300))
    rows = [
        pd.DataFrame({"shop": shop, "price": p, "sold": r.poisson(np.exp(1 + slope * p))})
        for (shop, slope), p in zip(right.items(), price, strict=True)
    ]
    pd.concat(rows).to_csv("sales.csv")
    done = run_recipe("recipe-shops")
    assert not done["fits"].failed
    assert done["slopes"] == pytest.approx(right, abs=0.1)


@pytest.fixture
def answers() -> dict[str, Any]:
    """Yes or no, by a logistic regression."""
    r = np.random.default_rng(0)
    x = r.normal(size=(ROWS, 2))
    y = r.binomial(1, 1 / (1 + np.exp(-x @ [1.5, -1.0])))
    return {"x": x, "y": y, "group": np.array(["a", "b", "c"])[np.arange(ROWS) % 3]}


def elpd_of(x: np.ndarray, y: np.ndarray, held: list[np.ndarray]) -> float:
    """The expected log-density of rows that are left out, by a sum over a grid of slopes."""
    grid = np.linspace(-6, 6, 241)
    slopes = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2)
    terms = -np.logaddexp(0, -(2 * y[:, None] - 1) * (x @ slopes.T))
    prior = -(slopes**2).sum(1) / 2
    total = 0.0
    for rows in held:
        weights = prior + np.delete(terms, rows, axis=0).sum(0)
        both = np.logaddexp.reduce(terms[rows] + weights, axis=1)
        total += float((both - np.logaddexp.reduce(weights)).sum())
    return total


def test_elpd_of_folds_and_of_groups(answers: dict[str, Any]) -> None:
    x, y, group = answers["x"], answers["y"], answers["group"]
    given = {"pm": pm, "synk": synk, **answers}
    done = run_recipe("recipe-folds", **given)
    assert done["elpd"] == pytest.approx(elpd_of(x, y, done["folds"]), abs=0.1)
    fits = run_recipe("recipe-groups", np=np, held_out=done["held_out"], **given)["fits"]
    held = [np.flatnonzero(group == name) for name in fits]
    assert sorted(fits) == ["a", "b", "c"]
    assert sum(f.sum() for f in fits.values()) == pytest.approx(elpd_of(x, y, held), abs=0.1)


def fewer(count: int) -> SimpleNamespace:
    """`synk`, whose `sbc` has this number of simulations."""
    call = functools.partial(_sbc_of, count)
    return SimpleNamespace(pymc=SimpleNamespace(sbc=call))


def _sbc_of(count: int, model: Any, _: int, **options: Any) -> Any:
    return synk.pymc.sbc(model, count, **options)


def test_ranks_are_uniform() -> None:
    done = run_recipe("recipe-ranks", np=np, pm=pm, synk=fewer(100))
    for name in ("level", "width"):
        assert chi_square_of(done["ranks"], name) < 18.5  # of 4: one in a thousand
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("arviz_plots")
    matplotlib.use("Agg")
    run_recipe("recipe-ranks-plot", ranks=done["ranks"])
    pytest.importorskip("matplotlib.pyplot").close("all")


def test_data_with_heavier_tails_are_noticed() -> None:
    model = run_recipe("recipe-ranks", np=np, pm=pm, synk=fewer(1))["model"]
    given = {"np": np, "model": model, "synk": fewer(100)}
    assert chi_square_of(run_recipe("recipe-simulator", **given)["wrong"], "width") > 50


def chi_square_of(ranks: Any, name: str) -> float:
    """Of the ranks of a variable in five bins."""
    group = ranks["prior_sbc"]
    found = group[name].values.ravel()
    assert found.min() >= 0
    assert found.max() <= group.attrs["compared"] == 100
    counts = np.histogram(found, 5, (-0.5, 100.5))[0]
    return float(((counts - found.size / 5) ** 2 / (found.size / 5)).sum())


def test_the_best_of_several_starts() -> None:
    y = np.arange(9.0)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=y)
    done = run_recipe("recipe-starts", np=np, synk=synk, model=model)
    assert len(done["fits"]) == 20
    assert done["best"] == pytest.approx([y.sum() / 10], abs=1e-4)
    assert done["least"] == pytest.approx(-model.compile_logp()({"mu": y.sum() / 10}), abs=1e-6)
