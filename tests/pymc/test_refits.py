"""Fits without some rows: ArviZ's numbers for the same draws, and which rows a fit has seen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import arviz_stats
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from arviz_stats.loo import SamplingWrapper
from modes import FAST
from scipy import stats
from selection import thorough
from threadpoolctl import threadpool_limits

import synkhronos as synk
from synkhronos._errors import InputError, InputTypeError, SynkhronosError
from synkhronos._host.thread_pools import thread_pools
from synkhronos._transport.serialization import pack_graph, unpack_graph
from synkhronos.pymc._after import loo_rows
from synkhronos.pymc._map import where
from synkhronos.pymc._map.names import file_of
from synkhronos.pymc._map.one_graph import one_graph
from synkhronos.pymc._map.results import Fits, Folder, packed_result, write_result
from synkhronos.pymc._refits import fits as fits_of_calls
from synkhronos.pymc._refits.folds import folds_of
from synkhronos.pymc._refits.refit import Refit, _Future, each, joint
from synkhronos.pymc._refits.weighted import KEPT, weighted

if not hasattr(arviz_stats, "loo_kfold"):
    pytest.skip("this ArviZ has no k folds", allow_module_level=True)

ROWS, DRAWS = 24, 30
PLAIN = {"progressbar": False, "compile_kwargs": {"mode": FAST}}
pytestmark = [
    pytest.mark.together,  # log-likelihoods are computed once
    pytest.mark.filterwarnings("ignore:.*[Pp]areto"),
]


def line() -> pm.Model:
    """A line through rows of which some are far off; `s` has a bound; a number for each row."""
    r = np.random.default_rng(3)
    x = r.normal(size=ROWS)
    y = 1 + 2 * x + r.normal(size=ROWS)
    y[[7, 20]] += 5, -6
    with pm.Model(coords={"row": np.arange(ROWS) + 100}) as model:
        a, b, s = pm.Normal("a"), pm.Normal("b", 0, 3), pm.HalfNormal("s", 2)
        pm.Data("shop", r.integers(0, 5, ROWS), dims="row")
        mean = pm.Deterministic("mean", a + b * pm.Data("x", x, dims="row"), dims="row")
        pm.Normal("y", mean, s, observed=y, dims="row")
    return model


def draws_of(seed: int | list[int]) -> xr.Dataset:
    """Draws that are made up, in two chains; those of another seed are a little elsewhere."""
    r = np.random.default_rng(seed)
    size = (2, DRAWS)
    values = {
        "a": r.normal(1 + 0.1 * r.normal(), 0.2, size),
        "b": r.normal(1.8, 0.2, size),
        "s": np.exp(r.normal(0.2, 0.15, size)),
    }
    dims = ("chain", "draw")
    coords = {"chain": [0, 1], "draw": np.arange(DRAWS)}
    return xr.Dataset({k: (dims, v) for k, v in values.items()}, coords)


def without(out: np.ndarray) -> xr.Dataset:
    """The draws of a fit without these rows."""
    return draws_of([int(row) for row in np.sort(out)])


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """Fits are made up, in this process; returns their items."""
    seen: list[Mapping[str, Any]] = []

    def map_here(fit: Any, items: Mapping[str, Any], **_: object) -> Any:
        seen.extend(items.values())
        return Found({name: fit(item, 1) for name, item in items.items()})

    def fitted(own: Refit, out: np.ndarray, random_seed: int) -> xr.DataTree:
        return xr.DataTree.from_dict({"posterior": without(out)})

    monkeypatch.setattr(fits_of_calls, "map_items", map_here)
    monkeypatch.setattr(Refit, "fitted", fitted)
    return seen


class Found(dict):
    failed: Mapping[str, str] = {}


@pytest.fixture(scope="module")
def known() -> SimpleNamespace:
    """The model, and a tree with log-likelihoods."""
    model = line()
    tree = xr.DataTree.from_dict({"posterior": draws_of(0)})
    with model:
        pm.stats.compute_log_likelihood(tree, **PLAIN)
    y = model.rvs_to_values[model["y"]].eval()
    return SimpleNamespace(model=model, tree=tree, y=y, x=model["x"].get_value())


class Wrapper(SamplingWrapper):
    """What ArviZ wants: the same draws, and log-likelihoods by SciPy."""

    def __init__(self, known: SimpleNamespace) -> None:
        super().__init__(None, idata_orig=known.tree)
        self.known = known

    def sel_observations(self, idx: Any) -> Any:
        out = np.atleast_1d(idx)
        return out, out

    def sample(self, modified_observed_data: Any) -> Any:
        return modified_observed_data

    def get_inference_data(self, fitted_model: Any) -> Any:
        return xr.DataTree.from_dict({"posterior": without(fitted_model)})

    def log_likelihood__i(self, excluded_obs: Any, idata__i: Any) -> xr.DataArray:
        draws = idata__i["posterior"].to_dataset()
        x, y = (xr.DataArray(v[excluded_obs], dims="row") for v in (self.known.x, self.known.y))
        found = stats.norm.logpdf(y, *xr.broadcast(draws["a"] + draws["b"] * x, draws["s"]))
        like, _ = xr.broadcast(draws["a"] + draws["b"] * x, draws["s"])
        return like.copy(data=found)


def check_equal(found: Any, expected: Any, *of_rows: str) -> None:
    """Numbers and numbers of rows, and the class."""
    assert type(found) is type(expected)
    assert found.kind == expected.kind
    for name in ("elpd", "se", "p", "n_samples", "n_data_points", "warning", "good_k"):
        a, b = getattr(found, name), getattr(expected, name)
        assert a == (b if b is None else pytest.approx(b, rel=1e-9)), name
    for name in of_rows:
        a, b = getattr(found, name), getattr(expected, name)
        xr.testing.assert_allclose(a.drop_attrs(), b.drop_attrs(), rtol=1e-9, atol=1e-9)


def without_likelihood(tree: xr.DataTree) -> xr.DataTree:
    return xr.DataTree.from_dict({"posterior": tree["posterior"].to_dataset()})


SHOPS = line()["shop"].get_value()


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(
    "given",
    [
        {"k": 4},
        {"k": 5, "stratify_by": SHOPS > 2, "seed": 3},
        {"k": 3, "group_by": SHOPS},
        *thorough({"k": 5, "group_by": SHOPS}, {"folds": np.arange(ROWS) % 3}),
    ],
    ids=lambda given: " ".join(given),
)
def test_folds_are_those_of_arviz(known: SimpleNamespace, given: dict[str, Any]) -> None:
    expected = arviz_stats.loo_kfold(known.tree, Wrapper(known), pointwise=True, **given)
    found = synk.pymc.cross_validate(known.model, known.tree, **given, **PLAIN)
    check_equal(found, expected, "elpd_i", "p_kfold_i")
    assert found.n_folds == expected.n_folds
    assert "kfold" in str(found)


def test_one_group_after_another(known: SimpleNamespace, made_up: Any) -> None:
    """By data of the model or an array; without log-likelihoods; az.compare takes the result."""
    tree = without_likelihood(known.tree)
    expected = arviz_stats.loo_kfold(known.tree, Wrapper(known), pointwise=True, folds=SHOPS)
    named = synk.pymc.cross_validate(known.model, tree, by="shop", save_fits=True, **PLAIN)
    check_equal(named, expected, "elpd_i", "p_kfold_i")
    assert list(named.fold_fits) == [str(shop) for shop in np.unique(SHOPS)]
    for shop, kept in named.fold_fits.items():
        assert np.array_equal(kept["test_indices"], np.flatnonzero(int(shop) == SHOPS))
        assert kept["fit"]["posterior"].to_dataset().equals(without(kept["test_indices"]))
    assert [list(item["out"]) for item in made_up] == [list(item["scored"]) for item in made_up]
    by_values = synk.pymc.cross_validate(known.model, tree, by=SHOPS.astype(str), **PLAIN)
    assert by_values.elpd == named.elpd
    table = arviz_stats.compare({"a": named, "b": by_values})
    assert table["elpd_diff"].tolist() == [0, 0]


def test_a_folder_without_fits_gets_them(
    known: SimpleNamespace, made_up: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folds whose draws were not saved are fitted again, and no others."""
    fitted: list[str] = []

    def map_here(fit: Any, items: Mapping[str, Any], **_: object) -> Fits:
        folder = Folder(tmp_path)
        for name in sorted(folder.missing({name: "" for name in items})):
            fitted.append(name)
            write_result(tmp_path, name, packed_result(name, "", 1, fit(items[name], 1)))
        return Fits(folder, list(items), {})

    monkeypatch.setattr(fits_of_calls, "map_items", map_here)

    def call(save_fits: bool) -> Any:
        fitted.clear()
        given = {"k": 3, "save_fits": save_fits}
        return synk.pymc.cross_validate(known.model, known.tree, **given, **PLAIN)

    first = call(False)
    assert (fitted, first.fold_fits) == (["1", "2", "3"], None)
    saved = call(True)
    assert fitted == ["1", "2", "3"]
    assert saved.elpd == first.elpd
    assert list(saved.fold_fits) == [1, 2, 3]  # as in ArviZ
    for kept in saved.fold_fits.values():
        assert kept["fit"]["posterior"].to_dataset().equals(without(kept["test_indices"]))
    (tmp_path / file_of("2")).unlink()
    call(False)
    assert fitted == ["2"]
    call(True)
    assert fitted == ["2"]
    call(True)
    assert fitted == []


