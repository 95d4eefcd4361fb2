"""Moment matching in `loo`: ArviZ's numbers, for any options and any number of processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import arviz_stats
import numpy as np
import pymc as pm
import pytensor
import pytest
import xarray as xr
from modes import FAST
from selection import thorough

import synkhronos as synk
from synkhronos._errors import InputError, InputTypeError, WorkerDied
from synkhronos.pymc._after import division, moments
from synkhronos.pymc._after.moments import MatchedRows
from synkhronos.pymc._after.points import Points
from synkhronos.pymc._after.unconstrained import _without_bounds

if not hasattr(arviz_stats, "loo_moment_match"):
    pytest.skip("this ArviZ has no moment matching", allow_module_level=True)

PLAIN = {"progressbar": False, "compile_kwargs": {"mode": FAST}}
NUMBERS = ("elpd", "se", "p", "good_k", "warning", "n_samples", "n_data_points")
OF_ROWS = ("elpd_i", "pareto_k", "influence_pareto_k", "p_loo_i", "n_eff_i")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*[Pp]areto"),
    pytest.mark.filterwarnings("ignore:.*(Maximum|did not improve|Moment Matching|self-norm)"),
]


@pytest.fixture
def always_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are started, however short the work is."""
    monkeypatch.setattr(division, "_FORK_SECONDS", -1.0)
    monkeypatch.setattr(division, "_EXEC_SECONDS", -1.0)


@pytest.fixture(autouse=True)
def _in_python() -> Iterator[None]:
    with pytensor.config.change_flags(mode=FAST):  # of ArviZ's functions
        yield


def line(**more: Any) -> pm.Model:
    """A line through rows of which some are far off; `s` has a bound."""
    r = np.random.default_rng(3)
    x = r.normal(size=25)
    y = 1 + 2 * x + r.normal(size=25)
    x[5], y[5] = 4.0, 2.0
    y[[7, 20]] += 5, -6
    with pm.Model(coords={"row": np.arange(25)}) as model:
        a, b, s = pm.Normal("a"), pm.Normal("b", 0, 3), pm.HalfNormal("s", 2)
        pm.Normal("y", a + b * pm.Data("x", x, dims="row"), s, observed=y, dims="row", **more)
    return model


def table() -> pm.Model:
    """Rows of three numbers; parameters with transforms that change their number."""
    r = np.random.default_rng(4)
    y = r.normal(size=(8, 3))
    y[2, 1], y[5, 2] = 9.0, -7.0
    with pm.Model() as model:
        part = pm.Dirichlet("part", np.ones(3))
        mean = pm.Normal("mean", shape=3)
        pm.Normal("y", mean + part, 1.0, observed=y)
    return model


