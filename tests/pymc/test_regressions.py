"""Regressions with normal errors: the squares of all rows as a quadratic form, for nutpie."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from comparing import (
    IN_PYTHON,
    check_equal,
    check_not_worse,
    evaluated,
    far_points,
    plainly,
    points,
)
from exact import roundings, truth
from pytensor.graph.traversal import toposort
from selection import thorough
from test_nutpie import called

from synkhronos._compiling.data.lifted import lifted
from synkhronos._compiling.kept.folder import Folder
from synkhronos._compiling.lean.mode import lean, without_c
from synkhronos._compiling.lean.quadratics import SquaresOfRows, size_of
from synkhronos.pymc._density.late_arviz import import_nutpie
from synkhronos.pymc._density.nutpie import data_stay
from synkhronos.pymc._density.regressions import which, with_regressions
from synkhronos.pymc._kept.graphs import Graphs
from synkhronos.pymc._kept.models import kept_model, leading


@pytest.fixture(autouse=True)
def in_python() -> Iterator[None]:
    """PyTensor folds constants in Python."""
    with without_c("NUMBA"):
        yield


R = np.random.default_rng(2)
N = 240
X, Z = R.normal(size=N), R.normal(size=N)
TABLE = R.normal(size=(N, 4)) + 3
GROUP = R.integers(3, size=N)
Y = 2 + 0.5 * X - Z + 0.3 * R.normal(size=N)


def elements() -> Any:
    b = pm.Normal("b", shape=4)
    return b[0] + b[1] * X - b[2] * Z + b[3] * (X * Z)


def scalars() -> Any:
    a, b = pm.Normal("a", 1, 3), pm.Normal("b")
    return a + 0.5 * X + X / 3 * b * pm.Normal("c") - (a * Z + 2)


def matrix() -> Any:
    return TABLE @ pm.Normal("b", shape=4) + pm.Normal("a")


def standardised() -> Any:
    """The coefficients are functions of parameters and data."""
    scale = pm.HalfNormal("scale")
    return (TABLE * (scale * np.arange(1.0, 5) * pm.Normal("b", shape=4))).sum(axis=1)


def groups() -> Any:
    """An intercept is the sum of the effects of all groups."""
    a, b = pm.Normal("a", shape=3), pm.Normal("b", shape=3)
    return pm.Normal("mean") + a[GROUP] + b[GROUP - 3] * X


def repeated_columns() -> Any:
    """No matrix of full rank, and an element that is not read."""
    b = pm.Normal("b", shape=5)
    return b[0] + b[1] * X + b[2] * X + b[3] * 0 * Z + b[1] * Z


def short_types() -> Any:
    few = np.array(R.integers(-100, 100, size=N), "int8")
    return pm.Normal("a") * few * few + pm.Normal("b") * X.astype("float32")


def read_twice() -> Any:
    x = pm.Data("x", X)
    b = pm.Normal("b")
    pm.Potential("more", -((b * x) ** 2).sum())
    return b * x + pm.Normal("a", shape=1)[0]


KINDS = (elements, scalars, matrix, standardised, groups, repeated_columns, short_types, read_twice)


def model_of(location: Callable[[], Any], sigma: Any = None, y: np.ndarray = Y) -> pm.Model:
    with pm.Model() as found:
        mu = location()
        pm.Normal("y", mu, pm.HalfNormal("sigma") if sigma is None else sigma, observed=y)
    return found


def formed(model: pm.Model, stay: bool = True) -> Any:
    """The log-density as nutpie compiles it."""
    [graph] = lifted([model.logp()])
    return with_regressions(graph, stay)


def has_form(graph: Any) -> bool:
    return any(isinstance(node.op, SquaresOfRows) for node in toposort([graph]))


def with_form(model: pm.Model) -> pm.Model:
    """The model, with the form in its log-density."""
    graph = formed(model)
    assert has_form(graph)
    model.logp = lambda *_, **__: graph
    return model


def one_lag() -> pm.Model:
    """With an intercept, and a precision."""
    with pm.Model() as found:
        given = {"tau": pm.Exponential("tau", 0.5), "init_dist": pm.Normal.dist(0, 10)}
        pm.AR("y", pm.Normal("rho", shape=2), **given, constant=True, observed=np.cumsum(Y))
    return found


def two_lags() -> pm.Model:
    with pm.Model() as found:
        given = {"sigma": pm.HalfNormal("sigma"), "init_dist": pm.Normal.dist(0, 10)}
        pm.AR("y", pm.Normal("rho", shape=2), **given, observed=np.cumsum(Y))
    return found


def scaled_values() -> pm.Model:
    """The values are data times a parameter."""
    with pm.Model() as found:
        value = Y * pm.Normal("a") - X
        pm.Potential("y", pm.logp(pm.Normal.dist(pm.Normal("b") * Z, pm.HalfNormal("s")), value))
    return found


@pytest.mark.parametrize("kind", [*KINDS, one_lag, two_lags, scaled_values])
def test_the_form_equals_the_plain_model(kind: Callable[[], Any]) -> None:
    """Near the start, and far from it."""
    model = model_of(kind) if kind in KINDS else kind()
    near, far = points(model, 2), far_points(model)[:5]
    plain = evaluated(model, near + far)
    found = evaluated(with_form(model), near + far)
    del model.logp
    check_equal(plain[:2], found[:2])
    check_not_worse(model, far, plain[2:], found[2:])


@pytest.mark.parametrize("location", [elements, *thorough(matrix, groups, repeated_columns)])
def test_no_digit_is_lost_near_the_mode(location: Callable[[], Any]) -> None:
    model = model_of(location)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        best = pm.find_MAP(model=model, progressbar=False, include_transformed=True, maxeval=200)
    at = [{name: np.asarray(best[name]) for name in model.initial_point(0)}]
    at += [{k: v + 1e-4 * R.normal(size=v.shape) for k, v in at[0].items()}]
    plain = evaluated(model, at)
    found = evaluated(with_form(model), at)
    del model.logp
    exact, rounded = truth(model), roundings(model)
    for point, (value, slope), (other, other_slope) in zip(at, plain, found, strict=True):
        known = exact(point)
        assert known is not None
        of_rows, slope_of_rows = rounded(point)
        assert abs(other - known[0]) <= abs(value - known[0]) + 2**-51 * of_rows
        gap = np.abs(slope - known[1]) + 2**-52 * 6 * slope_of_rows
        assert np.all(np.abs(other_slope - known[1]) <= gap)


def test_infinite_values_and_scales_without_a_density() -> None:
    """PyMC's value, also where the form has no number."""
    y = np.where(np.arange(N) == 3, np.inf, Y)
    of_y, of_scale = model_of(elements, y=y), model_of(elements, sigma=pt.constant(-1.0))
    for model in (of_y, of_scale):
        at = points(model, 1)
        [(value, _)] = evaluated(with_form(model), at)
        assert value == -np.inf
        del model.logp
        assert evaluated(model, at)[0][0] == -np.inf