@pytest.mark.parametrize(
    "given", [{}, *thorough({"k_threshold": 0.2}, {"pointwise": False}, {"k_threshold": -np.inf})]
)
def test_reloo_is_that_of_arviz(known: SimpleNamespace, made_up: Any, given: Any) -> None:
    plain = arviz_stats.loo(known.tree, pointwise=True)
    expected = arviz_stats.reloo(Wrapper(known), plain, **{"pointwise": True, **given})
    found = synk.pymc.reloo(known.tree, plain, model=known.model, **given, **PLAIN)
    of_rows = [] if "pointwise" in given else ["elpd_i", "pareto_k", "p_loo_i"]
    check_equal(found, expected, *of_rows)
    threshold = given.get("k_threshold", plain.good_k)
    bad = np.flatnonzero(plain.pareto_k.values > threshold)
    assert [list(item["out"]) for item in made_up] == [[row] for row in bad]
    assert len(bad) > 1
    if of_rows:
        weights = found.log_weights.transpose("row", ...).values
        assert (np.isnan(weights).all(axis=(1, 2)) == np.isin(np.arange(ROWS), bad)).all()
        assert not np.isnan(plain.log_weights.values).any()


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize("way", [*thorough("other dims"), "other labels"])
def test_reloo_of_a_result_in_another_order(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows with large k are those of the result, by dims and labels."""
    with pm.Model(coords={"shop": list("abcd"), "item": range(3)}) as model:
        mean = pm.Normal("mean", shape=3)
        y = np.random.default_rng(4).normal(size=(4, 3))
        pm.Normal("y", mean, pm.HalfNormal("s"), observed=y, dims=("shop", "item"))
    tree = xr.DataTree.from_dict({"posterior": table_draws()})
    monkeypatch.setattr(f"{__name__}.without", lambda out: table_draws())
    plain = synk.pymc.loo(tree, True, model=model, **PLAIN)
    threshold = float(np.sort(plain.pareto_k.values.ravel())[-3])
    given = {"k_threshold": threshold, "pointwise": True, "model": model, **PLAIN}
    expected = synk.pymc.reloo(tree, plain, **given)
    other = copy(plain)
    for name in ("elpd_i", "pareto_k", "p_loo_i", "log_weights"):
        if (values := getattr(plain, name, None)) is not None:
            moved = values.isel(shop=[2, 0, 3, 1]) if way == "other labels" else values.T
            setattr(other, name, moved)
    found = synk.pymc.reloo(tree, other, **given)
    assert (int((found.pareto_k == 0).sum()), found.elpd) == (2, pytest.approx(expected.elpd))
    for name in ("elpd_i", "pareto_k", "p_loo_i"):
        xr.testing.assert_allclose(getattr(found, name), getattr(expected, name))


def test_reloo_without_a_result(known: SimpleNamespace, made_up: Any) -> None:
    """It computes that of `loo` itself; without large k no fit follows."""
    tree = without_likelihood(known.tree)
    first = synk.pymc.loo(tree, True, model=known.model, **PLAIN)
    found, again = (synk.pymc.reloo(tree, own, model=known.model, **PLAIN) for own in (None, first))
    assert found.elpd == again.elpd != first.elpd
    before = len(made_up)
    same = synk.pymc.reloo(tree, first, k_threshold=9, model=known.model, **PLAIN)
    assert (same.elpd, len(made_up)) == (first.elpd, before)


@pytest.mark.usefixtures("made_up")
@pytest.mark.parametrize(
    ("method", "horizon", "threshold"),
    [
        ("approx", 3, 0.4),
        ("exact", 2, 0.7),
        *thorough(("approx", 1, 0.2), ("approx", 1, 0.4), ("approx", 2, 0.9), ("exact", 1, 0.7)),
    ],
)
def test_lfo_is_that_of_arviz(
    known: SimpleNamespace, method: str, horizon: int, threshold: float
) -> None:
    if not hasattr(arviz_stats, "lfo_cv"):
        pytest.skip("this ArviZ has no lfo_cv")
    given = {"pointwise": True, "method": method, "k_threshold": threshold}
    expected = arviz_stats.lfo_cv(known.tree, Wrapper(known), 10, horizon, "row", **given)
    found = synk.pymc.lfo(known.tree, 10, horizon, model=known.model, **given, **PLAIN)
    check_equal(found, expected, "elpd_i", "p_lfo_i")
    for name in ("forecast_horizon", "min_observations", "n_refits"):
        assert getattr(found, name) == getattr(expected, name), name
    assert list(found.refits) == list(expected.refits)
    if method == "approx":
        assert (0 < found.n_refits < len(found.elpd_i) - 1) == (threshold < 0.9)
        xr.testing.assert_allclose(found.pareto_k, expected.pareto_k)
    assert str(found) == str(expected)


def top() -> pm.Model:
    """The largest row says most about the parameter: without it the others allow less."""
    with pm.Model() as model:
        high = pm.Uniform("high", 0, 10, initval=9.5)
        pm.Deterministic("double", 2 * high)
        pm.Uniform("y", 0, high, observed=[1.0, 2.0, 9.0])
    return model


def rows_of_three() -> pm.Model:
    """Rows of three numbers; another variable is observed."""
    r = np.random.default_rng(4)
    y = r.normal(size=(4, 3))
    with pm.Model() as model:
        mean = pm.Normal("mean", shape=3)
        pm.Normal("y", mean, pm.HalfNormal("s"), observed=y)
        pm.Poisson("n", pm.math.exp(mean[0]), observed=[1, 2])
    return model


@pytest.mark.parametrize(("make", "shape"), [(line, (ROWS,)), (rows_of_three, (4, 3))])
def test_rows_that_are_left_out_do_not_count(make: Any, shape: tuple[int, ...]) -> None:
    """The density is that of the whole less theirs; all data sets have one graph."""
    model = make()
    model.check_bounds = False
    found = weighted("test", model, "y", shape)
    assert not found.check_bounds
    assert [v.name for v in found.deterministics] == []
    assert {v.name for v in found.free_RVs} == {v.name for v in model.free_RVs}
    at = model.initial_point()
    at = {name: value + 0.3 for name, value in at.items()}
    each_row = model.compile_fn(model.logp(vars=[model["y"]], sum=False), mode=FAST)(at)[0]
    whole = model.compile_logp(mode=FAST)(at)
    density = found.compile_logp(mode=FAST)
    assert density(at) == pytest.approx(whole, rel=1e-12)
    key = one_graph(found).key
    kept = np.random.default_rng(1).integers(0, 2, shape)
    with found:
        pm.set_data({KEPT: kept})
    assert density(at) == pytest.approx(whole - each_row[kept == 0].sum(), rel=1e-12)
    assert one_graph(found).key == key


def test_a_row_outside_of_the_support_can_be_left_out() -> None:
    """Its log-likelihood is -inf, and its gradient has no meaning; initial values are kept."""
    found = weighted("test", top(), "y", (3,))
    assert found.initial_point() == top().initial_point()
    at = {"high_interval__": np.array(0.0)}  # 5
    assert found.compile_logp(mode=FAST)(at) == -np.inf
    with found:
        pm.set_data({KEPT: [1, 1, 0]})
    assert found.compile_logp(mode=FAST)(at) == pytest.approx(np.log(0.25) - 2 * np.log(5))
    assert np.isfinite(found.compile_dlogp(mode=FAST)(at)).all()


def test_what_a_process_does(known: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fit comes to it pickled; the sampler gets the data, the arguments and a seed."""
    asked: list[Any] = []

    def sample(model: pm.Model, random_seed: int, **given: Any) -> xr.DataTree:
        asked.append((model[KEPT].get_value(), random_seed, given))
        stats_ = xr.Dataset({"diverging": (("chain", "draw"), np.eye(2, DRAWS, dtype=bool))})
        tree = {"posterior": draws_of(1), "sample_stats": stats_}
        return xr.DataTree.from_dict(tree)

    monkeypatch.setattr("synkhronos.pymc._map.fitted.pm_sample", sample)
    made: list[Any] = []

    def map_here(fit: Any, items: Mapping[str, Any], **given: Any) -> Any:
        made.append((unpack_graph(pack_graph(fit)), items, given))
        found = {name: made[0][0](item, 5) for name, item in items.items()}
        return Found(found)

    monkeypatch.setattr(fits_of_calls, "map_items", map_here)
    options = {"limit": 9, "target_accept": 0.9, "tune": 7, "members": 1, "cores": 2, **PLAIN}
    with pytest.warns(UserWarning, match=r"draws diverged in 2 of 2 fits \(1: 2, 2: 2\)"):
        found = synk.pymc.cross_validate(known.model, known.tree, k=2, **options)
    [(_, items, given)] = made
    assert given == {"limit": 9, "members": 1, "cores": 2, "progressbar": False}
    out = items["1"]["out"]
    kept, seed, arguments = asked[0]
    assert np.flatnonzero(kept == 0).tolist() == sorted(out)
    assert (arguments["draws"], arguments["chains"]) == (DRAWS, 2)
    assert (arguments["target_accept"], arguments["tune"]) == (0.9, 7)
    assert (arguments["cores"], arguments["progressbar"]) == (1, False)
    assert seed == asked[1][1]
    tree = xr.DataTree.from_dict({"posterior": draws_of(1)})
    with known.model:
        pm.stats.compute_log_likelihood(tree, **PLAIN)
    rows = tree["log_likelihood"]["y"].values.reshape(-1, ROWS)
    elpd = np.logaddexp.reduce(rows, axis=0) - np.log(len(rows))
    np.testing.assert_allclose(found.elpd_i, elpd, rtol=1e-12)


def test_a_fit_has_one_thread_for_each_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of several threads have other bits, and the number of idle cores may differ."""

    def threads(own: Any, item: Any, random_seed: int) -> Any:
        return max(library.get_num_threads() for library in thread_pools())

    monkeypatch.setattr(Refit, "found", threads)
    with threadpool_limits(2):
        assert threads(None, {}, 1) == 2
        assert object.__new__(Refit)({}, 1) == 1


def test_idle_cores_run_chains(known: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this machine: a worker of a pool may have one core."""
    asked: list[Any] = []

    def map_here(fit: Any, items: Mapping[str, Any], **given: Any) -> Any:
        asked.append(given)
        raise LookupError

    monkeypatch.setattr(fits_of_calls, "map_items", map_here)
    monkeypatch.setattr(where, "available", lambda: range(8))
    pool = ThreadPoolExecutor(1)
    for given in ({}, {"on": pool}, {"on": pool, "members": 3}):
        with pytest.raises(LookupError):
            synk.pymc.cross_validate(known.model, known.tree, k=2, **given, **PLAIN)
    assert [given["members"] for given in asked] == [2, 1, 3]
    assert [given.get("on") for given in asked] == [None, pool, pool]
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    for more in ({}, {"cores": 4}):
        with pytest.raises(LookupError):
            synk.pymc.cross_validate(known.model, known.tree, k=2, **more, **PLAIN)
    assert [given["members"] for given in asked[3:]] == [1, 2]


def test_an_array_is_refused(known: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNKHRONOS_PART", "2/3")
    with pytest.raises(InputError, match="cross_validate: it needs all fits, and this is one of 3"):
        synk.pymc.cross_validate(known.model, known.tree, k=2, **PLAIN)


def test_some_rows_are_in_memory_at_a_time(
    known: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fits_of_calls.OfModel("test", known.model, None, draws_of(0), {"mode": FAST})
    function = whole.function()
    values = known.tree["log_likelihood"]["y"].values.reshape(-1, ROWS)
    monkeypatch.setattr(loo_rows, "_BYTES", 8 * 2 * DRAWS * 3)  # three rows
    numbers = np.array([5, 3, 20, 21, 0, 7, 8])
    work = function.at(draws_of(0), numbers)
    assert [len(part) for part in work.parts] == [3, 3, 1]
    mean = np.log(np.exp(values).mean(axis=0))
    np.testing.assert_allclose(each(work), mean[numbers], rtol=1e-10)
    together = np.exp(values[:, numbers].sum(axis=1)).mean()
    np.testing.assert_allclose(joint(work), [np.log(together)], rtol=1e-10)
    future = _Future(function, known.tree, 10, ROWS)
    for time in range(11, ROWS - 2):
        future.weights(time)
        ahead = future.likelihoods(time, time + 2)
        np.testing.assert_allclose(ahead, values[:, time : time + 2].sum(axis=1), rtol=1e-10)
        np.testing.assert_allclose(future._ratios, values[:, 10:time].sum(axis=1), rtol=1e-9)
        assert len(future._blocks) <= 2


def test_means_of_rows_that_are_not_finite() -> None:
    rows = np.array([[-np.inf, 0, 0], [-np.inf] * 3, [np.inf, 0, 1], [np.nan, 0, 1], [-2e3] * 3])
    expected = [np.log(2 / 3), -np.inf, np.inf, np.nan, -2e3]
    np.testing.assert_allclose(loo_rows.log_means(rows), expected)


def test_folds_by_dims_and_arrays() -> None:
    rows = xr.DataArray(np.zeros((2, 3)), dims=("shop", "day"), coords={"shop": ["b", "a"]})
    rows.name = "y"
    with pm.Model() as model:
        pm.Data("region", [1, 0])

    def found(**given: Any) -> dict[str, list[int]]:
        whole = dict.fromkeys(("by", "folds", "stratify_by", "group_by")) | given
        places = folds_of(model, rows, None, whole, 1)
        return {name: own.tolist() for name, own in places.items()}

    assert found(by="shop") == {"a": [3, 4, 5], "b": [0, 1, 2]}
    assert found(by="day") == {"0": [0, 3], "1": [1, 4], "2": [2, 5]}
    assert found(by="region") == {"0": [3, 4, 5], "1": [0, 1, 2]}
    days = xr.DataArray(["x", "x", "z"], dims="day")
    assert found(by=days) == {"x": [0, 1, 3, 4], "z": [2, 5]}
    assert found(folds=[[7, 8, 8], [7, 7, 7]]) == {"1": [0, 3, 4, 5], "2": [1, 2]}
    shops = xr.DataArray(["near", "far"], dims="shop", coords={"shop": ["a", "b"]})
    assert found(by=shops) == {"far": [0, 1, 2], "near": [3, 4, 5]}
    table = xr.DataArray([[0, 1], [0, 1], [1, 1]], dims=("day", "shop"))
    assert found(by=table) == {"0": [0, 1], "1": [2, 3, 4, 5]}
    shape = r"(?s)=.* has the shape \(3, 2\), and y has 6 rows of the shape \(2, 3\)"
    for given, words in (
        ({"by": table.values}, shape),
        ({"folds": table.values.tolist()}, shape),
        ({"by": shops.assign_coords(shop=["a", "c"])}, "by has other labels of 'shop' than y"),
        ({"folds": days[:2]}, r"folds has \{'day': 2\}, rows \{'shop': 2, 'day': 3\}"),
    ):
        with pytest.raises(InputError, match=words):
            found(**given)


def test_folds_by_data_of_some_dims() -> None:
    """Their dims count if they are known; else the lengths, if these fit one way only."""
    weeks = np.arange(4) // 2
    with pm.Model(coords={"shop": range(4), "week": range(4), "region": range(4)}) as model:
        pm.Data("season", weeks, dims="week")
        pm.Data("table", np.arange(16).reshape(4, 4) // 8, dims=("week", "shop"))
        pm.Data("plain", weeks)
        pm.Data("whole", np.arange(16).reshape(4, 4) // 8)
        pm.Data("north", weeks, dims="region")

    def found(by: str, dims: tuple[str, str] = ("shop", "week")) -> np.ndarray:
        """The rows of the first fold, in their shape."""
        rows = xr.DataArray(np.zeros((4, 4)), dims=dims, name="y")
        given = dict.fromkeys(("folds", "stratify_by", "group_by")) | {"by": by}
        places = folds_of(model, rows, None, given, 1)
        return np.isin(np.arange(16), places["0"]).reshape(4, 4)

    early = np.zeros((4, 4), bool)
    early[:, :2] = True
    assert np.array_equal(found("season"), early)
    assert np.array_equal(found("season", ("week", "shop")), early.T)
    assert np.array_equal(found("table"), early)
    assert np.array_equal(found("whole"), early.T)
    several = r"by='plain' has the shape \(4,\) and no dims, and y has .*: several dims are as long"
    with pytest.raises(InputError, match=several):
        found("plain")
    with pytest.raises(InputError, match=r"the dims \['region'\], and y has .*: name the dims"):
        found("north")
    with pytest.raises(InputError, match="several dims are as long"):
        found("north", ("y_dim_0", "y_dim_1"))


@pytest.mark.parametrize("name", ["by", "folds", "stratify_by", "group_by"])
def test_labels_that_are_missing(name: str) -> None:
    """A row without a group is in none; there is no order of texts and numbers."""
    rows = xr.DataArray(np.zeros(4), dims="row", name="y")
    not_finite = f"cross_validate: {name} has values that are not finite, or None: give a group"
    for values, words in (
        ([1, np.nan, 2, 2], not_finite),
        ([1, np.inf, 2, 2], not_finite),
        (["a", None, "b", "b"], not_finite),
        (np.array(["2026-01-01", "NaT"] * 2, "M8[D]"), not_finite),
        (np.array(["a", 1, 1, "a"], object), f"{name} has values of several kinds"),
    ):
        given = dict.fromkeys(("by", "folds", "stratify_by", "group_by")) | {name: values}
        with pytest.raises(InputError, match=words):
            folds_of(pm.Model(), rows, 2, given, 1)


CALLS = {
    "cross_validate": lambda known, **given: synk.pymc.cross_validate(
        given.pop("model", known.model), known.tree, **given, **PLAIN
    ),
    "reloo": lambda known, **given: synk.pymc.reloo(
        known.tree, **{"model": known.model, "k_threshold": -9, **given}, **PLAIN
    ),
    "lfo": lambda known, **given: synk.pymc.lfo(
        known.tree, **{"model": known.model, "min_observations": 9, **given}, **PLAIN
    ),
}


def moved() -> pm.Model:
    with line() as model:
        pm.set_data({"x": np.zeros(ROWS)})
    return model


@pytest.mark.parametrize(
    ("call", "given", "words"),
    [
        ("cross_validate", {"k": 1}, "k=1"),
        ("cross_validate", {"k": 25}, "k=25 folds of 24 rows: give at most 24"),
        ("cross_validate", {"k": 6, "group_by": SHOPS}, "k=6 folds of 5 groups of group_by"),
        ("cross_validate", {"k": 3, "by": "shop"}, "k=3 with by=, whose values are the folds"),
        ("cross_validate", {"by": "shop", "folds": SHOPS}, "by= with folds=: give one"),
        ("cross_validate", {"by": "county"}, r"by='county': y has the dims \['row'\], and the"),
        ("cross_validate", {"by": np.ones(ROWS)}, "by has one value"),
        ("cross_validate", {"by": np.r_[np.nan, SHOPS[1:]]}, "by has values that are not finite"),
        ("cross_validate", {"by": SHOPS[:-1]}, "by=.* has 23 values, and y has 24 rows"),
        ("cross_validate", {"seed": -1}, "seed=-1"),
        ("cross_validate", {"save_fits": 1}, "save_fits=1"),
        ("cross_validate", {"model": 3}, "takes a pymc.Model first"),
        ("cross_validate", {"model": moved()}, "for the first draw are not those of the model"),
        ("cross_validate", {"var_name": "z"}, "var_name='z': the model has"),
        ("cross_validate", {"var_names": ["a"]}, "var_names= is not for fits without rows"),
        ("cross_validate", {"return_inferencedata": False}, "return_inferencedata= is not for"),
        ("reloo", {"loo_orig": None, "on": 3}, "on=3: give a Client of Dask"),
        ("reloo", {"k_threshold": np.inf, "limit": -1}, "limit=-1"),
        ("cross_validate", {"cores": 0}, "cores=0"),
        ("cross_validate", {"on": 3}, "on=3: give a Client of Dask"),
        ("cross_validate", {"limit": -1}, "limit=-1"),
        ("lfo", {"random_seed": -1}, "random_seed=-1"),
        ("reloo", {"k_threshold": "high"}, "k_threshold='high'"),
        ("reloo", {"loo_orig": SimpleNamespace(elpd_i=None)}, "has no elpd_i and pareto_k"),
        (
            "reloo",
            {"loo_orig": SimpleNamespace(elpd_i=0, pareto_k=0, subsample_size=3)},
            "loo_orig is a result of loo_subsample, which has numbers of a part",
        ),
        ("lfo", {"method": "fast"}, 'method=\'fast\': give "approx" or "exact"'),
        ("lfo", {"min_observations": 0}, "min_observations=0"),
        ("lfo", {"min_observations": 22, "forecast_horizon": 3}, "y has 24 times, which is fewer"),
        ("lfo", {"time_dim": "day"}, r"time_dim='day': y has the dims \['row'\]"),
        ("lfo", {"k_threshold": np.inf}, "k_threshold=inf"),
    ],
)
def test_what_is_not_possible(
    known: SimpleNamespace, made_up: Any, call: str, given: dict[str, Any], words: str
) -> None:
    """It is said before anything is fitted."""
    with pytest.raises((InputError, InputTypeError), match=f"{call}.*{words}"):
        CALLS[call](known, **given)
    assert made_up == []


def test_few_draws_and_other_rows(known: SimpleNamespace, made_up: Any) -> None:
    few = without_likelihood(known.tree).isel(draw=slice(10))
    with pytest.raises(InputError, match="lfo: 20 draws are too few: 25 are needed"):
        synk.pymc.lfo(few, 9, model=known.model, **PLAIN)
    plain = arviz_stats.loo(known.tree, pointwise=True)
    plain.elpd_i, plain.pareto_k = plain.elpd_i[:-1], plain.pareto_k[:-1]
    with pytest.raises(InputError, match=r"loo_orig has rows of the shape \{'row': 23\}"):
        synk.pymc.reloo(known.tree, plain, model=known.model, **PLAIN)
    tree = xr.DataTree.from_dict({"posterior": table_draws()})
    with pytest.raises(InputError, match="lfo: y has the dims"):
        synk.pymc.lfo(tree, 2, model=rows_of_three(), var_name="y", **PLAIN)
    assert made_up == []


def table_draws() -> xr.Dataset:
    r = np.random.default_rng(0)
    mean = (("chain", "draw", "i"), r.normal(size=(2, 20, 3)))
    return xr.Dataset({"mean": mean, "s": (("chain", "draw"), np.exp(r.normal(size=(2, 20))))})


def test_an_element_of_a_row_is_left_out(made_up: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several numbers: each number counts, as for `loo`."""
    model = rows_of_three()
    tree = xr.DataTree.from_dict({"posterior": table_draws()})
    with monkeypatch.context() as patch:
        patch.setattr(f"{__name__}.without", lambda out: table_draws())
        found = synk.pymc.cross_validate(model, tree, by="y_dim_0", var_name="y", **PLAIN)
    assert found.elpd_i.shape == (4, 3)
    assert [item["out"].tolist() for item in made_up] == [
        [3 * i, 3 * i + 1, 3 * i + 2] for i in range(4)
    ]


def test_a_fit_that_fails_is_told(known: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def map_here(fit: Any, items: Mapping[str, Any], **_: object) -> Any:
        found = Found()
        found.failed = {"3": "its process was killed by SIGKILL"}
        return found

    monkeypatch.setattr(fits_of_calls, "map_items", map_here)
    words = "cross_validate: 1 of 4 fits have failed. The first of them, 3: its process was killed"
    with pytest.raises(SynkhronosError, match=re.escape(words)):
        synk.pymc.cross_validate(known.model, known.tree, k=4, **PLAIN)


def normal() -> tuple[pm.Model, np.ndarray, xr.DataTree]:
    """A mean whose posterior is known."""
    r = np.random.default_rng(1)
    y = r.normal(1, 1, 40)
    y[3] = 6
    with pm.Model() as model:
        pm.Data("shop", np.repeat(np.arange(5), 8))
        pm.Normal("y", pm.Normal("m"), 1, observed=y)
    width = 1 / 41
    draws = r.normal(width * y.sum(), np.sqrt(width), (2, 1000))
    posterior = xr.Dataset({"m": (("chain", "draw"), draws)})
    return model, y, xr.DataTree.from_dict({"posterior": posterior})


def exact(y: np.ndarray, out: np.ndarray, scored: np.ndarray) -> float:
    """The log predictive density of rows, together, without rows."""
    kept = np.delete(y, out)
    width = 1 / (1 + len(kept))
    mean, size = width * kept.sum(), len(scored)
    own = stats.multivariate_normal(np.full(size, mean), np.eye(size) + width)
    return float(own.logpdf(y[scored]))


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_fits_are_exact_and_do_not_depend_on_processes() -> None:
    model, y, tree = normal()
    given = {"random_seed": 1, "progressbar": False}
    one, two = (
        synk.pymc.cross_validate(model, tree, by="shop", cores=cores, **given) for cores in (1, 2)
    )
    assert one.elpd_i.equals(two.elpd_i)
    with ThreadPoolExecutor(1) as pool:
        away = synk.pymc.cross_validate(model, tree, by="shop", on=pool, **given)
    assert one.elpd_i.equals(away.elpd_i)
    shops = [np.arange(8 * i, 8 * i + 8) for i in range(5)]
    expected = [exact(y, out, np.array([row])) for out in shops for row in out]
    np.testing.assert_allclose(one.elpd_i, expected, atol=0.08)
    again = synk.pymc.reloo(tree, k_threshold=0.1, model=model, cores=2, **given)
    refitted = np.flatnonzero(again.pareto_k.values == 0)
    assert len(refitted)
    expected = [exact(y, np.array([row]), np.array([row])) for row in refitted]
    np.testing.assert_allclose(again.elpd_i[refitted], expected, atol=0.08)
    later = synk.pymc.lfo(tree, 30, 2, model=model, k_threshold=0.2, **given)
    expected = [exact(y, np.arange(t, 40), np.arange(t, t + 2)) for t in range(30, 39)]
    np.testing.assert_allclose(later.elpd_i, expected, atol=0.15)
    each_time = synk.pymc.lfo(tree, 30, 2, model=model, method="exact", **given)
    np.testing.assert_allclose(each_time.elpd_i, expected, atol=0.1)


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_process_that_dies_is_told(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, tree = normal()
    given = {"random_seed": 1, "progressbar": False, "cores": 1, "folder": tmp_path}
    with pytest.raises(SynkhronosError, match=r"2 of 2 fits have failed.*longer than limit"):
        synk.pymc.cross_validate(model, tree, k=2, limit=0.01, **given)
    found = synk.pymc.cross_validate(model, tree, k=2, **given)
    assert np.isfinite(found.elpd)
    with pytest.raises(InputError, match="another item named 1"):
        synk.pymc.cross_validate(model, tree, k=2, draws=50, **given)