def one() -> pm.Model:
    """A parameter, whose covariances are none."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("m", 0, 3), observed=[0.1, -0.4, 5.0, 0.3])
    return model


MODELS = (line, table, one)


def draws_for(model: pm.Model, draws: int = 40) -> xr.DataTree:
    """Draws near the middle of the data, in two chains, with their log-likelihoods."""
    r = np.random.default_rng(5)
    values = {
        "a": r.normal(1, 0.2, (2, draws)),
        "b": r.normal(1.8, 0.2, (2, draws)),
        "s": np.exp(r.normal(0.2, 0.15, (2, draws))),
        "m": r.normal(1, 0.45, (2, draws)),
        "mean": r.normal(0, 0.3, (2, draws, 3)),
        "part": r.dirichlet([5, 5, 5], (2, draws)),
    }
    free = {v.name: values[v.name] for v in model.free_RVs}
    dims = {k: ("chain", "draw", *(f"{k}_{i}" for i in range(v.ndim - 2))) for k, v in free.items()}
    posterior = xr.Dataset({k: (dims[k], v) for k, v in free.items()})
    posterior = posterior.assign_coords(chain=[0, 1], draw=np.arange(draws))
    tree = xr.DataTree.from_dict({"posterior": posterior})
    with model:
        return pm.stats.compute_log_likelihood(tree, **PLAIN)


def without_likelihood(tree: xr.DataTree) -> xr.DataTree:
    return xr.DataTree.from_dict({"posterior": tree["posterior"].to_dataset()})


def check_equal(found: Any, expected: Any, within: float = 1e-9) -> None:
    assert type(found) is type(expected)
    for name in NUMBERS:
        a, b = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(a, b, rtol=within, err_msg=name)
    for name in OF_ROWS:
        a, b = getattr(found, name), getattr(expected, name)
        xr.testing.assert_allclose(a, b, rtol=within, atol=within)


@pytest.mark.parametrize("known", [True, *thorough(False)])
@pytest.mark.parametrize("make", [line, *thorough(table, one)])
@pytest.mark.parametrize(
    "given",
    [
        {},
        *thorough(
            {"split": False, "k_threshold": 0.6},
            {"cov": False},
            {"k_threshold": 0.1, "max_iters": 1},
        ),
    ],
)
def test_it_is_that_of_arviz(
    make: Callable[[], pm.Model], given: dict[str, Any], known: bool
) -> None:
    model = make()
    tree = draws_for(model)
    plain = arviz_stats.loo(tree, pointwise=True)
    expected = arviz_stats.loo_moment_match(tree, plain, model=model, pointwise=True, **given)
    changed = expected.elpd_i != plain.elpd_i
    assert changed.any()
    data = tree if known else without_likelihood(tree)
    found = synk.pymc.loo(data, True, moment_match=True, model=model, **given, **PLAIN)
    check_equal(found, expected)
    assert (found.n_eff_i.notnull() == changed).all()


@pytest.mark.thorough  # of log-likelihoods: test_after.py
@pytest.mark.usefixtures("always_divided")
def test_any_number_of_processes_gives_the_same_bits() -> None:
    model = line()
    tree = without_likelihood(draws_for(model, 20))
    options = {"moment_match": True, "max_iters": 1, "model": model, **PLAIN}
    one, two = (synk.pymc.loo(tree, True, cores=cores, **options) for cores in (1, 2))
    assert (one.influence_pareto_k > one.good_k).sum() > 3
    for name in OF_ROWS:
        assert getattr(one, name).identical(getattr(two, name)), name
    assert one.elpd == two.elpd


@pytest.mark.thorough
def test_a_faster_density_changes_rounding_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = line()
    tree = draws_for(model)
    expected = arviz_stats.loo(tree, True, moment_match=True, model=model)
    asked = []
    monkeypatch.setattr(moments, "_LARGE", 0)
    plain = moments.unconstrained
    monkeypatch.setattr(moments, "unconstrained", lambda *a: asked.append(a[-1]) or plain(*a))
    check_equal(synk.pymc.loo(tree, True, moment_match=True, model=model, **PLAIN), expected, 1e-6)
    assert asked == [True]


def test_bounds_that_depend_on_other_variables() -> None:
    """ArviZ draws such bounds; they are those of each draw."""
    with pm.Model() as model:
        top = pm.HalfNormal("top")
        pm.Uniform("low", 0, top)
        pm.Normal("y", model["low"], observed=[0.3])
    r = np.random.default_rng(0)
    tops = r.uniform(1, 2, (1, 6))
    lows = tops * r.uniform(0.1, 0.9, (1, 6))
    draws = xr.Dataset({"top": (("chain", "draw"), tops), "low": (("chain", "draw"), lows)})
    points = Points.of_dataset(draws, model, ("chain", "draw"))
    found = _without_bounds(model, model.free_RVs, points, {"mode": FAST})
    np.testing.assert_allclose(found[0], np.log(tops[0]))
    np.testing.assert_allclose(found[1], np.log(lows[0] / (tops[0] - lows[0])))


def test_a_scalar_is_a_row() -> None:
    """Its numbers are those of an array with the same value, and messages name it."""

    def found(observed: Any) -> Any:
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("m", 0, 3), observed=observed)
        tree = draws_for(model, 20)
        with pytest.warns(UserWarning, match=r"1 of 1 rows \(y(_dim_0=0)?[:)]"):
            plain = synk.pymc.loo(tree, True)
        options = {"moment_match": True, "max_iters": 1, "model": model, **PLAIN}
        moved = synk.pymc.loo(tree, True, **options)
        assert moved.elpd != plain.elpd
        return moved

    scalar, array = found(6.0), found([6.0])
    for name in ("elpd", "p"):
        assert getattr(scalar, name) == pytest.approx(getattr(array, name), rel=1e-12), name
    for name in OF_ROWS:
        expected = pytest.approx(getattr(array, name).values[0], rel=1e-9)
        assert getattr(scalar, name).values == expected, name


def test_without_large_k_nothing_is_changed() -> None:
    model = line()
    tree = draws_for(model, 20)
    plain = synk.pymc.loo(tree, True)
    found = synk.pymc.loo(tree, True, moment_match=True, k_threshold=10, model=model, **PLAIN)
    assert found.elpd == plain.elpd
    assert found.n_eff_i is None
    assert found.influence_pareto_k.identical(plain.pareto_k)
    total = synk.pymc.loo(tree, False, moment_match=True, k_threshold=10, model=model, **PLAIN)
    assert total.influence_pareto_k is None


def test_rows_that_are_not_finite_stay_as_they_are() -> None:
    model = line()
    tree = draws_for(model, 20)
    tree["log_likelihood"]["y"][:, 3, 2] = -np.inf
    with pytest.warns(UserWarning, match=r"elpd is not finite: .* 1 of 25 rows \(row=2\)"):
        found = synk.pymc.loo(tree, True, moment_match=True, max_iters=1, model=model, **PLAIN)
    assert np.isnan(found.elpd_i.values).tolist() == [row == 2 for row in range(25)]
    assert found.n_eff_i.notnull().any()


@pytest.mark.usefixtures("always_divided")
def test_a_death_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    master, plain = os.getpid(), MatchedRows._matched

    def matched(own: MatchedRows, row: int) -> tuple[float, ...]:
        if os.getpid() != master:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(own, row)

    monkeypatch.setattr(MatchedRows, "_matched", matched)
    options = {"moment_match": True, "max_iters": 1, "cores": 2, **PLAIN}
    model = line()
    tree = draws_for(model, 20)
    with pytest.raises(WorkerDied, match="SIGKILL"):
        synk.pymc.loo(tree, model=model, **options)


def test_what_is_refused() -> None:
    model = line()
    tree = draws_for(model)

    def refused(words: str, own: pm.Model = model, **given: Any) -> None:
        with pytest.raises(InputError, match=words):
            synk.pymc.loo(tree, moment_match=True, model=own, **given, **PLAIN)

    refused("k_threshold='much'", k_threshold="much")
    refused("max_iters=0", max_iters=0)
    refused("split=1", split=1)
    refused("log_jacobian", log_jacobian=xr.zeros_like(tree["log_likelihood"]["y"][0, 0]))
    with pytest.raises(InputTypeError, match="no model"):
        synk.pymc.loo(tree, moment_match=True, **PLAIN)
    with line() as counted:
        pm.Poisson("n", 2)
    refused("'n'.* are whole numbers", counted)
    other = line()
    with other:
        pm.set_data({"x": np.zeros(25)})
    refused("are not those of the model", other)
    few = tree.isel(draw=slice(10))
    with pytest.raises(InputError, match="20 draws are too few"):
        synk.pymc.loo(few, moment_match=True, model=model, **PLAIN)
