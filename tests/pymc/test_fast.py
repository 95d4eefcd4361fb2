"""`fast`: a copy of a model, equal to it, whose log-density is an operation with its own code."""

from __future__ import annotations

import gc
import logging
import pickle
import warnings
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
    function,
    plainly,
    points,
)
from pymc.model.transform.optimization import freeze_dims_and_data
from pytensor.graph.basic import Constant
from pytensor.scan.op import Scan
from pytensor.tensor.rewriting.fused_elemwise import FusedElemwise
from selection import thorough
from zoo import KINDS

import synkhronos as synk
from synkhronos._compiling.lean.scans import NumberScan
from synkhronos.pymc._density.density import AsInGroups, Density

# one of each way in which terms, latents and data meet
TYPICAL = (
    "linear regression",
    "hierarchical Poisson-gamma",
    "latent classes (one discrete parameter per row)",
)
MADE = [n for n, k in KINDS.items() if not k.reason]


def regression(**changed: Any) -> pm.Model:
    r = np.random.default_rng(2)
    x = r.normal(size=60)
    with pm.Model(coords={"obs": range(60)}) as model:
        data = pm.Data("x", x, dims="obs")
        count = pm.Data("count", r.poisson(3, 60), dims="obs")
        b = pm.Normal("b", shape=2, initval=[0.25, -0.5])
        scale = pm.HalfNormal("scale", initval=2.0)
        pm.Deterministic("slope", b[1])
        pm.Poisson("y", pm.math.exp(b[0] + b[1] * data) * scale, observed=count, dims="obs")
    return model


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in TYPICAL else [pytest.mark.thorough]) for n in MADE]
)
def test_copies_are_equal_to_the_models(name: str) -> None:
    kind = KINDS[name]
    model = kind.make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copy = synk.pymc.fast(model, kind.dim, row_wise=kind.row_wise)
    assert "logp" not in vars(model)
    assert "logp" in vars(copy)
    at, far = points(model, 3), far_points(model)
    plain, faster = evaluated(model, at + far), evaluated(copy, at + far)
    check_equal(plain[:3], faster[:3], kind.rtol)
    check_not_worse(model, far, plain[3:], faster[3:], max(1e-7, kind.rtol))


# NUMBA: test_means_over_a_dim_whose_length_can_be_set, with all that this model has
@pytest.mark.parametrize("mode", [*thorough("NUMBA", "CVM"), "JAX"])
def test_modes(mode: str) -> None:
    if mode == "JAX":
        pytest.importorskip("jax")
    model = regression()
    at = points(model, 2)
    check_equal(plainly(model, at), evaluated(synk.pymc.fast(model), at, mode))


def test_variables_data_and_initial_values_are_those_of_the_model() -> None:
    model = regression()
    copy = synk.pymc.fast(model)
    for kind in ("free_RVs", "observed_RVs", "deterministics", "data_vars", "value_vars"):
        names = [[v.name for v in getattr(m, kind)] for m in (model, copy)]
        assert names[0] == names[1]
    assert copy.coords == model.coords
    # of a copy, PyMC 6.3 makes a list of the dims
    dims = [{k: tuple(v) for k, v in m.named_vars_to_dims.items()} for m in (model, copy)]
    assert dims[0] == dims[1]
    start, other = model.initial_point(0), copy.initial_point(0)
    assert list(start) == list(other)
    for name, value in start.items():
        np.testing.assert_array_equal(value, other[name])


def test_data_of_the_copy_can_be_set_also_of_another_length() -> None:
    model = regression()
    copy = synk.pymc.fast(model)
    at = points(model, 1)
    compiled = copy.compile_logp(mode="FAST_COMPILE")
    before = compiled(at[0])
    plain, faster = function(model), function(copy)
    for rows in (60, 45, 80):
        r = np.random.default_rng(rows)
        data = {"x": r.normal(size=rows), "count": r.poisson(2, rows)}
        for each in (model, copy):
            with each:
                pm.set_data(data, coords={"obs": range(rows)})
        check_equal(plain(at), faster(at))
        np.testing.assert_allclose(compiled(at[0]), plain(at)[0][0], rtol=1e-10)
    check_equal(plain(at), evaluated(copy, at))
    assert compiled(at[0]) != before