def masked(values: np.ndarray) -> np.ndarray:
    return np.ma.masked_array(values, np.arange(len(values)) % 50 == 7)


def other_models() -> Iterator[tuple[str, pm.Model]]:
    with pm.Model() as found:
        pm.StudentT("y", 4, elements(), sigma=pm.HalfNormal("s"), observed=Y)
    yield "another density", found
    yield "a scale by row", model_of(elements, sigma=np.abs(X) + 1)
    yield "no affine location", model_of(lambda: pm.Normal("a") * pm.math.exp(pm.Normal("b") * X))
    yield "a parameter for each row", model_of(lambda: pm.Normal("a", shape=N))
    with pm.Model() as found:
        steps = pm.AR("x", pm.Normal("rho"), init_dist=pm.Normal.dist(0, 10), shape=N)
        pm.Normal("y", steps, observed=Y)
    yield "a series of parameters", found
    with pm.Model() as found:
        pm.Normal("z", TABLE[:, 0], shape=N)
    yield "a prior by row", found
    yield "few rows", model_of(lambda: pm.Normal("a") + pm.Normal("b") * X[:20], y=Y[:20])
    yield "many coefficients", model_of(lambda: pm.Normal("a", shape=80)[GROUP], y=Y)
    index = np.where(np.arange(N) == 3, 7, GROUP)
    yield "an index beyond the end", model_of(lambda: pm.Normal("a", shape=3)[index] + 0 * X)
    table = GROUP // 2, np.where(GROUP < 2, index, 0)
    yield "an index beyond an axis", model_of(lambda: pm.Normal("a", shape=(3, 3))[table] + 0 * X)


