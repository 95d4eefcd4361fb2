"""Dividing a model and leaving it: what is divided, what stays, what is refused."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from comparing import IN_PYTHON, check_equal, evaluated, plainly, points
from selection import thorough
from user_scripts import run_script

import synkhronos as synk
from synkhronos._compiling import progress
from synkhronos._compiling.lean.op import Lean
from synkhronos.cli._top.watched_groups import Watch
from synkhronos.pymc._density import likelihood, proof
from synkhronos.pymc._group import likelihood as _group_likelihood
from synkhronos.pymc._group import parallel as _parallel
from synkhronos.pymc._reading import reading as _reading
from synkhronos.pymc._reading import rows as _rows

pytestmark = pytest.mark.usefixtures("lasting_groups")


def regression(rows: int = 40, name: str = "y") -> pm.Model:
    r = np.random.default_rng(1)
    with pm.Model(coords={"obs": range(rows), "feature": list("abc")}) as model:
        x = pm.Data("x", r.normal(size=(rows, 3)), dims=("obs", "feature"))
        b = pm.Normal("b", dims="feature")
        sigma = pm.HalfNormal("sigma")
        data = pm.Data("data", r.normal(size=rows), dims="obs")
        pm.Normal(name, x @ b, sigma, observed=data, dims="obs")
    return model


def test_a_plain_call_is_undone_by_close(group2: synk.Group) -> None:
    model = regression()
    parallel = synk.pymc.parallel(model)
    assert "logp" in vars(model)
    assert parallel.names == ["y"]
    assert repr(parallel) == f"<synkhronos.pymc.Parallel of y by {group2!r}>"
    parallel.close()
    parallel.close()
    assert repr(parallel) == "<synkhronos.pymc.Parallel of y by no group: closed>"
    assert "logp" not in vars(model)
    assert group2.alive


def test_the_model_of_the_context_is_meant(group2: synk.Group) -> None:
    with regression() as model, synk.pymc.parallel() as parallel:
        assert parallel.model is model


@pytest.mark.parametrize("many", [True, *thorough(False)])
def test_members_return_what_the_proof_of_many_rows_has_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, many: bool
) -> None:
    said = tmp_path / "pids"
    said.touch()

    def returned() -> None:
        with said.open("a") as file:
            print(os.getpid(), file=file)

    monkeypatch.setattr(proof, "_MANY_ROWS", 40 if many else 41)
    monkeypatch.setattr(_group_likelihood, "return_memory", returned)
    with synk.pymc.parallel(regression(40), members=2):
        pids = set(map(int, said.read_text().split()))
    assert len(pids) == (2 if many else 0)


def test_without_a_group_it_has_one_of_its_own() -> None:
    with synk.pymc.parallel(regression(), members=2) as parallel:
        own = parallel.group
        assert own is not None
        assert own.size == 2
    assert not own.alive


@pytest.mark.thorough  # nor here: test_what_takes_long_is_told
def test_pymc_does_not_keep_workers_from_being_forked(tmp_path: Path) -> None:
    """It loads pyarrow, whose allocator has a thread that is none of a fork's business."""
    out = run_script(
        tmp_path,
        """
        import warnings
        warnings.simplefilter("ignore")
        import pymc, synkhronos as synk
        with synk.Group(2) as group:
            print(group)
        """,
    )
    assert "fork, alive" in out


def test_an_error_inside_restores_the_model(group2: synk.Group) -> None:
    model = regression()
    with pytest.raises(ZeroDivisionError), synk.pymc.parallel(model):
        raise ZeroDivisionError
    assert "logp" not in vars(model)


@pytest.mark.new_group
def test_members_forget_what_is_closed(group2: synk.Group) -> None:
    for _ in range(3):
        synk.pymc.parallel(regression()).close()
        gc.collect()
    assert len(group2.member.installed) <= 1


