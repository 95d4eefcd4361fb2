"""What follows sampling: equal to PyMC's, for any number of processes and blocks, on any target."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import arviz_stats
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from after_models import FAMILIES, MODELS, ROWS, draws_of, groups, mixture, several
from modes import FAST
from pymc.model.transform.optimization import freeze_dims_and_data
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot
from scipy import stats
from selection import thorough

import synkhronos as synk
from synkhronos._errors import InputError, InputTypeError, WorkerDied, WorkerError
from synkhronos.pymc._after import blocks, calculation, division, loo_rows, pareto, predictive
from synkhronos.pymc._after.calculation import Calculation
from synkhronos.pymc._after.densities import Density
from synkhronos.pymc._after.points import Points
from synkhronos.pymc._after.some_rows import SomeRows
from synkhronos.pymc._after.store import seed_in

PLAIN = {"progressbar": False, "compile_kwargs": {"mode": FAST}}
SIZES = (1, 2, 3)
OFTEN = {"normal", "negative binomial", "truncated", "mixture"}  # in each selection


@pytest.fixture
def always_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are started, however short the work is; blocks have three draws at most."""
    monkeypatch.setattr(division, "_FORK_SECONDS", -1.0)
    monkeypatch.setattr(division, "_EXEC_SECONDS", -1.0)
    monkeypatch.setattr(calculation, "block_length", lambda shape, size: min(3, shape[-1]))
    monkeypatch.setattr(loo_rows, "_BYTES", 4000)


@pytest.fixture
def zarr_ends() -> Iterator[None]:
    """zarr's threads end with the test."""
    yield
    from zarr.core.sync import cleanup_resources

    cleanup_resources()


def value_of(dataset: Any) -> Any:
    """A dataset without the time at which it was made."""
    found = dataset.to_dataset() if isinstance(dataset, xr.DataTree) else dataset
    return found.drop_attrs(deep=False)


@pytest.mark.parametrize("start", [2.0, pytest.param("prior", marks=pytest.mark.thorough)])
def test_initial_values_change_nothing(start: object) -> None:
    """PyMC's own functions refuse models that have them."""

    def model_of(mu: object = None, s: object = None) -> pm.Model:
        with pm.Model() as model:
            at = pm.Normal("mu", initval=mu)
            pm.Normal("y", at, pm.HalfNormal("s", initval=s), observed=np.arange(9.0))
        return model

    plain, symbolic = model_of(), model_of(s=pt.exp(pt.constant(0.5)))
    idata = draws_of(plain, draws=60)
    for model in (model_of(start, np.array(1.5)), symbolic):
        before = dict(model.rvs_to_initial_values)
        for compute in (synk.pymc.compute_log_likelihood, synk.pymc.compute_log_prior):
            given = PLAIN | {"extend_inferencedata": False}
            found, expected = (compute(idata, model=m, **given) for m in (model, plain))
            xr.testing.assert_identical(value_of(found), value_of(expected))
        found, expected = (synk.pymc.loo(idata, model=m, **PLAIN) for m in (model, plain))
        assert found.elpd == expected.elpd
        assert dict(model.rvs_to_initial_values) == before


@pytest.mark.parametrize("make", [*MODELS[:3], *thorough(*MODELS[3:])])
def test_densities_and_deterministics_are_those_of_pymc(make: Callable[[], pm.Model]) -> None:
    model = make()
    idata = draws_of(model)
    with model:
        for ours, theirs, group in (
            (synk.pymc.compute_log_likelihood, pm.stats.compute_log_likelihood, "log_likelihood"),
            (synk.pymc.compute_log_prior, pm.stats.compute_log_prior, "log_prior"),
        ):
            found, expected = ours(idata.copy(), **PLAIN), theirs(idata.copy(), **PLAIN)
            xr.testing.assert_allclose(value_of(found[group]), value_of(expected[group]), 1e-10)
            assert found[group].attrs.keys() == expected[group].attrs.keys()
            alone = ours(idata, extend_inferencedata=False, **PLAIN)
            xr.testing.assert_identical(value_of(alone), value_of(found[group]))
            assert group not in idata
        if not model.deterministics:
            return
        given = {"var_names": ["mu", "double"], **PLAIN}
        made = synk.pymc.compute_deterministics(idata, **given)
        xr.testing.assert_allclose(made, pm.compute_deterministics(idata, **given), 1e-12)
        tree = idata.copy()
        assert synk.pymc.compute_deterministics(tree, extend_dataset=True, **given) is tree
        xr.testing.assert_identical(value_of(tree["posterior"])[list(made)], value_of(made))
        imputed = synk.pymc.compute_deterministics(idata, var_names="y", **PLAIN)["y"].values
    missing = np.array([3])
    np.testing.assert_array_equal(imputed[..., missing], idata.posterior["y_unobserved"])
    observed = model.rvs_to_values[model["y_observed"]].data
    np.testing.assert_array_equal(imputed[1, 2, np.delete(np.arange(ROWS), missing)], observed)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("start", ["fork", *thorough("exec")])
