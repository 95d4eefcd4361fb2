"""`loo_subsample`: ArviZ's numbers, from all ways in which log-likelihoods can be had."""

from __future__ import annotations

from typing import Any

import arviz_stats
import numpy as np
import pymc as pm
import pytensor
import pytest
import xarray as xr
from after_models import draws_of
from modes import FAST
from selection import thorough

import synkhronos as synk
from synkhronos._errors import InputError, InputTypeError
from synkhronos.pymc._after import division

if not hasattr(arviz_stats, "ELPDDataLOOSubsample"):
    pytest.skip("this ArviZ has another result", allow_module_level=True)

ROWS = 40
PLAIN = {"progressbar": False, "compile_kwargs": {"mode": FAST}}
NUMBERS = (
    "elpd", "se", "p", "subsampling_se", "n_samples", "n_data_points", "warning", "good_k",
    "subsample_size", "thin_factor",
)  # fmt: skip
pytestmark = [
    pytest.mark.together,  # models and log-likelihoods are computed once
    pytest.mark.filterwarnings("ignore:.*[Pp]areto"),
]


def line() -> pm.Model:
    """Rows with labels, of which one is far off."""
    r = np.random.default_rng(3)
    x = r.normal(size=ROWS)
    y = 1 + 2 * x + r.normal(size=ROWS)
    y[7] += 6
    with pm.Model(coords={"row": np.arange(ROWS) + 100}) as model:
        mean = pm.Normal("a") + pm.Normal("b", 0, 3) * pm.Data("x", x, dims="row")
        pm.Normal("y", mean, pm.HalfNormal("s", 2), observed=y, dims="row")
    return model


def table() -> pm.Model:
    """Log-likelihoods over two dims."""
    y = np.random.default_rng(4).normal(size=(8, 5))
    with pm.Model(coords={"day": range(8), "shop": list("abcde")}) as model:
        mean = pm.Normal("mean", dims="shop")
        pm.Normal("y", mean, pm.HalfNormal("s"), observed=y, dims=("day", "shop"))
    return model


def whole_numbers() -> pm.Model:
    with pm.Model() as model:
        pm.Normal("y", pm.Poisson("n", 3), observed=np.arange(4.0))
    return model


MODELS = {"line": line, "table": table}


def fitted(name: str) -> tuple[pm.Model, xr.DataTree]:
    """A model, and draws with all that ArviZ wants; not from the prior, whose tails are long."""
    model = MODELS[name]()
    tree = draws_of(model, 2, 30)
    r = np.random.default_rng(1)
    for name, own in tree["posterior"].data_vars.items():
        centre = {"a": 1.0, "b": 2.0, "s": 1.0}.get(str(name), 0.0)
        own.values[:] = centre + 0.15 * r.normal(size=own.shape)
    y = model.rvs_to_values[model["y"]].eval()
    dims = model.named_vars_to_dims["y"]
    coords = {dim: list(model.coords[dim]) for dim in dims}
    tree["observed_data"] = xr.DataTree(xr.Dataset({"y": (dims, y)}, coords))
    with model, pytensor.config.change_flags(mode=FAST):
        pm.stats.compute_log_likelihood(tree, **PLAIN)
    return model, tree


@pytest.fixture(scope="module")
def known() -> dict[str, tuple[pm.Model, xr.DataTree]]:
    return {name: fitted(name) for name in MODELS}


CASES = [
    ("line", {"observations": 12}),
    ("line", {"observations": 12, "method": "plpd", "thin": 2, "seed": 7}),
    ("table", {"observations": np.array([3, 17, 38, 3]), "reff": 0.7}),
    *thorough(
        ("line", {"observations": 1}),
        ("line", {"observations": ROWS, "method": "plpd", "pointwise": False}),
        ("line", {"observations": 9, "reff": 0.6, "thin": 2}),
        ("table", {"observations": 15, "method": "plpd"}),
        ("table", {"observations": 15}),
    ),
]


def _of_arviz(tree: xr.DataTree, **given: Any) -> Any:
    with pytensor.config.change_flags(mode=FAST):
        return arviz_stats.loo_subsample(tree, **given)


@pytest.mark.each_choice
@pytest.mark.parametrize(("name", "given"), CASES)
@pytest.mark.parametrize("has", ["likelihoods", "model", "both"])
def test_numbers_are_those_of_arviz(known: Any, name: str, given: dict[str, Any], has: str) -> None:
    model, tree = known[name]
    given = {"pointwise": True, **given}
    both = has == "both" or given.get("method") == "plpd"
    expected = _of_arviz(tree, model=model if both else None, **given)
    if has == "model":
        tree = xr.DataTree.from_dict({"posterior": tree["posterior"].to_dataset()})
    own = None if has == "likelihoods" and not both else model
    found = synk.pymc.loo_subsample(tree, model=own, **given, **PLAIN)
    assert type(found) is type(expected)
    assert found.kind == expected.kind
    for field in NUMBERS:
        a, b = getattr(found, field), getattr(expected, field)
        assert a == (b if b is None else pytest.approx(b, rel=1e-9)), field
    assert np.array_equal(found.loo_subsample_observations, expected.loo_subsample_observations)
    assert str(found) == str(expected)
    for field in ("elpd_i", "pareto_k", "elpd_loo_approx"):
        a, b = getattr(found, field), getattr(expected, field)
        assert (a is None) == (b is None), field
        if b is not None:
            xr.testing.assert_allclose(a.drop_attrs(), b.drop_attrs(), rtol=1e-9, atol=1e-9)