def test_a_divided_model_is_not_divided_again(group2: synk.Group) -> None:
    model = regression()
    with synk.pymc.parallel(model), pytest.raises(synk.InputError, match="divided already"):
        synk.pymc.parallel(model)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(synk.InputTypeError, match=r"members=3\); found int 3"):
        synk.pymc.parallel(3)


@pytest.mark.parametrize("name", ["members", "members_per_chain", "chains"])
def test_counts_are_checked(name: str) -> None:
    with pytest.raises(synk.InputError, match=f"{name}=0: give an integer of at least 1"):
        synk.pymc.parallel(regression(), **{name: 0})
    with pytest.raises(synk.InputTypeError, match=f"{name}='2': give an integer of at least 1"):
        synk.pymc.parallel(regression(), **{name: "2"})


def test_a_dimension_that_is_not_there_is_refused_with_those_that_are(group2: synk.Group) -> None:
    with pytest.raises(synk.InputError, match="it has: obs, feature"):
        synk.pymc.parallel(regression(), "row")
    with pytest.raises(synk.InputError, match="no observed variable has this dimension"):
        synk.pymc.parallel(regression(), "feature")


def test_a_dimension_of_joint_entries_is_refused(group2: synk.Group) -> None:
    r = np.random.default_rng(1)
    with pm.Model(coords={"obs": range(9), "axis": range(3)}) as model:
        y = r.normal(size=(9, 3))
        pm.MvNormal("y", pm.Normal("mu", dims="axis"), np.eye(3), observed=y, dims=("obs", "axis"))
    with pytest.raises(synk.InputError, match="cannot be divided along 'axis'"):
        synk.pymc.parallel(model, "axis")
    with synk.pymc.parallel(model, "obs") as parallel:
        assert parallel.names == ["y"]


def test_set_data_of_the_same_length_and_of_others(group2: synk.Group) -> None:
    model = regression()
    r = np.random.default_rng(2)
    with synk.pymc.parallel(model):
        divided = model.compile_logp(mode=IN_PYTHON)
        plain = type(model).logp(model)
        expected = model.compile_fn(plain, mode=IN_PYTHON, inputs=model.value_vars)
        for rows in (40, 40, 17, 90):
            coords = {"obs": range(rows)}
            new = {"x": r.normal(size=(rows, 3)), "data": r.normal(size=rows)}
            with model:
                pm.set_data(new, coords=coords)
            for point in points(model, 2):
                np.testing.assert_allclose(divided(point), expected(point), rtol=1e-10)


def test_data_that_differ_in_length_are_refused(group2: synk.Group) -> None:
    model = regression()
    with synk.pymc.parallel(model):
        divided = model.compile_logp(mode=IN_PYTHON)
        model["data"].set_value(np.zeros(7))
        for _ in range(2):  # and the data of before are not used in their place
            with pytest.raises(synk.InputError, match="differ in their numbers of rows"):
                divided(points(model, 1)[0])


def test_parameters_of_another_length_are_refused(group2: synk.Group) -> None:
    r = np.random.default_rng(1)
    with pm.Model(coords={"obs": range(20)}) as model:
        model.add_coord("site", length=3)
        level = pm.Normal("level", dims="site")
        where = pm.Data("where", r.integers(0, 3, 20), dims="obs")
        pm.Normal("y", level[where], 1, observed=r.normal(size=20), dims="obs")
    with synk.pymc.parallel(model, "obs"):
        divided = model.compile_logp(mode=IN_PYTHON)
        divided({"level": np.zeros(3)})
        model.set_dim("site", 5)
        with pytest.raises(synk.InputError, match=r"had 3 elements .* now they have 5"):
            divided({"level": np.zeros(5)})


