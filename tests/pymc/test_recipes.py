"""The recipes of the pages on PyMC's companions give the numbers of their own way, and the truth.

They are installed by scripts/test --companions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytest
import xarray as xr
from recipes import run_recipe
from zoo_companions import COMPANIONS, version_of

import synkhronos as synk
from synkhronos.pymc._after import division
from synkhronos.pymc._chains import sampling
from synkhronos.pymc._density.divided import Divided

if not any(map(version_of, COMPANIONS)):
    pytest.skip("none of them is installed", allow_module_level=True)

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # theirs
    pytest.mark.timeout(900),
]


@pytest.fixture(autouse=True)
def _no_compiler() -> Iterator[None]:
    """The mode of users: in that of other tests, nutpie would not be what samples."""
    with pytensor.config.change_flags(mode="NUMBA"):
        yield


@contextmanager
def ours_asked() -> Iterator[list[pm.Model]]:
    """The models whose log-density is asked for in this context, and is ours."""
    asked: list[pm.Model] = []
    plain = Divided.__call__

    def call(density: Divided, vars: Any = None, jacobian: bool = True, sum: bool = True) -> Any:
        if sum:
            asked.append(density._model)
        return plain(density, vars, jacobian, sum)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Divided, "__call__", call)
        yield asked


@pytest.fixture
def ours() -> Iterator[list[pm.Model]]:
    with ours_asked() as asked:
        yield asked


@contextmanager
def nothing_cheap() -> Iterator[None]:
    """Small models get a faster log-density as large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "_CHEAP_SECONDS", 0.0)
        yield


@pytest.fixture
def nothing_is_cheap() -> Iterator[None]:
    with nothing_cheap():
        yield


def means(idata: Any, *names: str) -> dict[str, Any]:
    """The posterior means of variables."""
    return {n: np.asarray(idata["posterior"][n].mean(("chain", "draw"))) for n in names}


def check_near(found: dict[str, Any], expected: dict[str, Any], within: float) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=within, rtol=within, err_msg=name)


# --- Bambi


EFFECTS = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
NEW = pd.DataFrame({"x": [10.0, 11.0, 10.0], "z": [-5.0, -5.0, -4.0], "group": list("cca")})
RIGHT = {"mu": [37.0, 40.0, 34.0]}


@pytest.fixture(scope="module")
def grouped() -> pd.DataFrame:
    """y = 2 + 3 x - z + an effect of the group; predictors are far from zero."""
    r = np.random.default_rng(0)
    group = np.arange(200) % 5
    data = pd.DataFrame({"x": r.normal(10, 1, 200), "z": r.normal(-5, 2, 200)})
    data["y"] = 2 + 3 * data.x - data.z + EFFECTS[group] + r.normal(0, 0.3, 200)
    return data.assign(group=[*"abcde"] * 40)


@pytest.fixture(scope="module")
def by_bambi(grouped: pd.DataFrame) -> dict[str, Any]:
    """Bambi's own way."""
    bambi = pytest.importorskip("bambi")
    model = bambi.Model("y ~ x + z + (1|group)", grouped)
    idata = model.fit(inference_method="nutpie", random_seed=2)
    return found_by_bambi(model, idata, NEW)


def found_by_bambi(model: Any, idata: Any, new: pd.DataFrame) -> dict[str, Any]:
    """Predicted means of new rows, the log-likelihood, and slopes."""
    predicted = model.predict(idata, data=new, inplace=False)
    terms = model.compute_log_likelihood(idata, inplace=False)["log_likelihood"]["y"]
    return {
        **means(predicted, "mu"),
        **means(idata, "x", "z", "sigma", "1|group_sigma"),
        "log_likelihood": float(terms.mean()),
    }


