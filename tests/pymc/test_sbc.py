"""`sbc`: ranks are uniform for a right model, and not for a wrong one; the same on all pools."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pymc as pm
import pytest
from modes import FAST
from scipy import stats
from xarray import Dataset, DataTree

import synkhronos as synk
from synkhronos._errors import InputError, InputTypeError, SynkhronosError
from synkhronos.pymc._after.predictive import sample_prior_predictive
from synkhronos.pymc._map import names as names_of_items
from synkhronos.pymc._simulated import sbc as sbc_module
from synkhronos.pymc._simulated import simulation
from synkhronos.pymc._simulated.simulation import Observing, Simulation

QUICK: dict[str, Any] = {"draws": 200, "tune": 200, "nuts_sampler": "nutpie", "progressbar": False}
ROWS = 6


def line(scale: float = 1.0) -> pm.Model:
    """A mean with a known posterior, two effects, and what follows from them."""
    with pm.Model(coords={"side": ["left", "right"]}) as model:
        mean = pm.Normal("mean")
        effects = pm.Normal("effects", dims="side")
        pm.Deterministic("most", effects.max())
        pm.Normal("y", mean, scale, observed=np.zeros(ROWS))
        pm.Normal("z", effects, 1, observed=np.zeros(2), dims="side")
    return model


def exact(model: pm.Model, r: np.random.Generator) -> DataTree:
    """Independent draws of the posterior of `line`, by its formulas."""
    data = {v.name: model.rvs_to_values[v].get_value() for v in model.observed_RVs}
    size = (2, 100)
    mean = data["y"].sum() / (ROWS + 1) + r.normal(size=size) / np.sqrt(ROWS + 1)
    effects = data["z"] / 2 + r.normal(size=(*size, 2)) / np.sqrt(2)
    found = Dataset(
        {
            "mean": (("chain", "draw"), mean),
            "effects": (("chain", "draw", "side"), effects),
            "most": (("chain", "draw"), effects.max(-1)),
        },
        coords={"side": ["left", "right"]},
    )
    return DataTree.from_dict({"posterior": found})


class Exactly:
    """In place of `Sampled`: no sampler."""

    def __init__(self, fit: Callable[..., Any], arguments: object, members: int) -> None:
        self.fit = fit

    def __call__(self, item: object, seed: np.random.SeedSequence) -> DataTree:
        """The draws of an item."""
        return exact(self.fit(item), np.random.default_rng(seed))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """Items in this process, by the exact posterior; the arguments of each call of `map`."""
    calls: list[Mapping[str, Any]] = []

    def mapped(fit: Any, items: Mapping[Any, Any], random_seed: int, **given: Any) -> Any:
        calls.append(given)
        seeds = {n: names_of_items.seed_of(random_seed, n).generate_state(2)[0] for n in items}
        return {n: fit(item, int(seeds[n])) for n, item in items.items() if n != 7}

    monkeypatch.setattr(simulation, "Sampled", Exactly)
    monkeypatch.setattr(sbc_module, "map_items", mapped)
    # what takes time
    monkeypatch.setattr(simulation, "efficiency_of", lambda draws: 1.0)
    quick = functools.partial(sample_prior_predictive, compile_kwargs={"mode": FAST})
    monkeypatch.setattr(sbc_module, "sample_prior_predictive", quick)
    return calls


def p_values(ranks: DataTree) -> dict[str, float]:
    """Of the uniformity of ranks, by ten bins (chi-square); the least one of each variable."""
    group = ranks["prior_sbc"].to_dataset()
    found = {}
    for name, values in group.items():
        each = values.values.reshape(values.sizes["draw"], -1)
        bins = np.linspace(-0.5, group.compared + 0.5, 11)
        like = np.histogram(np.arange(group.compared + 1), bins)[0]  # bins differ by a rank
        expected = like * len(each) / like.sum()
        found[str(name)] = min(
            stats.chisquare(np.histogram(one, bins)[0], expected).pvalue for one in each.T
        )
    return found


@pytest.mark.filterwarnings("ignore:sbc. 1 of 150 fits have failed")
def test_ranks_of_exact_draws(here: list[Any]) -> None:
    """Uniform if data are of the model, by a bound of one in a thousand; else far from it."""
    given: dict[str, Any] = {"thin": 1, "random_seed": 3, "var_names": ["mean", "effects", "most"]}
    right = synk.pymc.sbc(line(), 150, members=1, **given)
    assert min(p_values(right).values()) > 0.001

    def wider(mean: Any, effects: Any, most: Any, seed: int) -> dict[str, Any]:
        r = np.random.default_rng(seed)
        return {"y": r.normal(mean, 2.0, ROWS), "z": r.normal(effects, 1)}

    wrong = p_values(synk.pymc.sbc(line(), 150, simulator=wider, **given))
    assert wrong["mean"] < 1e-4
    assert min(wrong["effects"], wrong["most"]) > 0.001
    assert here == [{"members": 1}, {}]


def test_the_layout_is_that_of_simuk(here: list[Any]) -> None:
    """ArviZ plots it; failed fits are left out, and a transform is ranked."""
    with pytest.warns(UserWarning, match="1 of 9 fits have failed, and are left out"):
        ranks = synk.pymc.sbc(line(), 9, random_seed=1, thin=2)
    group = ranks["prior_sbc"].to_dataset()
    assert dict(group.sizes) == {"chain": 1, "draw": 8, "side": 2}
    assert list(group.draw) == [0, 1, 2, 3, 4, 5, 6, 8]
    assert list(group.side) == list(ranks["prior"].side) == ["left", "right"]
    assert group.compared == 100
    assert group["mean"].dtype.kind == "i"
    assert set(ranks["prior"].data_vars) == set(group.data_vars) == {"mean", "effects"}
    both = synk.pymc.sbc(line(), 5, random_seed=1, thin=2, transform=lambda _, value: value.sum())
    assert both["prior_sbc"]["effects"].shape == (1, 5)
    first = group["mean"].isel(draw=slice(0, 5))  # the first ones of more simulations
    assert np.array_equal(both["prior_sbc"]["mean"], first)
    plots = pytest.importorskip("arviz_plots", reason="arviz is not installed")
    plots.plot_ecdf_pit(ranks, backend="none")


def test_ranks_among_equal_draws() -> None:
    """Any number of them counts as below, alike; the compared draws are those of `thin`."""
    own = Simulation(line(), ["k"], {}, 1, 1, None, None)
    draws = Dataset({"k": (("chain", "draw"), np.repeat([[0, 1, 1, 2]], 2, axis=0))})
    r = np.random.default_rng(0)
    found = [int(own._rank(draws["k"], np.array(1), r)) for _ in range(500)]
    assert set(found) == {2, 3, 4, 5, 6}
    assert min(stats.chisquare(np.bincount(found)[2:]).pvalue, 1) > 0.001
    assert [int(own._rank(draws["k"], np.array(t), r)) for t in (-1, 3)] == [0, 8]


def test_draws_that_correlate(here: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "efficiency_of", lambda draws: 0.2)
    with pytest.warns(UserWarning, match=r"each is worth 0.2 draws.* Multiply thin= by 5"):
        synk.pymc.sbc(line(), 2, random_seed=1)
    monkeypatch.setattr(simulation, "efficiency_of", lambda draws: np.nan)  # they are all alike
    synk.pymc.sbc(line(), 2, random_seed=1)


def test_the_model_keeps_its_initial_values() -> None:
    with pm.Model() as model:
        a = pm.Normal("a", initval=0.5)
        pm.Normal("y", a, observed=[0.0, 0.0])
    observing = Observing(model, {"y": [0.0, 1.0]})
    made = observing.model_of({"y": [1.0, 2.0]})
    assert made.initial_point()["a"] == 0.5
    assert model.rvs_to_values[model["y"]].data.tolist() == [0, 0]
    assert made.rvs_to_values[made["y"]].get_value().tolist() == [1, 2]
    assert observing.model_of({"y": [3.0, 4.0]}) is made
    assert made.rvs_to_values[made["y"]].get_value().tolist() == [3, 4]


def test_a_simulator_is_asked_before_anything_starts(here: list[Any]) -> None:
    """Variables that it makes are not ranked, also if the model does not observe them."""
    for made, error in (
        ([1.0], "simulator has returned .*: return a dict of arrays"),
        ({"y": 0, "z": 0, "x": 0}, "simulator has made 'x', which is no random variable"),
        ({"y": 0}, "simulator has not made 'z', which the model observes"),
    ):
        with pytest.raises(InputError, match=f"sbc: {error}"):
            synk.pymc.sbc(line(), 2, simulator=lambda made=made, **_: made)
    assert here == []
    names = sbc_module._not_simulated(line(), ["mean", "effects"], {"y": 0, "z": 0, "mean": 0})
    assert names == ["effects"]


def with_potential() -> pm.Model:
    with line() as model:
        pm.Potential("more", -(model["mean"] ** 2))
    return model


def without_data() -> pm.Model:
    with pm.Model() as model:
        pm.Normal("a")
    return model


@pytest.mark.parametrize(
    ("make", "given", "error"),
    [
        (line, {"num_simulations": 0}, "num_simulations=0: give an integer of at least 1"),
        (line, {"thin": 0}, "thin=0: give an integer of at least 1"),
        (line, {"simulator": 3}, "simulator=3: give a function"),
        (line, {"transform": "log"}, "transform='log': give a function"),
        (line, {"var_names": ["b"]}, "var_names: there is no 'b'; there are"),
        (line, {"folder": "fits"}, "folder= needs random_seed="),
        (line, {"on": 3}, "on=3: give a Client of Dask, 'ray'"),
        (line, {"cores": 0}, "cores=0: give an integer of at least 1"),
        (line, {"members": 1000}, "members=1000: there are"),
        (line, {"limit": -1}, "limit=-1: give a number of more than 0"),
        (line, {"log_dir": "/dev/null/a"}, "log_dir='/dev/null/a': Not a directory"),
        (line, {"random_seed": -1}, "random_seed=-1"),
        (line, {"idata_kwargs": {}}, "idata_kwargs= is not for fits to simulated data"),
        (with_potential, {}, "the model has a Potential, more"),
        (without_data, {}, "the model observes nothing: give data, or simulator="),
    ],
)
def test_wrong_arguments(
    make: Any, given: dict[str, Any], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said before parameters are drawn."""
    monkeypatch.setattr(sbc_module, "sample_prior_predictive", None)
    with pytest.raises((InputError, InputTypeError), match=f"sbc: {error}"):
        synk.pymc.sbc(make(), **given)