def test_no_blas_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTensor warns where it finds none to link with, and nothing here is linked."""
    looked = []
    flags = property(lambda config: looked.append(config) or "")
    monkeypatch.setattr(type(pytensor.config), "blas__ldflags", flags)
    with pm.Model() as model:
        b, s = pm.Normal("b"), pm.HalfNormal("s")
        pm.Normal("y", b * np.arange(9.0), s, observed=np.ones(9))
    likelihood.Likelihood(_reading.read(model))
    assert not looked


def test_parts_of_the_log_density(group2: synk.Group) -> None:
    """Rows one by one, priors alone and a tempered sum are what they were."""
    model = regression()
    point = points(model, 1)[0]
    asked = {
        "rows": lambda: model.compile_logp(sum=False, mode=IN_PYTHON)(point),
        "free": lambda: model.compile_logp(vars=model.free_RVs, mode=IN_PYTHON)(point),
        "observed": lambda: model.compile_logp(vars=model.observed_RVs, mode=IN_PYTHON)(point),
        "one": lambda: model.compile_logp(vars=[model["b"], model["y"]], mode=IN_PYTHON)(point),
        "no jacobian": lambda: model.compile_logp(jacobian=False, mode=IN_PYTHON)(point),
    }
    plain = {name: ask() for name, ask in asked.items()}
    with synk.pymc.parallel(model):
        for name, ask in asked.items():
            for a, b in (
                zip(np.atleast_1d(plain[name]), np.atleast_1d(ask()), strict=True)
                if (name != "rows")
                else zip(plain[name], ask(), strict=True)
            ):
                np.testing.assert_allclose(b, a, rtol=1e-12)


def test_a_subset_of_several_observed_variables_is_plain(group2: synk.Group) -> None:
    r = np.random.default_rng(1)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        for name in ("y", "z"):
            pm.Normal(name, mu, 1, observed=r.normal(size=30))
    point = points(model, 1)[0]
    plain = model.compile_logp(vars=[model["z"]], mode=IN_PYTHON)(point)
    with synk.pymc.parallel(model):
        assert model.compile_logp(vars=[model["z"]], mode=IN_PYTHON)(point) == plain


def test_tempered_value_and_gradient(group2: synk.Group) -> None:
    model = regression()
    x = np.linspace(-0.5, 0.5, 4)

    def value() -> tuple[float, np.ndarray]:
        f = model.logp_dlogp_function(tempered=True, ravel_inputs=True, mode=IN_PYTHON)
        f.set_weights(np.array([0.3]))
        f.set_extra_values({})
        return f._pytensor_function(x)

    plain = value()
    with synk.pymc.parallel(model):
        for a, b in zip(plain, value(), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-10)


def test_second_derivatives_are_refused(group2: synk.Group) -> None:
    model = regression()
    with synk.pymc.parallel(model), pytest.raises(Exception, match="no second derivatives"):
        model.compile_d2logp(mode=IN_PYTHON)


def test_invalid_parameters_give_minus_infinity(group2: synk.Group) -> None:
    with pm.Model() as model:
        sigma = pm.Normal("sigma")
        pm.Normal("y", 0, sigma, observed=np.arange(9.0))
    at = [{"sigma": np.array(s)} for s in (-1.0, 2.0)]
    plain = evaluated(model, at)
    assert plain[0][0] == -np.inf
    with synk.pymc.parallel(model):
        check_equal(plain, evaluated(model, at))


def test_a_model_without_checks(group2: synk.Group) -> None:
    with pm.Model(check_bounds=False) as model:
        pm.Normal("y", pm.Normal("mu"), pm.HalfNormal("sigma"), observed=np.arange(9.0))
    at = points(model, 2)
    plain = plainly(model, at)
    with synk.pymc.parallel(model):
        check_equal(plain, evaluated(model, at))


@pytest.mark.parametrize("dtype", [*thorough("float32"), "float64"])
def test_single_precision(group2: synk.Group, dtype: str) -> None:
    """Also of parameters alone, beside data in double precision."""
    import pytensor

    with pytensor.config.change_flags(floatX="float32"):
        r = np.random.default_rng(0)
        with pm.Model() as model:
            b = pm.Normal("b", shape=2)
            x = r.normal(size=(30, 2)).astype(dtype)
            noise, scale = pm.Normal("noise", shape=30), pm.HalfNormal("scale")
            tails = pm.StudentT.dist(4, mu=b[0], sigma=scale)
            density = pm.logp(tails, r.normal(size=30).astype(dtype))
            pm.Potential("p", 3 * density.sum() - 100 * b[1])
            pm.Normal("y", x @ b + noise, scale, observed=r.normal(size=30).astype(dtype))
        point = points(model, 1)[0]
        point = {k: v.astype("float32") for k, v in point.items()}
        plain = evaluated(model, [point])[0]
        with synk.pymc.parallel(model):
            divided = evaluated(model, [point])[0]
    np.testing.assert_allclose(divided[0], plain[0], rtol=1e-5)
    np.testing.assert_allclose(divided[1], plain[1], rtol=1e-3, atol=1e-4)


def test_what_is_left_alone_stays_serial(group2: synk.Group) -> None:
    """A term without the named dimension; a potential that sums rows."""
    r = np.random.default_rng(1)
    with pm.Model(coords={"obs": range(30), "site": range(4)}) as model:
        mu = pm.Normal("mu", dims="site")
        where = r.integers(0, 4, 30)
        pm.Normal("y", mu[where], 1, observed=r.normal(size=30), dims="obs")
        pm.Normal("z", mu, 1, observed=r.normal(size=4), dims="site")
        pm.Potential("p", -pt.sum(mu**2))
    at = points(model, 2)
    plain = plainly(model, at)
    with synk.pymc.parallel(model, "obs") as parallel:
        assert parallel.names == ["y"]
        check_equal(plain, evaluated(model, at))


def test_wrong_parts_are_found_and_named(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading that takes one term twice is refused by the proof, with the term's name."""
    r = np.random.default_rng(1)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("good", mu, 1, observed=r.normal(size=30))
        pm.Normal("bad", mu, 1, observed=r.normal(size=50))
    read = _rows.Reader.read

    def wrong(self: _rows.Reader, terms: list[_rows.Term], checked: bool = True) -> object:
        found = read(self, terms, checked)
        return replace(found, total=found.total * (1 + 1e-6)) if found.rows == 50 else found

    monkeypatch.setattr(_rows.Reader, "read", wrong)
    with pytest.raises(synk.InputError, match="the parts of bad do not add up: the log-density"):
        synk.pymc.parallel(model)
    assert "logp" not in vars(model)