def test_other_sums_stay_as_they_are() -> None:
    for name, model in other_models():
        assert not has_form(formed(model)), name
    model = model_of(read_twice)
    assert has_form(formed(model))
    assert not has_form(formed(model, stay=False))  # its data may be set


@pytest.mark.filterwarnings("ignore:Data in y contains missing values:")
def test_missing_values_are_parameters() -> None:
    """The observed rows have the form or not: the value is PyMC's."""
    model = model_of(elements, y=masked(Y))
    at = points(model, 1)
    graph = formed(model)
    plain = plainly(model, at)
    model.logp = lambda *_, **__: graph
    check_equal(plain, evaluated(model, at))


def lengths_of(n: int, shift: float = 0.0) -> pm.Model:
    with pm.Model() as found:
        x = pm.Data("x", X[:n] + shift)
        pm.Normal("y", pm.Normal("a") + pm.Normal("b") * x, pm.HalfNormal("sigma"), observed=Y[:n])
    return found


def series_of(n: int, shift: float = 0.0) -> pm.Model:
    with pm.Model() as found:
        y = pm.Data("data", np.cumsum(Y[:n]) + shift)
        given = {"sigma": pm.HalfNormal("sigma"), "init_dist": pm.Normal.dist(0, 10)}
        pm.AR("y", pm.Normal("rho", shape=2), **given, constant=True, observed=y)
    return found


def test_the_lengths_decide_and_are_in_the_key() -> None:
    """Of lengths with the same form one key is enough."""
    few, some, many = (Graphs(lengths_of(n)) for n in (10, 200, 230))
    found = [which(lifted([each.value])[0]).count(True) for each in (few, some, many)]
    assert found == [0, 1, 1]
    assert few.key != some.key == many.key


@pytest.mark.parametrize("made", [lengths_of, series_of])
def test_what_is_kept_is_right_for_other_data_and_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[..., pm.Model]
) -> None:
    nutpie: Any = pytest.importorskip("nutpie", reason="nutpie is not installed")
    import_nutpie()
    monkeypatch.setattr("synkhronos.pymc._kept.models.kept_folder", lambda: Folder(tmp_path))
    token = data_stay.set(True)
    try:
        for n, shift in ((200, 0.0), (200, 2.0), (230, 1.0)):
            model = made(n, shift)
            start = model.initial_point(0)
            at = {
                name: np.array(value + 0.4 - 0.1 * i)
                for i, (name, value) in enumerate(start.items())
            }
            with leading(kept_model(model)):
                found = nutpie.compile_pymc_model(model)
            assert (found.logp_func is None) == ((n, shift) != (200, 0.0))  # it was kept
            code, value, gradient = called(found, np.hstack(list(at.values())))
            expected = model.compile_fn([model.logp(), *model.dlogp()], mode=IN_PYTHON)
            wanted = np.hstack(expected(at))
            assert code == 0
            np.testing.assert_allclose(np.append(value, gradient), wanted, rtol=1e-12)
    finally:
        data_stay.reset(token)


def test_loops_equal_numpy() -> None:
    """With columns that are sums of others, and without."""
    inputs = [pt.dvector("b"), pt.dscalar("scale"), pt.dvector("numbers")]
    squares, slope = SquaresOfRows()(*inputs)
    outputs = [pt.tensor_from_scalar(squares), slope]
    loops, plain = (
        pytensor.function(inputs, outputs, mode=mode) for mode in (lean("NUMBA"), IN_PYTHON)
    )
    for width in (1, 2, 5):
        for apart in (0.0, 1.0):
            numbers = R.normal(size=size_of(width))
            numbers[1:3] = 0.0, apart
            if apart:
                numbers[-width * width :] = np.eye(width).ravel()
            given = R.normal(size=width), np.array(0.7), numbers
            for found, expected in zip(loops(*given), plain(*given), strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-12)
    with pytest.raises(ValueError, match="another number of coefficients"):
        loops(np.zeros(3), np.array(1.0), np.zeros(size_of(2)))