def test_the_density_is_nan_while_data_differ_in_length() -> None:
    copy = synk.pymc.fast(regression())
    with copy:
        pm.set_data({"x": np.zeros(45)}, coords={"obs": range(45)})
    compiled = copy.compile_logp(mode="FAST_COMPILE")
    at = copy.initial_point(0)
    assert np.isnan(compiled(at))
    with copy:
        pm.set_data({"count": np.zeros(45, int)})
    assert np.isfinite(compiled(at))


@pytest.mark.parametrize("copied", [synk.pymc.fast, *thorough(synk.pymc.divide)])
def test_a_copy_checks_no_parameters_if_the_model_does_not(copied: Any) -> None:
    """Shares that do not add up to 1, which PyMC takes then; its own copies would refuse them."""
    with pm.Model(name="m", check_bounds=False) as model:
        share = pm.Gamma("share", 2, 2, shape=3)
        pm.Categorical("y", p=share, observed=np.arange(3000) % 3)
    copy = copied(model)
    assert copy.logp.reading.names == ["m::y"]
    assert (copy.name, copy.check_bounds) == ("m", False)
    at = points(model, 2)
    check_equal(evaluated(model, at), evaluated(copy, at))
    if (division := getattr(copy, "division", None)) is not None:
        division.close()


def with_shared(shared: Any) -> pm.Model:
    """A model whose rows depend on the product of two data, and on a variable of the user's."""
    r = np.random.default_rng(5)
    with pm.Model() as model:
        x, z = pm.Data("x", r.normal(size=40)), pm.Data("z", r.normal(size=40))
        b = pm.Normal("b", shape=2)
        pm.Poisson("y", pm.math.exp(b[0] + b[1] * x * z + shared), observed=r.poisson(2, 40))
    return model


@pytest.mark.parametrize("pickled", [False, True])
def test_values_that_are_set_reach_the_copy(pickled: bool) -> None:
    """By `set_value` of the copy's data, or of a variable that PyMC does not copy."""
    model = with_shared(np.zeros(40))
    copy = synk.pymc.fast(model)
    if pickled:
        cloudpickle = pytest.importorskip("cloudpickle")
        copy = pickle.loads(cloudpickle.dumps(copy))
    at = points(model, 1)
    compiled = copy.compile_logp(mode="FAST_COMPILE")
    for each in (model, copy):
        each["x"].set_value(np.linspace(0, 1, 40))
    np.testing.assert_allclose(compiled(at[0]), plainly(model, at)[0][0], rtol=1e-10)


def test_a_copy_of_a_copy_is_followed() -> None:
    """PyMC's copy of the copy has data of its own."""
    model = freeze_dims_and_data(synk.pymc.fast(with_shared(0.0)), dims=[], data=[])
    assert "logp" not in vars(model)
    copy = synk.pymc.fast(model)
    at = points(model, 1)
    for each in (model, copy):
        each["x"].set_value(np.linspace(0, 1, 40))
    check_equal(plainly(model, at), evaluated(copy, at))


def test_a_variable_of_the_user_is_followed_as_long_as_a_function_reads_it() -> None:
    shared = pytensor.shared(np.zeros(40))
    model = with_shared(shared)
    at = points(model, 1)
    compiled = synk.pymc.fast(model).compile_logp(mode="FAST_COMPILE")
    gc.collect()  # the copy
    shared.set_value(np.ones(40))
    np.testing.assert_allclose(compiled(at[0]), plainly(model, at)[0][0], rtol=1e-10)
    del compiled
    gc.collect()
    assert not shared.container.alive()