def test_a_wrong_gradient_is_found(group2: synk.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    model = regression()
    joined = likelihood._joined

    def wrong(total: object, slots: list[tuple[int, object]]) -> object:
        return joined(total, [(n, g if g is None else g * (1 + 1e-6)) for n, g in slots])

    monkeypatch.setattr(likelihood, "_joined", wrong)
    with pytest.raises(synk.InputError, match="the gradient by"):
        synk.pymc.parallel(model)


def test_a_log_density_that_is_finite_nowhere_cannot_be_proved(group2: synk.Group) -> None:
    with pm.Model() as model:
        pm.Poisson("y", pm.HalfNormal("mu"), observed=[1, -2, 3])
    wanted = "not finite at the initial point.* 1 of 3 values of the log-density of y are -inf"
    with pytest.raises(synk.InputError, match=wanted):
        synk.pymc.parallel(model)


def test_the_proof_compares_several_points(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proof.POINTS >= 3
    model = regression()
    first = _reading.read(model).facts.start()
    place = [v.name for v in first].index("sigma_log__")
    start, *at = [float(point[place]) for point in proof.points(first)]
    assert start == float(model.initial_point(0)["sigma_log__"])
    assert len(set(at)) == len(at) > 2 * proof.POINTS


def test_min_speedup_leaves_the_model_alone_and_says_so(
    group2: synk.Group, caplog: pytest.LogCaptureFixture
) -> None:
    model = regression()
    with caplog.at_level(logging.WARNING, "synkhronos"):
        parallel = synk.pymc.parallel(model, min_speedup=1000.0)
    assert parallel.names == []
    assert "logp" not in vars(model)
    assert "min_speedup is 1000" in caplog.text
    with synk.pymc.parallel(model, min_speedup=1e-6) as parallel:
        assert parallel.names == ["y"]


def test_a_function_that_outlives_the_division_says_so(group2: synk.Group) -> None:
    model = regression()
    with synk.pymc.parallel(model):
        kept = model.compile_logp(mode=IN_PYTHON)
        point = points(model, 1)[0]
        kept(point)
    with pytest.raises(synk.GroupClosed, match="not divided any more"):
        kept(point)


def test_a_frozen_model_keeps_no_function_of_another_log_density(group2: synk.Group) -> None:
    from pymc.model.transform.optimization import freeze_model

    model = freeze_model(regression())
    at = points(model, 2)
    plain = plainly(model, at)
    with synk.pymc.parallel(model) as parallel:
        rounds = count_rounds(parallel)
        check_equal(plain, evaluated(model, at))
        assert rounds[0] == 4
    check_equal(plain, evaluated(model, at))


@pytest.mark.thorough  # of one group: test_members_forget_what_is_closed
def test_two_divided_models_are_left_in_any_order(group2: synk.Group) -> None:
    models = [regression(), regression(50)]
    first, second = [synk.pymc.parallel(m) for m in models]
    first.close()
    assert models[1].compile_logp(mode=IN_PYTHON)(points(models[1], 1)[0]) < 0
    second.close()


def test_find_map_advi_and_smc_run_divided(group2: synk.Group) -> None:
    import warnings

    model = regression(60)
    with warnings.catch_warnings(), synk.pymc.parallel(model) as parallel, model:
        warnings.simplefilter("ignore")
        assert parallel._evaluator is not None
        rounds = count_rounds(parallel)
        peak = pm.find_MAP(progressbar=False)
        after_map = rounds[0]
        fit = pm.fit(30, progressbar=False)
        after_advi = rounds[0]
        smc = pm.sample_smc(20, chains=1, cores=1, progressbar=False)
    assert 0 < after_map < after_advi < rounds[0]
    assert fit.hist.shape == (30,)
    assert smc.posterior.sizes["draw"] == 20
    x, y = model["x"].get_value(), model["data"].get_value()
    gradient = x.T @ (y - x @ peak["b"]) / peak["sigma"] ** 2 - peak["b"]
    np.testing.assert_allclose(gradient, 0, atol=1e-3)


def count_rounds(parallel: synk.pymc.Parallel) -> list[int]:
    """A counter of evaluations, in a list."""
    counted = [0]
    assert parallel._evaluator is not None
    inner = parallel._evaluator._group_likelihood

    def call(*given: object) -> object:
        counted[0] += 1
        return inner(*given)

    call.group = inner.group  # type: ignore[attr-defined]
    parallel._evaluator._group_likelihood = call
    return counted


def asked(parallel: synk.pymc.Parallel, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each evaluation, whether its gradient is asked for."""
    found: list[bool] = []
    evaluator: Any = parallel._evaluator
    real = type(evaluator).__call__

    def call(self: Any, theta: Any, latents: Any, gradient: bool = True) -> Any:
        found.append(gradient)
        return real(self, theta, latents, gradient)

    monkeypatch.setattr(type(evaluator), "__call__", call)
    return found


def by_rows(rows: int, latent: bool) -> pm.Model:
    """Two likelihoods, of different lengths, perhaps with a parameter for each row."""
    r = np.random.default_rng(7)
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        each = pm.Normal("each", shape=rows) if latent else 0.0
        x = pm.Data("x", r.normal(size=(rows, 2)))
        pm.Poisson("y", pm.math.exp(x @ b + each), observed=r.poisson(2, rows))
        pm.Normal("z", b[0], 1, observed=r.normal(size=9))
    return model


@pytest.mark.parametrize(("rows", "latent"), [*thorough((30, False)), (30, True), (2500, False)])
def test_a_value_alone_is_evaluated_without_its_gradient(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch, rows: int, latent: bool
) -> None:
    """Also between gradients, and of other data; few rows are evaluated by the master."""
    model = by_rows(rows, latent)
    at = points(model, 3)
    with synk.pymc.parallel(model) as parallel:
        value, gradient = model.compile_logp(), model.compile_dlogp()
        found = asked(parallel, monkeypatch)
        values = [value(at[0]), gradient(at[1]), value(at[1]), value(at[2])]
        assert found == [False, True, False, False]
        for each in range(3):
            model["x"].set_value(model["x"].get_value() * (1 + 0.1 * each))
            values += [value(at[each]), gradient(at[each])]
    model["x"].set_value(by_rows(rows, latent)["x"].get_value())
    value, gradient = model.compile_logp(), model.compile_dlogp()
    plain = [value(at[0]), gradient(at[1]), value(at[1]), value(at[2])]
    for each in range(3):
        model["x"].set_value(model["x"].get_value() * (1 + 0.1 * each))
        plain += [value(at[each]), gradient(at[each])]
    for ours, theirs in zip(values, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mode", thorough("NUMBA", "CVM"))  # in Python: the test above
def test_a_value_alone_in_compiled_functions(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    model = by_rows(40, True)
    at = points(model, 2)[1]
    plain = model.compile_logp()(at), model.compile_dlogp()(at)
    with synk.pymc.parallel(model, mode="FAST_COMPILE") as parallel:
        value = model.compile_logp(mode=mode)
        both = model.logp_dlogp_function(ravel_inputs=True, mode=mode)
        found = asked(parallel, monkeypatch)
        np.testing.assert_allclose(value(at), plain[0], rtol=1e-10)
        both.set_extra_values({})
        flat = np.concatenate([np.ravel(at[v.name]) for v in model.continuous_value_vars])
        first, second = both(flat)
        np.testing.assert_allclose(first, plain[0], rtol=1e-10)
        np.testing.assert_allclose(second, plain[1], rtol=1e-8)
        assert found == [False, True]


def test_a_step_without_gradients_evaluates_values(
    group2: synk.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = by_rows(30, False)
    given: dict[str, Any] = {"draws": 4, "tune": 4, "chains": 1, "cores": 1, "random_seed": 7}
    given |= {"progressbar": False, "quiet": True, "compute_convergence_checks": False}
    draws = []
    with synk.pymc.parallel(model) as parallel:
        found = asked(parallel, monkeypatch)
        draws.append(pm.sample(step=pm.Slice(model=model), model=model, **given).posterior["b"])
        assert len(found) > 8
        assert not any(found)
    draws.append(pm.sample(step=pm.Slice(model=model), model=model, **given).posterior["b"])
    np.testing.assert_allclose(draws[0], draws[1], rtol=1e-6)


def test_data_with_rows_on_another_axis(group2: synk.Group) -> None:
    """The row axis may be any; and a variable may be used by rows and as a whole."""
    r = np.random.default_rng(1)
    with pm.Model(coords={"k": range(3), "obs": range(25)}) as model:
        level = pm.Normal("level", shape=25)
        x = r.normal(size=(3, 25))
        mean = level[None, :] * x + level.mean()
        y = r.normal(size=(3, 25))
        pm.Normal("y", mean, 1, observed=y, dims=("k", "obs"))
    at = points(model, 2)
    plain = plainly(model, at)
    with synk.pymc.parallel(model, "obs"):
        check_equal(plain, evaluated(model, at))


def test_parameters_of_each_row_that_are_added(group2: synk.Group) -> None:
    """Their gradients are one output of the members, which is written for each."""
    with pm.Model() as model:
        first, second = pm.Normal("first", shape=9), pm.Normal("second", shape=9)
        pm.Normal("y", first + second + first[::-1], 1, observed=np.arange(9.0))
    at = points(model, 2)
    plain = plainly(model, at)
    with synk.pymc.parallel(model):
        check_equal(plain, evaluated(model, at))


@pytest.mark.parametrize("shape", [(), (1, 1), (0,), (0, 3)])
def test_terms_of_a_single_row_or_none_stay(shape: tuple[int, ...]) -> None:
    """Without a line of the log; alone in a model they are refused."""
    for rows in (0, 20):
        with pm.Model() as model:
            mu = pm.Normal("mu")
            pm.Normal("few", mu, 1, observed=np.zeros(shape))
            if rows:
                pm.Normal("y", mu, 1, observed=np.zeros(rows))
        if rows:
            found = _reading.read(model)
            assert (found.names, found.stays) == (["y"], {})
        else:
            with pytest.raises(synk.InputError, match=r"\(few\) have one row each, or none"):
                _reading.read(model)


def test_what_takes_long_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a model is read, compiled and proved; no thread is left for `pm.sample` to fork."""
    monkeypatch.setattr(progress, "FIRST", 0.001)
    monkeypatch.setattr(progress._LogLines, "pause", 0.001)
    read = _parallel.read
    monkeypatch.setattr(_parallel, "read", lambda *args: (time.sleep(0.2), read(*args))[1])
    with caplog.at_level(logging.INFO, "synkhronos"), synk.Group(2) as group, pm.Model():
        pm.Normal("y", pm.Normal("mu"), 1, observed=np.arange(5.0))
        with synk.pymc.parallel(mode="FAST_COMPILE"):
            assert threading.active_count() == 1
        assert group.channel.started == "fork"
    said = caplog.text
    assert "reading the model: " in said
    assert "compiling and proving y: " in said


def test_the_function_of_a_divided_model_compiles_soon(group2: synk.Group) -> None:
    """PyMC compiles it. A split of the vector of parameters else takes 2 s."""
    model = regression()

    def is_lean() -> bool:
        with pytensor.config.change_flags(mode="NUMBA"):
            function = model.logp_dlogp_function(ravel_inputs=True)._pytensor_function
        return any(isinstance(node.op, Lean) for node in function.maker.fgraph.apply_nodes)

    with synk.pymc.parallel(model):
        assert is_lean()
    assert not is_lean()


def test_rounds_in_a_trace(group2: synk.Group) -> None:
    """Each evaluation is a command in all members; `synk top` names it, too."""
    model = regression()
    with synk.pymc.parallel(model):
        logp = model.compile_logp(mode="FAST_COMPILE")
        point = model.initial_point()
        logp(point)
        with group2.trace() as trace:
            logp(point), logp(point)
            [seen] = [g for g in Watch().look() if g.pid == os.getpid()]
    for rank in (0, 1):
        names = [e["name"] for e in trace.events() if e["ph"] == "X" and e["tid"] == rank]
        assert names.count("the log-density of y") == 2
    assert seen.what == "the log-density of y"


def test_a_divided_copy_leaves_the_model_as_it_is() -> None:
    with pm.Model() as model:
        mu = pm.Normal("mu", initval=0.5)
        pm.Poisson("y", pm.math.exp(mu), observed=np.arange(30))
    copy = synk.pymc.divide(model, members=2)
    try:
        assert copy.division.names == ["y"]
        assert copy.division.group.size == 2
        assert "logp" in vars(copy)
        assert "logp" not in vars(model)
        at = points(model, 2)
        check_equal(evaluated(model, at), evaluated(copy, at))
        with pytest.raises(synk.InputError, match="divided already"):
            synk.pymc.divide(copy)
    finally:
        copy.division.close()
    assert "logp" not in vars(copy)