def test_a_folder_that_is_not_for_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said before parameters are drawn, and nothing is written."""
    monkeypatch.setattr(sbc_module, "sample_prior_predictive", None)
    with pytest.raises(InputError, match=r"map: folder='/dev/null/a': Not a directory"):
        synk.pymc.sbc(line(), 2, folder="/dev/null/a", random_seed=1)
    (tmp_path / "seed.json").write_text('{"random_seed": 2}')
    with pytest.raises(InputError, match=r"map: random_seed=1, and the results in .* have 2"):
        synk.pymc.sbc(line(), 2, folder=tmp_path, random_seed=1)
    with pytest.raises(InputError, match="cores=0"):
        synk.pymc.sbc(line(), 2, folder=tmp_path / "new", random_seed=1, cores=0)
    assert not (tmp_path / "new").exists()


def test_fits_that_all_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SimpleNamespace(failed={0: "ZeroDivisionError: division", 1: "the same"}, keys=list)
    monkeypatch.setattr(sbc_module, "map_items", lambda *args, **given: failed)
    with pytest.raises(SynkhronosError, match="all 2 fits have failed"):
        synk.pymc.sbc(line(), 2)


def test_a_task_of_an_array_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from synkhronos._host.launch_settings import PART

    monkeypatch.setenv(PART, "1/2")
    with pytest.raises(InputError, match="sbc: it needs all fits, and this is one of 2 tasks"):
        synk.pymc.sbc(line())


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_same_on_a_pool_and_again(tmp_path: Path) -> None:
    """Bit by bit; a folder goes on, and another model is not taken for it."""
    pytest.importorskip("nutpie", reason="nutpie is not installed (the extra: synkhronos[pymc])")
    given = {**QUICK, "draws": 40, "tune": 40, "random_seed": 1}
    with ThreadPoolExecutor(1) as pool:
        found = synk.pymc.sbc(line(), 3, on=pool, folder=tmp_path / "fits", **given)
    slots = synk.pymc.sbc(line(), 5, cores=1, folder=tmp_path / "fits", **given)
    for name, values in found["prior_sbc"].data_vars.items():
        assert np.array_equal(values, slots["prior_sbc"][name][:, :3])
    files = sorted((tmp_path / "fits").glob("*.fit"))
    assert len(files) == 5
    times = [path.stat().st_mtime_ns for path in files]
    again = synk.pymc.sbc(line(), 5, folder=tmp_path / "fits", **given)
    assert again["prior_sbc"].to_dataset().identical(slots["prior_sbc"].to_dataset())
    assert times == [path.stat().st_mtime_ns for path in files]
    with pytest.raises(InputError, match="result of another item"):
        synk.pymc.sbc(line(2.0), 5, folder=tmp_path / "fits", **given)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_sampler_is_calibrated(tmp_path: Path) -> None:
    """With real draws: of a right model, of one whose scale is off, and with other processes."""
    pytest.importorskip("nutpie", reason="nutpie is not installed (the extra: synkhronos[pymc])")
    right = synk.pymc.sbc(line(), 200, random_seed=2, **QUICK)
    assert min(p_values(right).values()) > 0.001
    one = synk.pymc.sbc(line(), 200, random_seed=2, cores=1, **QUICK)
    assert one.identical(right)

    def wider(mean: Any, effects: Any, seed: int, **_: Any) -> dict[str, Any]:
        r = np.random.default_rng(seed)
        return {"y": r.normal(mean, 2.0, ROWS), "z": r.normal(effects, 1)}

    wrong = synk.pymc.sbc(line(), 200, simulator=wider, random_seed=2, **QUICK)
    assert p_values(wrong)["mean"] < 1e-4