def test_the_density_is_nan_while_data_cannot_be_multiplied() -> None:
    copy = synk.pymc.fast(with_shared(0.0))
    compiled = copy.compile_logp(mode="FAST_COMPILE")
    at = copy.initial_point(0)
    copy["x"].set_value(np.zeros(30))
    assert np.isnan(compiled(at))
    copy["x"].set_value(np.zeros(40))
    assert np.isfinite(compiled(at))


@pytest.mark.parametrize("mode", [*thorough("FAST_COMPILE"), "NUMBA"])
def test_means_over_a_dim_whose_length_can_be_set(mode: str) -> None:
    """The number of teams is data of one element, which joins arrays of any length."""
    r = np.random.default_rng(8)
    with pm.Model(coords={"team": range(4), "match": range(60)}) as model:
        home = pm.Data("home", r.integers(0, 4, 60), dims="match")
        attack = pm.Normal("attack", dims="team")
        mu = pt.exp(attack - pt.mean(attack))[home]
        pm.Poisson("y", mu, observed=r.poisson(2, 60), dims="match")
    copy = synk.pymc.fast(model)
    at = points(model, 2)
    check_equal(plainly(model, at), evaluated(copy, at, mode))


@pytest.mark.thorough  # of both: test_data_of_the_copy_can_be_set_also_of_another_length
def test_setting_data_of_the_model_leaves_the_copy_alone() -> None:
    model = regression()
    copy = synk.pymc.fast(model)
    at = points(model, 1)
    before = evaluated(copy, at)
    with model:
        pm.set_data({"x": np.zeros(60)})
    check_equal(before, evaluated(copy, at))


def operations(model: pm.Model, outputs: list[Any], mode: str, kind: type) -> list[Any]:
    """The operations of this kind in a compiled function of the model's values."""
    function = model.compile_fn(outputs, inputs=model.value_vars, mode=mode, point_fn=False)
    return [n.op for n in function.maker.fgraph.toposort() if isinstance(n.op, kind)]


def survival(patients: int = 9, steps: int = 30) -> pm.Model:
    """A matrix of counts whose rows are its second axis, where the hazard has them."""
    r = np.random.default_rng(9)
    with pm.Model(coords={"patient": range(patients), "step": range(steps)}) as model:
        hazard = pm.Gamma("hazard", 2, 2, dims="step")
        factor = pt.exp(pm.Normal("beta") * r.normal(size=patients))
        mu = r.uniform(0.5, 2, (patients, steps)) * pt.outer(factor, hazard)
        died = r.poisson(0.5, (patients, steps))
        pm.Poisson("y", mu, observed=died, dims=("patient", "step"))
    return model


def test_data_whose_rows_are_another_axis_are_computed_once() -> None:
    """The factorials of counts are data, and memory is in the order of the loops."""
    model = survival()
    copy = synk.pymc.fast(model)
    at = points(model, 2)
    check_equal(plainly(model, at), evaluated(copy, at))
    nodes = copy.compile_logp(mode="FAST_COMPILE").f.maker.fgraph.toposort()
    assert not [n for n in nodes if "gammaln" in str(n.op).lower()]
    constants = [v.data for n in nodes for v in n.inputs if isinstance(v, Constant)]
    arrays = [a for a in constants if sorted(getattr(a, "shape", ())) == [9, 30]]
    assert arrays
    assert all(a.strides[a.shape.index(30)] == a.itemsize for a in arrays)


def shape_of(model: pm.Model, outputs: list[Any]) -> tuple[int, int]:
    """The inputs of a compiled function, those of shared variables included, and its nodes."""
    function = model.compile_fn(outputs, inputs=model.value_vars, mode="NUMBA", point_fn=False)
    graph = function.maker.fgraph
    return len(graph.inputs), len(graph.apply_nodes)


def test_constants_are_a_part_of_the_compiled_function() -> None:
    with pm.Model() as model:
        pm.StudentT("y", 3, pm.Normal("mu"), observed=np.random.default_rng(1).normal(size=40))
    copy = synk.pymc.fast(model)
    assert shape_of(copy, [copy.logp()])[0] == 1  # mu