def test_a_jacobian_and_a_comparison(known: Any) -> None:
    """The numbers of transformed data; az.compare takes results of samples and of all rows."""
    model, tree = known["line"]
    more = xr.DataArray(np.linspace(0, 1, ROWS), dims="row")
    given = {"observations": 12, "pointwise": True}
    expected = _of_arviz(tree, log_jacobian=more, **given)
    found = synk.pymc.loo_subsample(tree, log_jacobian=more, **given, **PLAIN)
    assert (found.elpd, found.p) == pytest.approx((expected.elpd, expected.p), rel=1e-9)
    tables = []
    for part in (synk.pymc.loo_subsample(tree, **given, **PLAIN), _of_arviz(tree, **given)):
        every = synk.pymc.loo(tree, True, model=model, **PLAIN)
        with pytest.warns(UserWarning, match="included in loo calculations for all"):
            tables.append(arviz_stats.compare({"sample": part, "all": every}))
    columns = ["elpd", "p", "elpd_diff", "dse"]
    np.testing.assert_allclose(*(table[columns].to_numpy(float) for table in tables), rtol=1e-9)


def test_all_rows_are_those_of_loo(known: Any) -> None:
    """A sample of all rows has the elpd of all rows, in the order of the rows."""
    model, tree = known["table"]
    every = synk.pymc.loo(tree, True, model=model, **PLAIN)
    found = synk.pymc.loo_subsample(tree, 40, True, model=model, **PLAIN)
    assert found.elpd == pytest.approx(every.elpd, rel=1e-12)
    assert found.subsampling_se == 0
    xr.testing.assert_equal(found.elpd_i.rename(None), every.elpd_i.rename(None))


def test_the_number_of_processes_changes_no_bit(known: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(division, "_FORK_SECONDS", -1.0)
    monkeypatch.setattr(division, "_EXEC_SECONDS", -1.0)
    monkeypatch.setattr("synkhronos.pymc._after.loo_rows._BYTES", 8 * 60 * 7)  # of seven rows
    model, tree = known["line"]
    tree = xr.DataTree.from_dict({"posterior": tree["posterior"].to_dataset()})
    one, two = (
        synk.pymc.loo_subsample(tree, 20, True, model=model, cores=cores, **PLAIN)
        for cores in (1, 2)
    )
    assert one.elpd == two.elpd
    assert one.elpd_i.identical(two.elpd_i)
    assert one.elpd_loo_approx.identical(two.elpd_loo_approx)


def test_warnings_name_rows(known: Any) -> None:
    _, tree = known["line"]
    with pytest.warns(UserWarning, match=r"2 of 2 rows \(row=107: 3.*; row=109: 0"):
        synk.pymc.loo_subsample(tree, np.array([7, 9]), **PLAIN)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"observations": 41}, InputError, "observations=41: there are 40 rows"),
        ({"observations": 0}, InputError, "observations=0: give an integer of at least 1"),
        ({"observations": 2.5}, InputTypeError, r"observations=2\.5"),
        ({"observations": np.array([1.0])}, InputTypeError, "a vector of their numbers"),
        ({"observations": np.array([True, False])}, InputTypeError, "a vector of their numbers"),
        ({"observations": np.array([], int)}, InputTypeError, "a vector of their numbers"),
        ({"observations": np.array([3, 40])}, InputError, "give numbers from 0 to 39"),
        ({"observations": np.array([-1, 3])}, InputError, "give numbers from 0 to 39"),
        ({"method": "point"}, InputError, 'give "lpd" or "plpd"'),
        ({"thin": 0}, InputError, "thin=0"),
        ({"thin": "auto"}, InputTypeError, "thin='auto'"),
        ({"thin": 3}, InputError, "20 draws are too few: 25 are needed"),
        ({"seed": -1}, InputError, "seed=-1"),
        ({"reff": 0}, InputError, "reff=0"),
        ({"var_name": "z"}, InputError, "var_name='z'"),
    ],
)
def test_bad_arguments(known: Any, given: dict[str, Any], kind: Any, message: str) -> None:
    _, tree = known["line"]
    with pytest.raises(kind, match=message):
        synk.pymc.loo_subsample(tree, **{"observations": 5, **given}, **PLAIN)


def test_draws_that_do_not_fit(known: Any) -> None:
    """Draws of another model; means of whole numbers; no model at all."""
    _, tree = known["line"]
    other = line()
    with other:
        pm.set_data({"x": np.ones(ROWS)})
    with pytest.raises(InputError, match="not those of the model"):
        synk.pymc.loo_subsample(tree, 5, model=other, **PLAIN)
    with pytest.raises(InputTypeError, match="was given no model"):
        synk.pymc.loo_subsample(tree, 5, method="plpd", **PLAIN)
    own = xr.Dataset({"n": (("chain", "draw"), np.full((2, 30), 3))})
    whole = xr.DataTree.from_dict({"posterior": own})
    with pytest.raises(InputError, match=r"\['n'\] are whole numbers"):
        synk.pymc.loo_subsample(whole, 2, method="plpd", model=whole_numbers(), **PLAIN)