@pytest.mark.together("bambi")
@pytest.mark.usefixtures("nothing_is_cheap")
@pytest.mark.parametrize(
    "name", ["recipe-everywhere-bambi", "recipe-bambi", "recipe-bambi-members"]
)
def test_bambi(
    name: str, grouped: pd.DataFrame, by_bambi: dict[str, Any], ours: list[pm.Model]
) -> None:
    import bambi

    done = run_recipe(name, bambi=bambi, synk=synk, data=grouped, new=NEW)
    synk.close()
    assert ours
    assert done["idata"]["posterior"].attrs["inference_library"] == "nutpie"
    inside = means(done["idata"], "mu")  # by the recipe's own predict
    found = found_by_bambi(done["model"], done["idata"], NEW)
    check_near(found, inside, 1e-9)
    check_near(found, RIGHT, 0.3)
    check_near(found, {"x": 3.0, "z": -1.0, "sigma": 0.3}, 0.1)
    check_near(found, {n: v for n, v in by_bambi.items() if n != "1|group_sigma"}, 0.01)
    check_near(found, by_bambi, 0.2)


@pytest.mark.together("bambi")
def test_a_folder_for_bambi(
    grouped: pd.DataFrame,
    by_bambi: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The draws on disk stay as they are, though Bambi moves the intercept of those it returns."""
    bambi = pytest.importorskip("bambi")
    monkeypatch.chdir(tmp_path)
    model, again = (bambi.Model("y ~ x + z + (1|group)", grouped) for _ in range(2))
    first = run_recipe("recipe-folder-bambi", model=model, synk=synk)["idata"]
    files = {path: path.read_bytes() for path in Path("night").rglob("*.npy")}
    assert len(files) == first.posterior.sizes["chain"] * 11
    second = run_recipe("recipe-folder-bambi", model=again, synk=synk)["idata"]
    assert first.posterior.equals(second.posterior)
    assert files == {path: path.read_bytes() for path in Path("night").rglob("*.npy")}
    check_near(found_by_bambi(again, second, NEW), by_bambi, 0.2)


@pytest.mark.together("bambi")
def test_draws_of_a_bambi_model_that_sample_has_made(
    grouped: pd.DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    """Why the recipes are as they are: a warning, and a refusal, where numbers would be wrong."""
    bambi = pytest.importorskip("bambi")
    model = bambi.Model("y ~ x + z", grouped)
    model.build()
    how: dict[str, Any] = {"draws": 50, "tune": 200, "chains": 1, "random_seed": 1}
    idata = synk.pymc.sample(model.backend.model, **how)
    told = [r for r in caplog.records if r.getMessage().startswith("Bambi has centred")]
    assert len(told) == 1
    with synk.pymc.everywhere(quiet=True):
        pm.sample(model=model.backend.model, **how)
    model.predict(idata, data=NEW)
    assert abs(means(idata, "mu")["mu"] - RIGHT["mu"]).min() > 10
    fitted = model.fit(inference_method="nutpie", **how)
    with pytest.raises(synk.InputError, match="intercept that is moved"):
        synk.pymc.compute_log_likelihood(fitted, model=model.backend.model)


# --- HSSM


@pytest.fixture(scope="module")
def choices() -> pd.DataFrame:
    """Choices and times by a diffusion whose drift is 0.3 x - 0.4."""
    hssm = pytest.importorskip("hssm")
    x = np.random.default_rng(0).normal(3, 1, 150)
    rows = [
        hssm.simulate_data(
            "ddm", theta={"v": 0.3 * v - 0.4, "a": 1.5, "z": 0.5, "t": 0.3}, size=1, random_state=i
        )
        for i, v in enumerate(x)
    ]
    return pd.concat(rows, ignore_index=True).assign(x=x)


@pytest.fixture(scope="module")
def by_hssm(choices: pd.DataFrame) -> Any:
    """HSSM's own way."""
    import hssm

    model = hssm.HSSM(choices, model="ddm", include=[{"name": "v", "formula": "v ~ 1 + x"}])
    with ours_asked() as asked:
        found = model.sample(sampler="nutpie", random_seed=2, chains=2)
    assert not asked
    return found


@pytest.mark.usefixtures("nothing_is_cheap")
@pytest.mark.parametrize("name", ["recipe-everywhere-hssm", "recipe-hssm"])
def test_hssm(name: str, choices: pd.DataFrame, by_hssm: Any, ours: list[pm.Model]) -> None:
    import hssm

    names = "v_Intercept", "v_x", "a", "z", "t"
    idata = run_recipe(name, hssm=hssm, synk=synk, data=choices)["idata"]
    assert ours
    found = means(idata, *names)
    check_near(found, {"v_x": 0.3, "a": 1.5, "z": 0.5, "t": 0.3}, 0.2)
    check_near({"drift": found["v_Intercept"] + 3 * found["v_x"]}, {"drift": 0.5}, 0.25)
    check_near(found, means(by_hssm, *names), 0.05)
    terms = [float(i["log_likelihood"]["rt,response"].mean()) for i in (idata, by_hssm)]
    assert terms[0] == pytest.approx(terms[1], abs=0.01)


# --- PyMC-Marketing


@pytest.fixture(scope="module")
def weeks() -> tuple[pd.DataFrame, pd.Series]:
    """Sales of 80 weeks by two channels, with little noise."""
    r = np.random.default_rng(0)
    dates = pd.date_range("2024-01-01", periods=80, freq="W")
    data = pd.DataFrame({"date": dates, "tv": r.gamma(2, 1, 80), "web": r.gamma(2, 1, 80)})
    return data, pd.Series(1 + 0.5 * data.tv + 0.2 * data.web + r.normal(0, 0.1, 80), name="y")


MIX = "intercept_contribution", "adstock_alpha", "saturation_beta", "saturation_lam", "y_sigma"


@pytest.fixture(scope="module")
def mix() -> dict[str, Any]:
    """The names that the recipes of a media mix use."""
    mmm = pytest.importorskip("pymc_marketing.mmm")
    names = "MMM", "GeometricAdstock", "LogisticSaturation", "BudgetOptimizerWrapper"
    return {"synk": synk, **{name: getattr(mmm, name) for name in names}}


def made(mix: dict[str, Any]) -> Any:
    return mix["MMM"](
        date_column="date",
        channel_columns=["tv", "web"],
        target_column="y",
        adstock=mix["GeometricAdstock"](l_max=4),
        saturation=mix["LogisticSaturation"](),
    )


@pytest.fixture(scope="module")
def by_marketing(mix: dict[str, Any], weeks: tuple[pd.DataFrame, pd.Series]) -> Any:
    """PyMC-Marketing's own way."""
    mmm = made(mix)
    mmm.fit(*weeks, random_seed=2)
    return mmm


@pytest.mark.together("mix")
@pytest.mark.usefixtures("nothing_is_cheap")
def test_media_mix(
    mix: dict[str, Any],
    weeks: tuple[pd.DataFrame, pd.Series],
    by_marketing: Any,
    ours: list[pm.Model],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = weeks
    done = run_recipe("recipe-everywhere-mmm", **mix, pd=pd, X=x, y=y)
    assert ours
    mmm, again = done["mmm"], done["again"]
    check_near(means(mmm.idata, *MIX), means(by_marketing.idata, *MIX), 0.1)
    assert set(mmm.idata.posterior) == set(by_marketing.idata.posterior)
    drawn = set(mmm.idata.children) - set(by_marketing.idata.children)
    assert drawn == {"posterior_predictive", "posterior_predictive_constant_data"}
    assert mmm.idata.attrs.items() >= by_marketing.idata.attrs.items()  # ``save`` adds one
    assert mmm.idata["fit_data"].equals(by_marketing.idata["fit_data"])
    np.testing.assert_array_equal(again.fit_result["y_sigma"], mmm.fit_result["y_sigma"])
    scale = again.model["target_scale"].get_value()
    predicted = done["predicted"]["y"].mean("sample") * scale
    assert float(abs(predicted.values - y.values).mean()) < 0.15  # the noise has 0.1
    # all is spent, and more of it where a unit of money sells more
    budget = done["budget"].to_series()
    assert budget.sum() == pytest.approx(10, rel=1e-3)
    assert budget["tv"] > budget["web"]


@pytest.mark.together("mix")
def test_a_media_mix_freezes_a_faster_model_and_the_log_says_so(
    mix: dict[str, Any],
    weeks: tuple[pd.DataFrame, pd.Series],
    ours: list[pm.Model],
    caplog: pytest.LogCaptureFixture,
) -> None:
    mmm = made(mix)
    mmm.build_model(*weeks)
    mmm.model = synk.pymc.fast(mmm.model)
    ours.clear()  # what proved it
    mmm.fit(*weeks, draws=5, tune=5, chains=1, random_seed=1)
    assert not ours
    told = [r.getMessage() for r in caplog.records if r.name == "synkhronos"]
    assert any(text.startswith("pymc_marketing copies the model") for text in told)


@pytest.fixture(scope="module")
def customers() -> pd.DataFrame:
    """Customers of BG/NBD with r = 2, alpha = 10, a = 1.5, b = 4."""
    r = np.random.default_rng(0)
    rows = []
    for _ in range(300):
        rate, drop, end = r.gamma(2, 1 / 10), r.beta(1.5, 4), r.uniform(30, 50)
        times = [0.0]
        while (later := times[-1] + r.exponential(1 / rate)) < end:
            times.append(later)
            if r.random() < drop:
                break
        rows.append((len(times) - 1, times[-1], end))
    found = pd.DataFrame(rows, columns=["frequency", "recency", "T"])
    return found.assign(customer_id=range(len(rows)))


@pytest.fixture(scope="module")
def by_clv(customers: pd.DataFrame) -> Any:
    """PyMC-Marketing's own way."""
    clv = pytest.importorskip("pymc_marketing.clv")
    model = clv.BetaGeoModel()
    model.build_model(data=customers)
    with ours_asked() as asked:
        model.fit(random_seed=2, chains=2)
    assert not asked
    return model


@pytest.mark.usefixtures("nothing_is_cheap")
@pytest.mark.parametrize("name", ["recipe-everywhere-customers", "recipe-customers"])
def test_customers(
    name: str,
    customers: pd.DataFrame,
    by_clv: Any,
    ours: list[pm.Model],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clv = pytest.importorskip("pymc_marketing.clv")
    monkeypatch.chdir(tmp_path)
    done = run_recipe(name, clv=clv, synk=synk, data=customers)
    assert ours
    names = "r", "alpha", "a", "b"
    found = means(done["customers"].idata, *names)
    check_near(found, {"r": 2, "alpha": 10, "a": 1.5, "b": 4}, 0.25)
    check_near(found, means(by_clv.idata, *names), 0.1)
    bought = [float(m.expected_purchases(future_t=10).mean()) for m in (done["again"], by_clv)]
    assert bought[0] == pytest.approx(bought[1], rel=0.02)


# --- samplers


@pytest.fixture(scope="module")
def line() -> pm.Model:
    """y = 1 + 2 x[0] - x[1]."""
    r = np.random.default_rng(0)
    x = r.normal(size=(300, 2))
    with pm.Model(coords={"row": range(300)}) as model:
        data = pm.Data("x", x, dims=("row", "column"))
        mean = pm.Normal("start", 0, 10) + data @ pm.Normal("slopes", 0, 10, shape=2)
        y = 1 + x @ [2.0, -1.0] + r.normal(0, 0.2, 300)
        pm.Normal("y", mean, pm.HalfNormal("noise", 2), observed=y, dims="row")
    return model


LINE = {"start": 1.0, "slopes": [2.0, -1.0], "noise": 0.2}


SAMPLERS = {
    "recipe-extras": {"laplace": "pymc_extras", "pathfinder": "pymc_extras"},
    "recipe-nutpie": {"by_nutpie": "nutpie", "by_numpyro": "numpyro"},
}


@pytest.fixture(scope="module", params=["recipe-extras", "recipe-nutpie"])
def sampled(request: pytest.FixtureRequest, line: pm.Model) -> list[Any]:
    """Draws by a recipe, sampled before the test: JAX starts a thread that lasts."""
    results = SAMPLERS[request.param]
    modules = {package: pytest.importorskip(package) for package in results.values()}
    with ours_asked() as asked:
        done = run_recipe(request.param, **modules, pm=pm, synk=synk, model=line)
    assert asked.count(done["faster"]) >= len(results)
    return [done[result] for result in results]


def test_samplers(sampled: list[Any]) -> None:
    for idata in sampled:
        check_near(means(idata, *LINE), LINE, 0.05)


@pytest.mark.usefixtures("nothing_is_cheap")
def test_kinds_that_are_summed_out(ours: list[pm.Model]) -> None:
    pymc_extras = pytest.importorskip("pymc_extras")
    r = np.random.default_rng(0)
    kind = np.arange(400) % 10 < 3
    y = r.normal(np.where(kind, -2.0, 2.0), 0.5)
    given = {"pm": pm, "synk": synk, "pymc_extras": pymc_extras, "y": y}
    idata = run_recipe("recipe-everywhere-extras", **given)["idata"]
    assert ours
    found = means(idata, "weights", "centres", "noise")
    check_near(found, {"weights": [0.3, 0.7], "centres": [-2.0, 2.0], "noise": 0.5}, 0.1)


@pytest.fixture(scope="module")
def trees() -> dict[str, Any]:
    """The recipe's variables and the plain draws: pymc-bart starts a process that lasts."""
    module = pytest.importorskip("pymc_bart")
    r = np.random.default_rng(0)
    x = r.uniform(-3, 3, size=(150, 2))
    y = np.where(x[:, 0] > 0, 2.0, -2.0) + r.normal(0, 0.3, 150)
    with nothing_cheap(), ours_asked() as asked:
        done = run_recipe("recipe-everywhere-bart", pm=pm, synk=synk, pymc_bart=module, X=x, y=y)
    assert asked
    return {**done, "plain": pm.sample(model=done["model"], random_seed=2, chains=2)}


def test_bart(trees: dict[str, Any]) -> None:
    found = means(trees["idata"], "mean", "noise")
    for side in (-1, 1):
        rows = side * trees["X"][:, 0] > 0.5
        assert found["mean"][rows].mean() == pytest.approx(2 * side, abs=0.2)
    check_near(found, means(trees["plain"], "mean", "noise"), 0.25)


@pytest.fixture(scope="module")
def grown() -> tuple[pm.Model, Any]:
    """Trees at new rows, and the draws without their values at the old ones."""
    module = pytest.importorskip("pymc_bart")
    r = np.random.default_rng(0)
    x = r.uniform(-3, 3, size=(150, 2))
    y = np.where(x[:, 0] > 0, 2.0, -2.0) + r.normal(0, 0.3, 150)
    with pm.Model() as model:
        at = pm.Data("at", x)
        mean = module.BART("mean", at, y, m=10)
        pm.Normal("y", mean, pm.HalfNormal("noise"), observed=y, shape=mean.shape)
    idata = pm.sample(100, tune=100, chains=2, model=model, random_seed=1)
    with model:
        pm.set_data({"at": np.array([[-2.0, 0.0], [2.0, 0.0]])})
    posterior = idata["posterior"].to_dataset().drop_vars("mean")
    return model, xr.DataTree.from_dict({"posterior": posterior})


@pytest.mark.parametrize("start", ["fork", "exec"])
def test_bart_predicts_in_processes(
    start: str, grown: tuple[pm.Model, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each asks pymc-bart's own process for the trees."""
    model, idata = grown
    for name in ("_FORK_SECONDS", "_EXEC_SECONDS"):
        monkeypatch.setattr(division, name, -1.0)
    monkeypatch.setattr(division, "Group", lambda n, **given: synk.Group(n, start=start, **given))
    given = {"var_names": ["mean", "y"], "random_seed": 1, "progressbar": False}
    with synk.pymc.everywhere(quiet=True), model:
        found, alone = (
            pm.sample_posterior_predictive(idata, cores=n, **given)["posterior_predictive"]
            for n in (2, 1)
        )
    assert found["y"].equals(alone["y"])
    np.testing.assert_allclose(found["mean"].mean(("chain", "draw")), [-2, 2], atol=0.3)