@pytest.mark.parametrize("rows", [*thorough(40), 80])
def test_data_that_can_be_set_reach_the_function_at_a_cache_line(rows: int) -> None:
    r = np.random.default_rng(3)
    with pm.Model() as model:
        x = pm.Data("x", r.normal(size=(40, 64)))
        count = pm.Data("count", r.poisson(3, 40))
        mu = pm.math.exp(x @ pm.Normal("b", 0, 0.1, shape=64))
        pm.NegativeBinomial("y", mu=mu, alpha=2.0, observed=count)
    copy = synk.pymc.fast(model)
    compiled = copy.compile_logp(mode="FAST_COMPILE")
    with copy:
        pm.set_data({"x": r.normal(size=(rows, 64)), "count": r.poisson(3, rows)})
    arrays = [v.get_value(borrow=True) for v in compiled.f.get_shared()]
    large = [array for array in arrays if np.size(array) >= 64 * rows]
    assert large
    assert not [array for array in large if array.ctypes.data % 64]


def test_the_density_joins_the_graph_of_the_function_in_all_modes() -> None:
    copy = synk.pymc.fast(regression())
    outputs = [copy.logp(), copy.dlogp()]
    for mode in ("NUMBA", "FAST_COMPILE"):
        assert not operations(copy, outputs, mode, Density)
    assert len(operations(copy, outputs, "NUMBA", FusedElemwise)) > 0


def test_a_value_alone_is_computed_without_its_gradient() -> None:
    copy = synk.pymc.fast(regression())
    value = copy.logp()
    gradients = pt.grad(value, copy.value_vars)  # by b[0], b[1] and scale
    assert shape_of(copy, [value])[1] < shape_of(copy, [value, *gradients])[1]


def test_a_value_and_a_gradient_that_are_made_apart_are_computed_together() -> None:
    copy = synk.pymc.fast(regression())
    value = copy.logp()
    together = shape_of(copy, [value, pt.grad(value, copy.value_vars[1])])
    assert shape_of(copy, [value, pt.grad(copy.logp(), copy.value_vars[1])]) == together


@pytest.mark.thorough  # of normals: test_normals.py
def test_second_derivatives_are_those_of_the_model() -> None:
    model = regression()
    copy = synk.pymc.fast(model)
    [at] = points(model, 1)
    found = [m.compile_d2logp(negate_output=False, mode="FAST_COMPILE")(at) for m in (model, copy)]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-8)


@pytest.mark.thorough  # with data: test_values_that_are_set_reach_the_copy
def test_a_copy_that_was_pickled_is_the_same() -> None:
    model = regression()
    copy = synk.pymc.fast(model)
    at = points(model, 2)
    cloudpickle = pytest.importorskip("cloudpickle")
    check_equal(plainly(model, at), evaluated(pickle.loads(cloudpickle.dumps(copy)), at))


def test_a_model_without_rows_keeps_its_density(caplog: pytest.LogCaptureFixture) -> None:
    model = KINDS["one multivariate observation"].make()
    caplog.set_level(logging.INFO, "synkhronos")
    copy = synk.pymc.fast(model)
    assert "the log-density stays the plain one: " in caplog.text
    at = points(model, 2)
    check_equal(plainly(model, at), evaluated(copy, at))


