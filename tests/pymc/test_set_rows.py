"""Data that are set: rows that repeat, or no longer do, in other numbers and with other values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest
from comparing import IN_PYTHON, points
from selection import thorough

import synkhronos as synk
from synkhronos.pymc._density.likelihood import DividedTerms, Likelihood
from synkhronos.pymc._reading.reading import read
from synkhronos.pymc._repeated import choice, summed, weighted

Arrays = dict[str, np.ndarray]

GROUPS = 4
ROWS = (1, 60, 90, 200)


def model_of(data: Arrays) -> pm.Model:
    """Sums by group, distinct rows, and a quadratic form with an intercept beside all groups."""
    with pm.Model() as model:
        d = {name: pm.Data(name, value) for name, value in data.items()}
        effect = pm.Normal("effect", shape=GROUPS)
        pm.Poisson("counted", pm.math.exp(effect[d["group of count"]]), observed=d["count"])
        pm.StudentT("tailed", nu=3.0, mu=effect[d["group of few"]], observed=d["few"])
        fitted = pm.Normal("a") + effect[d["group"]] + pm.math.dot(d["x"], pm.Normal("b", shape=2))
        pm.Normal("fitted", fitted, 0.5, observed=d["response"])
    return model


def drawn(rng: np.random.Generator, rows: int, repeating: bool, odd: str) -> Arrays:
    """Data of so many rows, and some more for two of the variables."""
    many, more = rows + 1, rows + 2
    few, x = rng.normal(size=many), rng.normal(size=(more, 2))
    if repeating:  # among the numbers are 0.0 and -0.0
        few, x = few.round(0), x.round(0)
    found = {
        "group of count": rng.integers(0, rng.integers(1, GROUPS + 1), rows),
        "count": rng.integers(0, 4, rows),
        "group of few": rng.integers(0, GROUPS, many),
        "few": few,
        "group": rng.integers(0, GROUPS, more),
        "x": x,
        "response": x.sum(1) + rng.normal(size=more),
    }
    at = rng.integers(rows)
    group = found[str(rng.choice([name for name in found if name.startswith("group")]))]
    number = found[str(rng.choice(["few", "response"]))]
    match odd:
        case "nan":
            number[at] = np.nan
        case "infinite":
            number[at] = np.inf
        case "outside":
            found["count"][at] = -1
        case "from the end":
            group -= GROUPS
        case "new category":
            group[at] = GROUPS
        case "no x":
            x[:] = 0.0
    return found


ODD = ("", "nan", "infinite", "outside", "from the end", "new category", "no x")


def compiled(model: pm.Model) -> Any:
    return model.compile_fn([model.logp(), model.dlogp()], mode=IN_PYTHON)


def bits(parts: list[DividedTerms]) -> dict[tuple[str, str], list[bytes]]:
    """The data of each part, by its names and its form."""
    return {
        (" ".join(part.names), type(part.form).__name__): [
            a.tobytes() for arrays in part.arrays() for a in arrays
        ]
        for part in parts
    }


@pytest.mark.parametrize("seed", [0, *thorough(1, 2, 3)])
def test_data_that_are_set_give_the_bits_of_a_new_model(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the values of the plain model, also where these are not finite, or an error."""
    monkeypatch.setattr(choice, "LEAST_ROWS", 0)
    monkeypatch.setattr(choice, "GAIN", 1e-9)  # any form is taken
    for module in (summed, weighted):
        monkeypatch.setattr(module, "may_repeat", lambda *given: True)
    rng = np.random.default_rng(seed)
    first = drawn(rng, 60, True, "")
    plain = model_of(first)
    [at] = points(plain, 1)
    of_plain, faster = compiled(plain), synk.pymc.fast(plain)
    of_faster = compiled(faster)
    parts = Likelihood(read(plain)).parts
    sizes, forms = rng.permutation(ROWS), set()
    for k, odd in enumerate(2 * ODD):
        rows = int(sizes[(k + k // 4) % len(sizes)])  # others in each new model below
        data = drawn(rng, rows, bool(rng.integers(2)), odd)
        with plain:
            pm.set_data(data)
        if odd == "new category":
            with pytest.raises(IndexError, match=f"index {GROUPS} of row"), faster:
                pm.set_data(data)
            assert np.isnan(of_faster(at)[0])
            continue
        with faster:
            pm.set_data(data)
        with np.errstate(all="ignore"):
            (value, slope), (found, found_slope) = of_plain(at), of_faster(at)
        if np.isnan(value):  # a check of parameters that only nan can fail sees nan of data, too
            assert found == -np.inf or np.isnan(found)
        else:
            np.testing.assert_allclose(found, value, rtol=1e-11, err_msg=odd)
        if np.isfinite(value):
            scale = np.abs(slope).max()
            np.testing.assert_allclose(found_slope, slope, rtol=1e-9, atol=1e-11 * scale)
        if k % 4 == 0:
            model = model_of(first)  # pm.Data takes nan only later
            with model:
                pm.set_data(data)
            new = Likelihood(read(model)).parts
            found = bits(new)  # with few rows the quadratic form costs more
            same = [part for part in bits(parts).items() if part[0] in found]
            forms |= {form for (_, form), _ in same}
            assert all(found[name] == data for name, data in same), odd
    assert forms == {"SumsByGroup", "DistinctRows", "QuadraticForm"}


def test_an_index_is_set_before_the_longer_table_that_it_chooses_from() -> None:
    """`pm.set_data` sets one after another: between them the index is out of bounds."""
    of = np.arange(300) % 3
    with pm.Model() as model:
        index, table = pm.Data("index", of), pm.Data("table", np.array([0.1, 0.2, 0.3]))
        pm.Bernoulli("y", logit_p=pm.Normal("a") * table[index], observed=of % 2)
    faster = synk.pymc.fast(model)
    plain, found = (m.compile_logp(mode=IN_PYTHON) for m in (model, faster))
    for data in (
        {"index": np.arange(300) % 5, "table": np.linspace(0, 1, 5)},
        {"table": np.ones(2), "index": np.arange(300) % 2},
    ):
        for m in (model, faster):
            with m:
                pm.set_data(data)
        assert found({"a": 0.3}) == pytest.approx(plain({"a": 0.3}), rel=1e-13)


def of_dims(groups: int, features: int, rows: int, seed: int) -> tuple[dict[str, Any], Arrays]:
    """Coordinates and data of the model below."""
    r = np.random.default_rng(seed)
    coords = {"group": range(groups), "feature": range(features), "row": range(rows)}
    return coords, {
        "of": r.integers(0, groups, rows),
        "at": r.integers(0, groups, rows) - groups,
        "x": r.normal(size=(rows, features)),
        "count": r.poisson(2, rows),
        "response": r.normal(size=rows),
        "tails": r.normal(size=rows),
    }


def with_dims() -> pm.Model:
    """Shapes of parameters follow the dims: effects less their mean, a table, a regression."""
    coords, data = of_dims(4, 3, 200, 0)
    with pm.Model(coords={k: v for k, v in coords.items() if k == "group"}) as model:
        dims = {"x": ("row", "feature")}
        d = {k: pm.Data(k, v, dims=dims.get(k, "row")) for k, v in data.items()}
        effect = pm.Normal("effect", dims="group")
        table = pm.Normal("table", dims=("group", "feature"))
        slope = pm.Normal("slope", dims="feature")
        pm.Poisson("y", pm.math.exp(effect - effect.mean())[d["of"]], observed=d["count"])
        fitted = pm.math.dot(d["x"], slope) + table[d["of"], 0 * d["at"] - 1] + effect[d["at"]]
        pm.Normal("z", fitted, 0.5, observed=d["response"])
        pm.StudentT("t", nu=3, mu=effect[d["of"]] * slope.sum(), observed=d["tails"])
    return model


@pytest.mark.thorough  # of data: the tests above
def test_shapes_of_parameters_follow_dims_that_are_set() -> None:
    model = with_dims()
    faster = synk.pymc.fast(model)
    forms = {type(part.form).__name__ for part in Likelihood(read(model)).parts}
    assert {"SumsByGroup", "QuadraticForm"} <= forms
    plain, found = compiled(model), compiled(faster)
    for seed, (groups, features, rows) in enumerate([(4, 3, 150), (6, 5, 250), (2, 1, 120)]):
        coords, data = of_dims(groups, features, rows, seed)
        for each in (model, faster):
            each.set_dim("group", groups, coord_values=coords["group"])
            with each:
                pm.set_data(data)
        for at in points(model, 2):
            (value, slope), (other, other_slope) = plain(at), found(at)
            assert other == pytest.approx(value, rel=1e-10)
            np.testing.assert_allclose(other_slope, slope, rtol=1e-8, atol=1e-9)


def test_the_same_data_of_two_variables_cannot_be_copied() -> None:
    """A limit of PyMC, whose own copies fail, too."""
    with pm.Model() as model:
        seen = pm.Data("seen", np.zeros(3))
        for name in ("y", "t"):
            pm.Normal(name, pm.Normal(f"mean of {name}"), 1, observed=seen)
    with pytest.raises(synk.InputError, match="y and t observe the same data seen"):
        synk.pymc.fast(model)