@pytest.mark.usefixtures("always_divided")
def test_any_number_of_processes_gives_the_same_bits(
    size: int, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(division, "Group", lambda n, **given: synk.Group(n, start=start, **given))
    model = several()
    idata = draws_of(model)

    def all_of(cores: int) -> list[Any]:
        given = {"cores": cores, **PLAIN}
        with model:
            pp = synk.pymc.sample_posterior_predictive(idata, random_seed=3, **given)
            prior = synk.pymc.sample_prior_predictive(10, random_seed=3, **given)
            likelihood = synk.pymc.compute_log_likelihood(idata.copy(), **given)
        return [
            value_of(tree[group])
            for tree, group in (
                (pp, "posterior_predictive"),
                (prior, "prior"),
                (prior, "prior_predictive"),
                (likelihood, "log_likelihood"),
            )
        ]

    for found, expected in zip(all_of(size), all_of(1), strict=True):
        xr.testing.assert_identical(found, expected)


def shifted(by: Callable[[], float]) -> pm.Model:
    """A model whose draws call a function of Python, which may refer to anything."""

    def random(mu: Any, rng: Any = None, size: Any = None) -> Any:
        return rng.normal(mu + by(), size=size)

    with pm.Model() as model:
        pm.CustomDist("y", pm.Normal("mu"), random=random, observed=np.zeros(5))
    return model


@pytest.mark.parametrize("start", ["fork", *thorough("exec")])
@pytest.mark.usefixtures("always_divided")
def test_processes_speak_with_a_manager_as_the_master_does(
    start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees of pymc-bart are such lists: through one connection, answers would be mixed up."""
    monkeypatch.setattr(division, "Group", lambda n, **given: synk.Group(n, start=start, **given))
    with multiprocessing.get_context("fork").Manager() as manager:
        # PyMC keeps the function for good, and would keep the manager
        values = [manager.list([np.full(10_000, float(i)) for i in range(7)])]
        model = shifted(lambda: values[0][3][-1])
        idata = draws_of(model, 2, 30)
        given = {"random_seed": 1, **PLAIN}
        found, expected = (
            synk.pymc.sample_posterior_predictive(idata, model, cores=n, **given) for n in (3, 1)
        )
    values.clear()
    found, expected = (value_of(each["posterior_predictive"]) for each in (found, expected))
    xr.testing.assert_identical(found, expected)
    assert float(expected["y"].mean()) > 2


@pytest.mark.usefixtures("always_divided")
def test_what_cannot_be_sent_to_others_is_computed_here(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Forks have it; a fresh interpreter, as in a notebook, would need a copy."""
    caplog.set_level("INFO", "synkhronos")
    lock = threading.Lock()
    model = shifted(lambda: float(lock.locked()))
    idata = draws_of(model)
    given = {"random_seed": 1, "cores": 2, **PLAIN}
    found = []
    for start in ("fork", "exec"):
        group = functools.partial(synk.Group, start=start)
        monkeypatch.setattr(division, "Group", group)
        found.append(synk.pymc.sample_posterior_predictive(idata, model, **given))
        said = "sample_posterior_predictive: one process computes, since the model cannot be sent"
        assert (said in caplog.text) == (start == "exec")
    xr.testing.assert_identical(*(value_of(each["posterior_predictive"]) for each in found))


@pytest.mark.parametrize(
    "function",
    [
        lambda **given: synk.pymc.sample_prior_predictive(3, **given),
        lambda **given: synk.pymc.sample_posterior_predictive([{"mu": np.zeros(())}], **given),
        *thorough(
            lambda **given: synk.pymc.compute_log_prior(xr.DataTree(), **given),
            lambda **given: synk.pymc.compute_log_likelihood(xr.DataTree(), **given),
            lambda **given: synk.pymc.compute_deterministics(xr.DataTree(), **given),
        ),
    ],
)
def test_draws_that_follow_from_one_another_are_refused_before_any(
    function: Callable[..., Any],
) -> None:
    count = pytensor.shared(0)
    given = {"compile_kwargs": {"mode": FAST, "updates": {count: count + 1}}}
    with pytest.raises(InputError, match="compile_kwargs has updates"):
        function(model=mixture(), **given)
    assert count.get_value() == 0


def test_the_size_of_blocks_changes_no_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    model = several()
    idata = draws_of(model)

    def draws(length: int) -> Any:
        monkeypatch.setattr(calculation, "block_length", lambda *given: length)
        found = synk.pymc.sample_posterior_predictive(idata, model, random_seed=3, **PLAIN)
        return value_of(found["posterior_predictive"])

    for length in (2, 7):
        xr.testing.assert_identical(draws(length), draws(1))


def test_threads_may_predict_with_one_model_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is within PyMC's function while the other makes a whole call; no model is changed."""
    model = several()
    idata, others = draws_of(model), list[Any]()
    plain = predictive.pm_sample_posterior_predictive

    def draws() -> Any:
        given = {"random_seed": 3, "cores": 1, **PLAIN}
        found = synk.pymc.sample_posterior_predictive(idata, model, **given)
        return value_of(found["posterior_predictive"])

    def beside_another(*args: Any, **given: Any) -> Any:
        assert "compile_fn" not in vars(model)
        if not others:
            others.append(draws)
            thread = threading.Thread(target=lambda: others.append(draws()))
            thread.start()
            thread.join()
        return plain(*args, **given)

    alone = draws()
    monkeypatch.setattr(predictive, "pm_sample_posterior_predictive", beside_another)
    xr.testing.assert_identical(draws(), alone)
    xr.testing.assert_identical(others[1], alone)


def test_each_draw_has_a_stream_of_its_own() -> None:
    """Of its chain and number: thinned or other chains leave it as it is."""
    model = several()
    idata = draws_of(model)

    def draws(of: Any, seed: Any) -> np.ndarray:
        found = synk.pymc.sample_posterior_predictive(of, model, random_seed=seed, **PLAIN)
        return found["posterior_predictive"]["n"].values

    every = draws(idata, 3)
    values = idata["posterior"].to_dataset().isel(chain=[0, 0, 1], draw=[0, 0, 1])
    values["s"][:] = values["b"][:] = 1.0
    same = idata.copy()
    same["posterior"] = xr.DataTree(values.assign_coords(chain=range(3), draw=range(3)))
    assert len({row.tobytes() for row in draws(same, 3).reshape(9, -1)}) == 9
    first = idata.copy()
    first["posterior"] = xr.DataTree(idata["posterior"].to_dataset().isel(chain=[0]))
    assert np.array_equal(draws(first, 3)[0], every[0])
    assert not np.array_equal(draws(idata, 4), every)
    assert not np.array_equal(draws(idata, None), draws(idata, None))
    generator = np.random.default_rng(1)
    assert not np.array_equal(draws(idata, generator), draws(idata, generator))
    assert np.array_equal(
        draws(idata, np.random.default_rng(1)), draws(idata, np.random.default_rng(1))
    )


@pytest.mark.parametrize("family", [*sorted(OFTEN), *thorough(*sorted(FAMILIES.keys() - OFTEN))])
def test_draws_have_their_distribution(family: str) -> None:
    make, expected = FAMILIES[family]
    with pm.Model() as model:
        pm.Normal("mu")
        model.register_rv(make(), "y", observed=np.ones(()))
    points = [{"mu": np.zeros(())}] * 1000
    found = synk.pymc.sample_posterior_predictive(points, model, random_seed=1, **PLAIN)
    y = found["posterior_predictive"]["y"].values.ravel()
    if isinstance(expected.dist, stats.rv_discrete):
        top = int(expected.ppf(0.95))
        seen = [(y == k).sum() for k in range(top + 1)]
        chance = expected.pmf(np.arange(top + 1))
        seen, chance = [*seen, len(y) - sum(seen)], [*chance, 1 - chance.sum()]
        kept = [i for i, p in enumerate(chance) if p > 1e-12]
        p = stats.chisquare([seen[i] for i in kept], [len(y) * chance[i] for i in kept]).pvalue
    else:
        p = stats.kstest(y, expected.cdf).pvalue
    assert p > 1e-3


@pytest.mark.parametrize("make", [*MODELS[:3], *thorough(*MODELS[3:])])
def test_predictive_trees_are_those_of_pymc(make: Callable[[], pm.Model]) -> None:
    """In names, shapes, dtypes, dimensions and coordinates, and about the same means."""
    model = make()
    idata = draws_of(model, 4, 50)
    given = {"random_seed": 1, **PLAIN}
    with model:
        ours = synk.pymc.sample_posterior_predictive(idata, **given)
        theirs = pm.sample_posterior_predictive(idata, **given)
        ours_too = synk.pymc.sample_prior_predictive(
            5, random_seed=1, compile_kwargs={"mode": FAST}
        )
        theirs_too = pm.sample_prior_predictive(5, random_seed=1, compile_kwargs={"mode": FAST})
    for found, expected in ((ours, theirs), (ours_too, theirs_too)):
        assert list(found.children) == list(expected.children)
        for name in expected.children:
            xr.testing.assert_allclose(
                value_of(found[name]) * 0, value_of(expected[name]) * 0, check_dim_order=True
            )
            for key, value in expected[name].data_vars.items():
                assert found[name][key].dtype == value.dtype
    for key, value in theirs["posterior_predictive"].data_vars.items():
        there = ours["posterior_predictive"][key]
        rough = 6 * float(value.std()) / np.sqrt(200) + 1e-9
        assert abs(float(there.mean() - value.mean())) < rough


def test_data_may_have_other_rows_and_predictions_a_group_of_their_own() -> None:
    model = several()
    idata = draws_of(model)
    with model:
        new = [f"new{i}" for i in range(4)]
        pm.set_data({"x": np.ones((4, 2))}, coords={"row": new})
        given = {"var_names": ["mu"], "predictions": True, "freeze_vars": ["y_unobserved"], **PLAIN}
        tree = synk.pymc.sample_posterior_predictive(idata, extend_inferencedata=True, **given)
        assert tree is idata
        assert tree["predictions"]["mu"].dims == ("chain", "draw", "row")
        assert list(tree["predictions"]["row"].values) == new
        expected = pm.sample_posterior_predictive(idata, **given)
    xr.testing.assert_allclose(value_of(tree["predictions"]), value_of(expected["predictions"]))


def test_variables_of_the_trace_are_copied_or_drawn_as_pymc_decides() -> None:
    model = several()
    idata = draws_of(model)
    given = {"random_seed": 1, "return_inferencedata": False, **PLAIN}
    found = synk.pymc.sample_posterior_predictive(idata, model, var_names=["b", "n"], **given)
    assert set(found) == {"b", "n"}
    assert np.array_equal(found["b"], idata["posterior"]["b"])
    found = synk.pymc.sample_posterior_predictive(idata, model, var_names=["b"], **given)
    assert np.array_equal(found["b"], idata["posterior"]["b"])
    with pytest.raises(InputError, match="no variable is drawn"):
        synk.pymc.sample_posterior_predictive(idata, model, var_names=["b"], store="x", **PLAIN)
    found = synk.pymc.sample_posterior_predictive(idata, model, sample_vars=["double"], **given)
    assert list(found) == ["double"]
    assert np.array_equal(found["double"], 2 * idata["posterior"]["s"])
    assert "compile_fn" not in vars(model)


def test_results_are_not_copied() -> None:
    """One array holds them, from the processes to the tree."""
    model = several()
    made: list[np.ndarray] = []

    class Watched(division.Division):
        def empty(self, shape: Any, dtype: Any) -> np.ndarray:
            made.append(super().empty(shape, dtype))
            return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(division, "Division", Watched)
        idata = draws_of(model)
        tree = synk.pymc.compute_log_likelihood(idata, model=model, **PLAIN)
        pp = synk.pymc.sample_posterior_predictive(idata, model, extend_inferencedata=True, **PLAIN)
    assert pp is tree
    values = [tree["log_likelihood"][n].values for n in ("y_observed", "n")]
    values += [tree["posterior_predictive"]["n"].values]
    for value in values:
        assert any(np.shares_memory(value, array) for array in made)


@pytest.mark.parametrize("cores", [1, *thorough(2)])
@pytest.mark.usefixtures("always_divided", "zarr_ends")
def test_a_store_has_the_same_values_and_is_read_lazily(tmp_path: Path, cores: int) -> None:
    model = several()
    store = tmp_path / "after.zarr"
    given, alone = {"cores": cores, **PLAIN}, {"cores": 1, **PLAIN}
    with model:
        idata = draws_of(model)
        expected = synk.pymc.compute_log_likelihood(idata.copy(), **alone)
        tree = synk.pymc.compute_log_likelihood(idata.copy(), store=store, **given)
        drawn = synk.pymc.sample_posterior_predictive(idata, random_seed=3, **alone)
        stored = synk.pymc.sample_posterior_predictive(idata, random_seed=3, store=store, **given)
        prior = synk.pymc.sample_prior_predictive(5, random_seed=3, store=store, **given)
        in_memory = synk.pymc.sample_prior_predictive(5, random_seed=3, **alone)
        det = synk.pymc.compute_deterministics(idata, store=store, **given)
        xr.testing.assert_equal(det, synk.pymc.compute_deterministics(idata, **alone))
    assert not isinstance(tree["log_likelihood"]["n"].variable._data, np.ndarray)
    whole = xr.open_datatree(store, engine="zarr", consolidated=False)
    for found, there in ((tree, expected), (stored, drawn), (prior, in_memory)):
        assert set(found.children) == set(there.children)
        for name in set(there.children) - {"posterior", "observed_data", "constant_data"}:
            xr.testing.assert_equal(found[name].to_dataset(), there[name].to_dataset())
            xr.testing.assert_equal(whole[name].to_dataset(), there[name].to_dataset())
            assert whole[name].attrs["draws_done"] == whole[name].attrs["draws"] > 0
    fewer = xr.DataTree.from_dict({"posterior": idata["posterior"].to_dataset().isel(draw=[0, 1])})
    with pytest.raises(InputError, match="'log_likelihood' is there already, of another"):
        synk.pymc.compute_log_likelihood(fewer, model=model, store=store, **PLAIN)


class Failing(Calculation):
    """Computes as usual, until a worker reaches the draw."""

    master = 0

    def act(self) -> None:
        raise OSError(28, "No space left on device")

    def values(self, draw: int) -> Any:
        if draw == 8 and os.getpid() != self.master:
            self.act()
        return super().values(draw)


class Dying(Failing):
    def act(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Interrupted(Calculation):
    """The master is interrupted in its third draw; the worker begins then, and counts its draws."""

    master: int
    interrupted: Path
    counted: Path

    def values(self, draw: int) -> Any:
        if os.getpid() == self.master:
            if draw % 500 == 2:
                self.interrupted.touch()
                signal.raise_signal(signal.SIGINT)
            return super().values(draw)
        while not self.interrupted.exists():
            time.sleep(0.01)
        with self.counted.open("ab") as file:
            file.write(b".")
        time.sleep(0.05)
        return super().values(draw)


@pytest.mark.parametrize(("kind", "error"), [(Failing, WorkerError), (Dying, WorkerDied)])
@pytest.mark.usefixtures("always_divided", "zarr_ends")
def test_a_failure_leaves_a_store_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, error: type
) -> None:
    model = several()
    idata = draws_of(model)
    store = tmp_path / "after.zarr"
    expected = synk.pymc.sample_posterior_predictive(idata, model, random_seed=1, **PLAIN)
    monkeypatch.setattr(predictive, "Calculation", kind)
    given = {"random_seed": 1, "cores": 2, **PLAIN}
    monkeypatch.setattr(Failing, "master", os.getpid())
    with pytest.raises(error):
        synk.pymc.sample_posterior_predictive(idata, model, store=store, **given)
    found = xr.open_zarr(store, group="posterior_predictive", consolidated=False, chunks=None)
    assert 0 < found.attrs["draws_done"] < found.attrs["draws"] == 14
    assert np.array_equal(found["n"][0, :3], expected["posterior_predictive"]["n"][0, :3])
    assert not list(store.rglob("*.new"))


@pytest.mark.parametrize(
    ("noted", "seed"),
    [('"5"', 5), ('"[1, 2]"', [1, 2]), ('"[1,"', None), ("5", None), ("null", None)],
)
def test_the_seed_of_a_store(noted: str, seed: Any, tmp_path: Path) -> None:
    """A damaged one is none."""
    (tmp_path / "group").mkdir()
    text = f'{{"attributes": {{"random_seed": {noted}}}}}'
    (tmp_path / "group" / "zarr.json").write_text(text)
    assert seed_in(str(tmp_path), ["none", "group"]) == seed


@pytest.mark.usefixtures("always_divided")
def test_an_interrupt_ends_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker makes some of its 500 draws, and leaves the others."""
    model = several()
    idata = draws_of(model, 2, 500)
    monkeypatch.setattr(Interrupted, "master", os.getpid(), raising=False)
    monkeypatch.setattr(Interrupted, "interrupted", tmp_path / "interrupted", raising=False)
    monkeypatch.setattr(Interrupted, "counted", tmp_path / "draws", raising=False)
    (tmp_path / "draws").touch()
    monkeypatch.setattr(predictive, "Calculation", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        synk.pymc.sample_posterior_predictive(idata, model, cores=2, **PLAIN)
    assert len((tmp_path / "draws").read_bytes()) < 500


@pytest.mark.usefixtures("always_divided")
def test_a_line_tells_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from synkhronos.pymc._map import bar

    caplog.set_level("INFO", "synkhronos")
    monkeypatch.setattr(bar, "EVERY", 0.0)
    model = several()
    idata = draws_of(model)
    given = {"model": model, "compile_kwargs": {"mode": FAST}}
    synk.pymc.sample_posterior_predictive(idata, cores=2, **given)
    assert "sample_posterior_predictive: " in caplog.text
    assert " of 14, " in caplog.text
    caplog.clear()
    synk.pymc.sample_posterior_predictive(idata, cores=2, progressbar=False, **given)
    assert " of 14, " not in caplog.text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cores": 0}, "cores"),
        ({"store": 3}, "store=3"),
        ({"store": "s3://bucket/x"}, r"store='s3://bucket/x': .* this is an address: give"),
        ({"random_seed": "a"}, "random_seed='a'"),
        ({"random_seed": -1}, "random_seed=-1"),
        ({"sample_dims": ["chain", "tree"]}, "no dimension 'tree'"),
        ({"store": "x.zarr", "return_inferencedata": False}, "return_inferencedata"),
        ({"trace": []}, "trace="),
        ({"trace": 3}, "trace="),
    ],
)
def test_wrong_arguments(given: dict[str, Any], words: str) -> None:
    model = several()
    asked = {"trace": draws_of(model), "model": model, **PLAIN, **given}
    with pytest.raises((InputError, InputTypeError), match=words):
        synk.pymc.sample_posterior_predictive(**asked)


def test_wrong_names() -> None:
    model = several()
    idata = draws_of(model)
    with model:
        with pytest.raises(InputError, match="'b' is no observed variable"):
            synk.pymc.compute_log_likelihood(idata, var_names=["b"], **PLAIN)
        with pytest.raises(InputError, match="'y_observed' is no free variable"):
            synk.pymc.compute_log_prior(idata, var_names=["y_observed"], **PLAIN)
        with pytest.raises(InputError, match="'b' is no deterministic"):
            synk.pymc.compute_deterministics(idata, var_names=["b"], **PLAIN)
        with pytest.raises(InputError, match="no group posterior"):
            synk.pymc.compute_log_likelihood(xr.DataTree(), **PLAIN)
        with pytest.raises(InputError, match="give var_name"):
            synk.pymc.loo(draws_of(model, 2, 60), **PLAIN)
        with pytest.raises(InputError, match="14 draws are too few"):
            synk.pymc.loo(idata, var_name="n", **PLAIN)


def loo_of_arviz(idata: Any, model: pm.Model, name: str, **given: Any) -> Any:
    with model:
        tree = pm.stats.compute_log_likelihood(idata.copy(), **PLAIN)
    return arviz_stats.loo(tree, pointwise=True, var_name=name, **given), tree


@pytest.mark.filterwarnings("ignore:.*[Pp]areto")
@pytest.mark.filterwarnings("ignore:.*shape parameter of Pareto")
@pytest.mark.filterwarnings("ignore:The point-wise LOO is the same")
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("make", [*MODELS[:2], *thorough(*MODELS[2:])])
@pytest.mark.each_choice
@pytest.mark.usefixtures("always_divided")
def test_loo_is_that_of_arviz(make: Callable[[], pm.Model], cores: int) -> None:
    model = make()
    idata = draws_of(model, 2, 60)
    for name in [v.name for v in model.observed_RVs]:
        expected, tree = loo_of_arviz(idata, model, name)
        for given in (idata, tree):
            found = synk.pymc.loo(given, True, name, model=model, cores=cores, **PLAIN)
            assert type(found) is type(expected)
            for field in ("elpd", "se", "p", "good_k", "warning", "n_samples", "n_data_points"):
                a, b = getattr(found, field), getattr(expected, field)
                assert np.isclose(a, b, rtol=1e-10, atol=1e-10, equal_nan=True), field
            for field in ("elpd_i", "pareto_k"):
                a, b = getattr(found, field), getattr(expected, field)
                xr.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)
                assert a.coords.keys() == b.coords.keys()


@pytest.mark.filterwarnings("ignore:.*[Pp]areto")
@pytest.mark.filterwarnings("ignore:.*shape parameter of Pareto")
def test_compare_takes_results_and_options_are_those_of_arviz() -> None:
    model = several()
    idata = draws_of(model, 2, 60)
    ours = synk.pymc.loo(idata, True, "n", model=model, **PLAIN)
    theirs, tree = loo_of_arviz(idata, model, "n")
    table = arviz_stats.compare({"ours": ours, "theirs": theirs}, method="pseudo-BMA")
    assert table["elpd"]["ours"] == table["elpd"]["theirs"]
    jacobian = xr.DataArray(
        np.linspace(0, 1, ROWS), dims="row", coords={"row": theirs.elpd_i["row"]}
    )
    expected = arviz_stats.loo(tree, True, "n", 0.5, log_jacobian=jacobian)
    found = synk.pymc.loo(tree, True, "n", 0.5, log_jacobian=jacobian, **PLAIN)
    assert np.isclose(found.elpd, expected.elpd, rtol=1e-12)
    assert np.isclose(found.p, expected.p, rtol=1e-9)
    turned = synk.pymc.loo(tree, True, "n", 0.5, log_jacobian=jacobian[::-1], **PLAIN)
    assert turned.elpd_i.equals(found.elpd_i)
    assert synk.pymc.loo(tree, False, "n", **PLAIN).pareto_k is None
    with pytest.raises(InputError, match="log_jacobian"):
        synk.pymc.loo(tree, var_name="n", log_jacobian=jacobian.rename(row="r"), **PLAIN)


@pytest.mark.filterwarnings("ignore:.*[Pp]areto")
def test_log_likelihoods_of_fewer_draws() -> None:
    """Their number counts, as in ArviZ. What also takes draws of the posterior refuses them."""
    model = several()
    idata = draws_of(model, 2, 120)
    _, tree = loo_of_arviz(idata, model, "n")
    thinned = tree["log_likelihood"].to_dataset().isel(draw=slice(None, None, 4))
    tree["log_likelihood"] = xr.DataTree(thinned)
    expected = arviz_stats.loo(tree, True, "n")
    found = synk.pymc.loo(tree, True, "n", **PLAIN)
    for field in ("elpd", "se", "p", "good_k", "n_samples"):
        assert np.isclose(getattr(found, field), getattr(expected, field), rtol=1e-10), field
    xr.testing.assert_allclose(found.pareto_k, expected.pareto_k)
    said = "the group log_likelihood has 60 draws, and the posterior has 240: give both of the"
    for call in (
        lambda: synk.pymc.loo(tree, True, "n", model=model, moment_match=True, **PLAIN),
        lambda: synk.pymc.loo_subsample(tree, 5, True, "n", **PLAIN),
    ):
        with pytest.raises(InputError, match=said):
            call()
    tree["log_likelihood"] = xr.DataTree(thinned.isel(draw=slice(10)))
    with pytest.raises(InputError, match="loo: 20 draws are too few"):
        synk.pymc.loo(tree, True, "n", **PLAIN)


@pytest.mark.parametrize(
    "call",
    [
        synk.pymc.loo,
        synk.pymc.compute_deterministics,
        *thorough(synk.pymc.compute_log_likelihood, synk.pymc.compute_log_prior),
    ],
)
def test_draws_of_another_shape(call: Callable[..., Any]) -> None:
    """A function would read behind their end, and find some number there."""
    with pm.Model() as model:
        effects = pm.Normal("effects", shape=4)
        pm.Deterministic("twice", 2 * effects)
        pm.Normal("y", effects[np.array([0, 1, 2, 3, 3])], observed=np.zeros(5))
    for shape, said in (((3,), "3"), ((), ""), ((4, 1), "4, 1")):
        dims = ("chain", "draw", *"ij"[: len(shape)])
        posterior = xr.Dataset({"effects": (dims, np.zeros((2, 30, *shape)))})
        tree = xr.DataTree.from_dict({"posterior": posterior})
        words = (
            rf"a draw of effects has the shape \({said}\), and in the model it is \(4\): give the"
        )
        with pytest.raises(InputError, match=words):
            call(tree, model=model, **PLAIN)


@pytest.mark.parametrize(("make", "name"), [(several, "n"), (mixture, "y"), (groups, "y")])
def test_some_rows_are_computed_from_these_rows(make: Callable[[], pm.Model], name: str) -> None:
    """No function is computed for all rows, and the numbers are those of the whole."""
    model = make()
    density = Density(freeze_dims_and_data(model), "likelihood", [name])
    [whole] = density.graphs
    start, stop = pt.lscalar("start"), pt.lscalar("stop")
    some = SomeRows(start, stop, ROWS).of(whole)
    for variable in ancestors([some]):
        if variable.owner is not None and isinstance(variable.owner.op, Elemwise | Dot):
            assert ROWS not in variable.type.shape
    function = density.compiled_from([some, whole], [*density.values, start, stop], {"mode": FAST})
    points = Points.of_dataset(draws_of(model)["posterior"].to_dataset(), model, ("chain", "draw"))
    given = [values[3, ...] for values in points.inputs_of(function, density.inputs)]
    for first, last in ((0, ROWS), (5, 9), (29, 30), (4, 4)):
        found, expected = function(*given, first, last)
        assert np.allclose(found, expected[first:last], rtol=1e-12)


def test_rows_with_a_large_pareto_k_are_named() -> None:
    model = several()
    idata = draws_of(model, 2, 60)
    with pytest.warns(UserWarning, match=r"Pareto k is above 0\.\d+ for .* rows \(row=r\d+: "):
        synk.pymc.loo(idata, var_name="n", model=model, **PLAIN)


def test_rows_outside_of_the_support_are_named() -> None:
    with pm.Model() as model:
        mu = pm.HalfNormal("mu")
        pm.Exponential("y", mu, observed=[1.0, -1.0, 2.0])
    idata = draws_of(model, 1, 30)
    idata["posterior"]["no draws"] = xr.DataArray(np.zeros(3), dims="other")
    with pytest.warns(UserWarning, match="likelihood|Pareto") as told:
        found = synk.pymc.loo(idata, pointwise=True, model=model, **PLAIN)
    [named] = [text for each in told if "y_dim_0=1" in (text := str(each.message))]
    assert "the log-likelihood of 1 of 3 rows (y_dim_0=1) is -inf, inf or NaN" in named
    assert np.isnan(found.elpd_i.values).tolist() == [False, True, False]
    with pytest.raises(InputError, match="no variable is computed"):
        synk.pymc.compute_deterministics(idata, model=model, store="x.zarr", **PLAIN)


@pytest.mark.parametrize("reff", [1e3, 1e5, np.inf])
def test_a_tail_needs_draws(reff: float) -> None:
    tree = {"posterior": mu_of(np.zeros((4, 250))), "log_likelihood": mu_of(np.zeros((4, 250)))}
    data = xr.DataTree.from_dict(tree)
    with pytest.raises((ValueError, IndexError)):
        arviz_stats.loo(data, reff=reff)
    with pytest.raises(InputError, match=r"of 1000 draws for the tail, and 5 are needed"):
        synk.pymc.loo(data, reff=reff, **PLAIN)


@pytest.mark.parametrize("known", [True, False])
def test_without_rows_there_is_no_loo(known: bool) -> None:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), observed=np.zeros(0))
    tree = draws_of(model, draws=60)
    if known:
        tree = synk.pymc.compute_log_likelihood(tree, model=model, **PLAIN)
    with pytest.raises(InputError, match=r"loo: y has no rows: it has the shape \(0,\)"):
        synk.pymc.loo(tree, model=model, **PLAIN)


def test_what_is_no_model() -> None:
    """Bambi's class has the same name as PyMC's."""
    tree = xr.DataTree.from_dict({"posterior": mu_of(np.zeros((4, 250)))})
    with pytest.raises(InputTypeError, match=r"loo\(\) was given no model"):
        synk.pymc.loo(tree, **PLAIN)
    given: Any = type("Model", (), {"__module__": "bambi.models"})()
    with pytest.raises(InputTypeError, match=r"found a model of Bambi <.*>: give its model"):
        synk.pymc.loo(tree, model=given, **PLAIN)


def mu_of(values: np.ndarray) -> xr.Dataset:
    return xr.Dataset({"mu": (("chain", "draw"), values)})


def test_rows_without_a_tail_are_named() -> None:
    values = np.random.default_rng(0).normal(size=(2, 50, 4))
    values[:, :, 2] = -1.0
    tree = {
        "posterior": xr.Dataset({"mu": (("chain", "draw"), values[:, :, 0])}),
        "log_likelihood": xr.Dataset({"y": (("chain", "draw", "row"), values)}),
    }
    with pytest.raises(InputError, match=r"1 of 4 rows \(row=2\)"):
        synk.pymc.loo(xr.DataTree.from_dict(tree), **PLAIN)


@pytest.mark.parametrize("draws", [25, 100, 226, 1000])
@pytest.mark.parametrize("odd", [None, np.nan, -np.inf, np.inf, -1e5])
def test_smoothing_is_that_of_arviz(draws: int, odd: float | None) -> None:
    r = np.random.default_rng(draws)
    rows = r.normal(size=(6, draws)) - r.gamma(0.5, size=(6, 1)) * r.standard_t(3, (6, draws)) ** 2
    if odd is not None:
        rows[::2, 3] = odd
        rows[4] = odd if np.isinf(odd) else rows[4]
    reff = 0.8
    elpd, k, lppd = (np.empty(6) for _ in range(3))
    assert not len(pareto.smooth(rows, pareto.tail_length(draws, reff), elpd, k, lppd))
    array = xr.DataArray(rows[:, None, :], dims=("row", "chain", "draw"))
    with np.errstate(all="ignore"):
        weights, expected_k = array.azstats.psislw(r_eff=reff, dim=["chain", "draw"])
        expected, _, p = array.azstats.loo(log_weights=weights, pareto_k=expected_k)
    assert np.allclose(elpd, expected, rtol=1e-9, atol=1e-9, equal_nan=True)
    assert np.allclose(k, expected_k, rtol=1e-9, atol=1e-9, equal_nan=True)
    assert np.allclose(lppd - elpd, p, rtol=1e-8, atol=1e-8, equal_nan=True)


def tails_of_every_form() -> dict[str, np.ndarray]:
    r = np.random.default_rng(2)
    draws = 4000
    step = draws // pareto._SAMPLE
    normal = r.normal(size=draws)
    largest_in_sample = np.full(draws, -1.0) + 0.1 * normal
    largest_in_sample[: pareto._SAMPLE * step : step] -= 50
    smallest_in_sample = np.where(np.arange(draws) % step == 0, 1.0, -1.0) + 0.1 * normal
    return {
        "no draw of the sample in the tail": smallest_in_sample,
        "the sample is the tail": largest_in_sample,
        "ties": normal.round(1),
        "two values": np.where(normal > 1, 0.0, -1.0),
        "in order": np.sort(normal),
        "heavy": -np.abs(r.standard_cauchy(draws)) * 100,
        "light": -1e-3 * r.random(draws),
    }


@pytest.mark.parametrize(("form", "row"), tails_of_every_form().items())
def test_a_tail_of_any_form_is_found(form: str, row: np.ndarray) -> None:
    elpd, k, lppd = (np.empty(1) for _ in range(3))
    array = xr.DataArray(row[None, None], dims=("row", "chain", "draw"))
    same = pareto.smooth(row[None], pareto.tail_length(len(row), 1.0), elpd, k, lppd)
    try:
        weights, expected_k = array.azstats.psislw(r_eff=1.0, dim=["chain", "draw"])
    except ValueError:  # all values in the tail are the same
        assert len(same) == 1
        return
    assert not len(same)
    expected, _, p = array.azstats.loo(log_weights=weights, pareto_k=expected_k)
    assert np.allclose(elpd, expected, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert np.allclose(k, expected_k, rtol=1e-8, atol=1e-9, equal_nan=True)
    assert np.allclose(lppd - elpd, p, rtol=1e-8, atol=1e-12, equal_nan=True)


@pytest.mark.usefixtures("zarr_ends")
def test_one_point_without_dimensions_and_bools(tmp_path: Path) -> None:
    """Also in a store."""
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=3)
        pm.Deterministic("positive", mu > 0)
    point = xr.Dataset({"mu": ("k", [-1.0, 0.5, 2.0])})
    given = {"model": model, "sample_dims": (), **PLAIN}
    found = synk.pymc.compute_deterministics(point, **given)
    # PyMC 6.3 takes one dimension at least
    expected = pm.compute_deterministics(point.expand_dims("a"), **given | {"sample_dims": ["a"]})
    xr.testing.assert_equal(found, expected.isel(a=0, drop=True))
    stored = synk.pymc.compute_deterministics(point, store=tmp_path / "x.zarr", **given)
    assert stored["positive"].dtype == bool
    xr.testing.assert_equal(stored.load(), found)


def test_blocks_cover_all_draws() -> None:
    for shape in ((3, 7), (1, 1), (), (2, 3, 5)):
        for length in (1, 3, 9):
            every = blocks.blocks(shape, length)
            assert [i for part in every for i in part] == list(range(int(np.prod(shape))))
            shares = [blocks.share(every, rank, 2) for rank in range(2)]
            assert sorted(map(tuple, shares[0] + shares[1])) == sorted(map(tuple, every))