@pytest.mark.parametrize("value", [*thorough(np.inf), np.nan])
def test_a_model_that_is_finite_nowhere_keeps_its_density(
    value: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Or whose gradient is: a covariate is infinite, or missing. It is outside of bounds then."""
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        x = np.where(np.arange(60) == 3, value, 1.0)
        pm.Bernoulli("y", logit_p=b[0] + b[1] * x, observed=np.arange(60) % 2)
    caplog.set_level(logging.INFO, "synkhronos")
    copy = synk.pymc.fast(model)
    assert "the log-density stays the plain one: the log-density of y" in caplog.text
    assert "logp" not in vars(copy)
    at = [model.initial_point(0), *points(model, 3)]
    logp, faster = (m.compile_logp(mode=IN_PYTHON) for m in (model, copy))
    with np.errstate(all="ignore"):
        assert [logp(p) for p in at] == [faster(p) for p in at]
    refused = pytest.raises(synk.InputError, match="60 values of the log-density of y are -inf")
    with refused, synk.Group(1) as group, group.active():
        synk.pymc.parallel(model)
    assert "logp" not in vars(model)


def test_what_is_refused() -> None:
    with pytest.raises(synk.InputTypeError, match=r"fast takes a pymc\.Model first; found str"):
        synk.pymc.fast("model")
    copy = synk.pymc.fast(regression())
    with pytest.raises(synk.InputError, match=r"this model comes from synk\.pymc\.fast"):
        synk.pymc.fast(copy)
    with synk.Group(1), pytest.raises(synk.InputError, match=r"comes from synk\.pymc\.fast"):
        synk.pymc.parallel(copy)
    with pytest.raises(synk.InputError, match="row_wise: 'nope' is neither the class of an"):
        synk.pymc.fast(regression(), row_wise=["nope"])
    with pm.Model() as model:
        a = pm.Normal("a")
        pm.Normal("b", a, initval=a + 1, shape=3)
        pm.Normal("y", a, observed=np.zeros(5))
    with pytest.raises(synk.InputError, match="cannot be copied: b has a symbolic initial value"):
        synk.pymc.fast(model)


def test_a_wrong_graph_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = synk.pymc._density.serial.density

    def wrong(*args: Any) -> list[Any]:
        value, *gradients = real(*args)
        return [value, *[g * pt.constant(1 + 1e-4) for g in gradients]]

    monkeypatch.setattr(synk.pymc._density.serial, "density", wrong)
    wanted = "the faster log-density of y is not the plain one"
    assert "logp" not in vars(synk.pymc.fast(regression()))
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert wanted in record.getMessage()
    with pytest.raises(synk.InputError, match=wanted):
        synk.pymc.fast(regression(), "obs")


def test_the_log_density_of_the_others_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyMC makes it anew only once the user has added a variable, which counts too."""
    copy, asked, real = synk.pymc.fast(regression()), [], pm.Model.logp

    def logp(model: pm.Model, *args: Any, **given: Any) -> Any:
        asked.append(args)
        return real(model, *args, **given)

    def value() -> float:
        found = copy.logp()
        assert found.name == "__logp"
        start = copy.initial_point(0)
        return float(found.eval({v: start[v.name] for v in copy.value_vars}, mode=IN_PYTHON))

    monkeypatch.setattr(pm.Model, "logp", logp)
    before = value()
    assert not asked
    with copy:
        pm.Potential("more", 3 * copy["scale"])
    assert value() - before == pytest.approx(3 * 2.0)
    assert len(asked) == 1


def test_observed_variables_are_asked_for_once_data_are_longer() -> None:
    """As ADVI and SMC do: a reading holds no data, and no lengths of latents."""
    with pm.Model(coords={"obs": range(20)}) as model:
        x = pm.Data("x", np.arange(20.0), dims="obs")
        latent = pm.Normal("latent", dims="obs")
        pm.Normal("y", latent, 1, observed=x, dims="obs")
        pm.Potential("p", -((latent - x) ** 2).sum())
    copy = synk.pymc.fast(model)
    values = []
    for each in (model, copy):
        with each:
            pm.set_data({"x": np.arange(30.0)}, coords={"obs": range(30)})
        graph = each.logp(vars=[each["y"]])
        values.append(graph.eval({each.value_vars[0]: np.ones(30)}, mode=IN_PYTHON))
    assert values[1] == pytest.approx(values[0])


@pytest.mark.thorough  # by sample: test_sample.py
def test_pymc_samples_the_copy_as_the_model() -> None:
    model = regression()
    given: dict[str, Any] = {"draws": 5, "tune": 20, "chains": 1, "cores": 1, "random_seed": 7}
    given |= {"progressbar": False, "compute_convergence_checks": False, "quiet": True}
    found = [
        pm.sample(model=m, nuts_sampler="pymc", **given) for m in (model, synk.pymc.fast(model))
    ]
    np.testing.assert_allclose(found[0].posterior["b"], found[1].posterior["b"], rtol=1e-6)
    assert list(found[0].posterior.data_vars) == list(found[1].posterior.data_vars)


def by_nutpie(model: pm.Model) -> Any:
    given: dict[str, Any] = {"draws": 5, "tune": 20, "chains": 2, "cores": 2, "random_seed": 7}
    given |= {"progressbar": False, "compute_convergence_checks": False, "quiet": True}
    return pm.sample(model=model, nuts_sampler="nutpie", **given).posterior


@pytest.mark.timeout(300)
def test_nutpie_samples_the_copy() -> None:
    pytest.importorskip("nutpie")
    r = np.random.default_rng(2)
    with pm.Model() as model:  # nutpie compiles little
        b = pm.Normal("b")
        pm.Poisson("y", pm.math.exp(b * r.normal(size=60)), observed=r.poisson(1, 60))
    found = by_nutpie(synk.pymc.fast(model))
    assert found["b"].shape == (2, 5)
    assert np.isfinite(found["b"]).all()
    assert found["b"].std() > 0
    assert float(found["b"][0, -1]) != float(found["b"][1, -1])


def test_nutpie_that_freezes_a_copy_is_told_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    nutpie = pytest.importorskip("nutpie")
    compile_pymc = nutpie.compile_pymc
    copy = synk.pymc.fast(regression())

    def compiled(model: pm.Model, **kwargs: object) -> None:
        own = getattr(model, "model", model)  # of a model with its graph
        raise RuntimeError("as it is" if "logp" in vars(own) else "frozen")

    monkeypatch.setattr(compile_pymc, "_make_functions", compiled)
    for freeze, found in ((False, "as it is"), (True, "frozen")):
        assert not caplog.records
        with pytest.raises(RuntimeError, match=found):
            nutpie.compile_pymc_model(copy, freeze_model=freeze)
    [record] = caplog.records
    assert record.getMessage().startswith("nutpie copies the model (freeze_dims_and_data), and the")


@pytest.mark.parametrize("package", ["pymc_marketing", "another"])
def test_whoever_freezes_a_copy_is_told_of(
    package: str, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    """In the log, which is seen where Python's warnings are off."""
    scope = {"__name__": f"{package}.model_builder", "freeze": freeze_dims_and_data}
    exec("def sampling_model(model): return freeze(model)", scope)
    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Poisson("y", pm.math.exp(b), observed=np.arange(5))
    copy = synk.pymc.fast(model)
    pm.do(copy, {"b": 0.0})
    assert not caplog.records
    assert "logp" not in vars(scope["sampling_model"](copy))
    [record] = caplog.records
    assert record.name == "synkhronos"
    assert record.getMessage().startswith(f"{package} copies the model (freeze_dims_and_data)")
    assert ("_get_sampling_model" in record.getMessage()) == (package == "pymc_marketing")
    assert not recwarn.list


@pytest.mark.thorough  # nutpie compiles both models
@pytest.mark.timeout(300)
def test_nutpie_samples_the_copy_as_the_model() -> None:
    pytest.importorskip("nutpie")
    model = regression()
    plain, found = by_nutpie(model), by_nutpie(synk.pymc.fast(model))
    np.testing.assert_allclose(found["b"], plain["b"], rtol=1e-6)
    assert set(found.data_vars) == set(plain.data_vars)


def fitted(model: pm.Model, how: str) -> np.ndarray:
    """Estimates of b by an algorithm of PyMC."""
    quiet: dict[str, Any] = {"progressbar": False, "random_seed": 3}
    if how == "map":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a dict is what all versions can return
            return np.asarray(pm.find_MAP(model=model, progressbar=False)["b"])
    if how == "advi":
        return np.asarray(pm.fit(200, model=model, **quiet).mean.eval())
    if how == "smc":
        given = {"draws": 200, "chains": 1, "cores": 1, "compute_convergence_checks": False}
        with np.errstate(all="ignore"):
            return np.asarray(pm.sample_smc(model=model, **given, **quiet).posterior["b"])
    step = {"metropolis": pm.Metropolis, "slice": pm.Slice, "demetropolis": pm.DEMetropolisZ}[how]
    given = {"draws": 20, "tune": 20, "chains": 1, "cores": 1, "quiet": True}
    with model:
        found = pm.sample(step=step(), compute_convergence_checks=False, **given, **quiet)
    return np.asarray(found.posterior["b"])


def hidden_states() -> pm.Model:
    """Nothing of it is a sum over rows."""
    y = np.random.default_rng(0).normal(size=10)

    def step(seen: Any, state: Any, mu: Any) -> Any:
        return pt.logsumexp(state[:, None] - pt.log(2.0), axis=0) - (seen - mu) ** 2

    with pm.Model() as model:
        mu = pm.Normal("mu", [-1.0, 1.0], shape=2)
        states = pytensor.scan(
            step, [pt.constant(y)], [pt.zeros(2)], non_sequences=[mu], return_updates=False
        )
        pm.Potential("seen", pt.logsumexp(states[-1]))
    return model


def test_loops_over_time_become_loops_of_numbers(caplog: Any) -> None:
    model = hidden_states()
    with caplog.at_level(logging.INFO, "synkhronos"):
        copy = synk.pymc.fast(model)
    assert "its loops over time are compiled anew" in caplog.text
    at = {"mu": np.array([0.3, -0.2])}
    given = copy.value_vars
    for outputs in ([copy.logp(), copy.dlogp()], [copy.dlogp()]):
        made = pytensor.function(given, outputs, mode="NUMBA")  # numba compiles when it is called
        kinds = {type(node.op) for node in made.maker.fgraph.apply_nodes}
        assert NumberScan in kinds
        assert not kinds & {Scan, AsInGroups}
    value = copy.compile_logp(mode=IN_PYTHON)(at)
    np.testing.assert_allclose(value, model.compile_logp(mode=IN_PYTHON)(at), rtol=1e-12)
    slope = copy.compile_dlogp(mode=IN_PYTHON)(at)
    np.testing.assert_allclose(slope, model.compile_dlogp(mode=IN_PYTHON)(at), rtol=1e-10)
    with pytest.raises(synk.InputError, match=r"comes from synk\.pymc\.fast"):
        synk.pymc.fast(copy)


@pytest.mark.thorough  # each compiles both models
@pytest.mark.parametrize("how", ["map", "advi", "smc", "metropolis", "slice", "demetropolis"])
def test_algorithms_of_pymc_take_the_copy(how: str) -> None:
    model = regression()
    plain, found = fitted(model, how), fitted(synk.pymc.fast(model), how)
    rtol = 1e-3 if how == "map" else 1e-5  # an optimiser stops where the gradient is small
    np.testing.assert_allclose(found, plain, rtol=rtol, atol=1e-6)


@pytest.mark.thorough
def test_numpyro_samples_the_copy() -> None:
    pytest.importorskip("numpyro")
    given: dict[str, Any] = {"draws": 300, "tune": 300, "chains": 1, "random_seed": 7}
    given |= {"progressbar": False, "compute_convergence_checks": False, "quiet": True}
    model = regression()
    found = [
        pm.sample(model=m, nuts_sampler="numpyro", **given) for m in (model, synk.pymc.fast(model))
    ]
    means = [np.asarray(f.posterior["b"]).mean(axis=(0, 1)) for f in found]
    np.testing.assert_allclose(means[1], means[0], atol=0.1)
