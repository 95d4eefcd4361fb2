"""`synk.pymc.sample`: chains and members in one call."""

from __future__ import annotations

import functools
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pymc as pm
import pytest
from pymc.step_methods.compound import Competence
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from selection import thorough
from xarray import Dataset, DataTree, testing

import synkhronos as synk
from synkhronos._backends import mpi
from synkhronos._compiling import progress
from synkhronos._errors import InputError, InputTypeError, WorkerDied
from synkhronos.pymc._chains import members as _members
from synkhronos.pymc._chains import processes as _chain_processes
from synkhronos.pymc._chains import sampling
from synkhronos.pymc._chains.members import Sampling
from synkhronos.pymc._chains.sampling import sampler_of
from synkhronos.pymc._density import step_methods
from synkhronos.pymc._density.divided import Divided
from synkhronos.pymc._group.advice import Advice, ModeAdvice

DEMOS = Path(__file__).parents[2] / "demos" / "pymc"
SHORT = {"draws": 6, "tune": 6, "random_seed": 7, "progressbar": False} | {
    "compute_convergence_checks": False
}


@pytest.fixture(autouse=True)
def _few_draws() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def model_of(rows: int = 80) -> pm.Model:
    r = np.random.default_rng(4)
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        pm.Poisson("y", pm.math.exp(r.normal(size=(rows, 2)) @ b), observed=r.poisson(1, rows))
    return model


def walk() -> pm.Model:
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma")
        steps = np.random.default_rng(0).normal(size=30).cumsum()
        pm.GaussianRandomWalk("y", sigma=sigma, init_dist=pm.Normal.dist(), observed=steps)
    return model


def advice(cores: int, **given: Any) -> Advice:
    """Of a second for all rows, and a gradient that takes 2 seconds plain."""
    known = {
        "plain": 2.0,
        "plain_threads": 2.0,
        "rest": 0.1,
        "parts": {1: 1.0, 2: 0.5, 4: 0.25, 8: 0.125},
        "round": 0.01,
        "sampler": 0.5,
    } | given
    return Advice(("y",), (100,), cores, (ModeAdvice("NUMBA", **known),))


def planned(measured: Advice, chains: int, sampler: str = "pymc") -> Sampling:
    """A plan from measurements, without a group."""
    made = object.__new__(Sampling)
    sizes: list[int] = []
    made.__dict__.update(
        _cores=measured.cores,
        _sampler=sampler,
        _several_nodes=False,
        slower="",
        group=SimpleNamespace(size=measured.cores),
        _evaluator=SimpleNamespace(give_each_chain=sizes.append),
        _measured=lambda mode, cores: measured,
        close=lambda: None,
    )
    made._plan_chains(chains, None, None)
    assert made.plan is not None
    assert sizes == [made.plan.members]
    return made


@pytest.fixture
def nothing_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models are prepared as large ones."""
    monkeypatch.setattr(sampling, "_CHEAP_SECONDS", 0.0)
    monkeypatch.setattr(sampling, "_LONG_SECONDS", 0.0)


def test_cores_go_to_chains_first_and_then_to_members() -> None:
    for chains, cores, members, at_once in [(4, 8, 2, 4), (2, 8, 4, 2), (1, 8, 8, 1)]:
        found = planned(advice(cores), chains)
        assert found.plan is not None
        assert (found.plan.members, found.plan.at_once, found.slower) == (members, at_once, "")
        assert found.sampling == {"chains": chains, "cores": at_once, "nuts_sampler": "pymc"}


def test_chains_of_jax_take_turns_if_that_is_faster_than_plain_chains() -> None:
    alone = planned(advice(8), 1, "numpyro")
    assert alone.sampling == {"chains": 1, "cores": 1, "nuts_sampler": "numpyro"}
    assert not alone.slower
    # four plain chains at once take 2 s, in turn by 8 members 4 * 0.235 s
    assert not planned(advice(8), 4, "numpyro").slower
    # and by 2 members 4 * 0.61 s
    slower = planned(advice(2, plain=1.1), 4, "numpyro").slower
    assert "2440.000 ms, and plain 2200.000 ms" in slower
    assert "91 %" in slower


def test_members_must_be_faster_than_one_core_without_them() -> None:
    """One core takes 0.1 + 1.0 s, two members 0.1 + 0.5 s and a round; the sampler takes 0.5 s."""
    assert not planned(advice(2), 1, "nutpie").slower
    slower = planned(advice(2, round=0.6), 1, "nutpie").slower
    assert "1700.000 ms, and on one core 1600.000 ms" in slower


@pytest.mark.parametrize(("sampler", "at_once"), [("numpyro", 1), ("pymc", 4), ("nutpie", 4)])
def test_named_members_leave_other_samplers_one_chain_at_a_time(sampler: str, at_once: int) -> None:
    made = planned(advice(8), 4, sampler)
    made._asked = 2
    made._plan_chains(4, 2, None)
    assert made.plan is not None
    assert made.sampling["cores"] == made.plan.at_once == at_once


def test_the_sampler_is_that_of_pm_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    has_nutpie = sampling._has_nutpie
    monkeypatch.setattr(sampling, "_has_nutpie", lambda: True)
    numba = {"compile_kwargs": {"mode": "NUMBA"}}
    assert sampler_of(model, numba) == "nutpie"
    assert sampler_of(model, {}) == "pymc"  # tests run in mode FAST_COMPILE
    assert sampler_of(model, {"nuts_sampler": "numpyro"}) == "numpyro"
    for name, value in [("callback", print), ("init", "adapt_diag"), ("initvals", [{}])]:
        assert sampler_of(model, numba | {name: value}) == "pymc"
    with pm.Model() as discrete:
        pm.Poisson("y", pm.DiscreteUniform("k", 1, 20), observed=np.arange(30))
    assert sampler_of(discrete, numba) == "pymc"
    with pm.Model() as stepped:
        pm.Normal("y", Stepped()(pm.Normal("a")) + pm.Normal("b"), observed=np.zeros(9))
    assert sampler_of(stepped, numba) == "pymc"  # Slice for a
    monkeypatch.setattr(step_methods, "STEP_METHODS", [*step_methods.STEP_METHODS, ForPoisson])
    with pm.Model() as claimed:
        pm.Poisson("y", pm.math.exp(pm.Normal("a")), observed=np.arange(9))
    assert sampler_of(claimed, numba) == "pymc"
    monkeypatch.setattr(sampling, "_has_nutpie", has_nutpie)
    monkeypatch.setattr(sampling, "NUTPIE_INSTALLED", False)
    assert sampler_of(model, numba) == "pymc"


def test_a_nutpie_that_is_too_old_for_pymc_does_not_sample(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in `pm.sample`; a line says so."""
    pytest.importorskip("nutpie")
    caplog.set_level(logging.INFO, "synkhronos")
    monkeypatch.setattr("pymc.sampling.mcmc.NUTPIE_MIN_VERSION", (99, 0, 0))
    assert sampler_of(model_of(), {"compile_kwargs": {"mode": "NUMBA"}}) == "pymc"
    assert "this nutpie is too old for PyMC, whose own NUTS samples: " in caplog.text


def test_members_that_a_system_lacks_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, nothing_is_cheap: None
) -> None:
    caplog.set_level(logging.INFO, "synkhronos")
    monkeypatch.setattr(sampling, "trouble", lambda: "this is macOS")
    given = SHORT | {"chains": 1, "nuts_sampler": "pymc", "members_per_chain": 2}
    synk.pymc.sample(model_of(), **given)
    assert "members_per_chain=2 is left out: this is macOS" in caplog.messages
    assert any(m.startswith("1 chain with a faster density on one core") for m in caplog.messages)


class Stepped(Op):
    """An operation without a gradient."""

    def make_node(self, value: Any) -> Apply:
        return Apply(self, [value], [value.type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = np.asarray(inputs[0] ** 3)


class ForPoisson(pm.Slice):
    """A step method that other packages add, which claims parameters for itself."""

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Competence:
        return Competence.IDEAL


@pytest.mark.parametrize(
    "mode", ["FAST_COMPILE", pytest.param("NUMBA", marks=pytest.mark.thorough)]
)
def test_a_parameter_without_a_gradient_gets_slice(
    mode: str, plans: Callable[[], list[str]], nothing_is_cheap: None
) -> None:
    with pm.Model() as model:
        mean = Stepped()(pm.Normal("a")) + pm.Normal("b")
        pm.Poisson("y", pm.math.exp(mean), observed=np.arange(60) % 4)
    given = SHORT | {"chains": 1, "cores": 1, "compile_kwargs": {"mode": mode}}
    found = synk.pymc.sample(model, **given)
    assert plans() == ["1 chain with a faster density on one core each, by pymc"]
    plain = pm.sample(model=model, **given)
    for name in ("a", "b"):
        np.testing.assert_allclose(found.posterior[name], plain.posterior[name], rtol=1e-6)


def test_quiet_says_nothing(
    plans: Callable[[], list[str]],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    nothing_is_cheap: None,
) -> None:
    monkeypatch.setattr(sampling.OnOneCore, "sample", lambda way, **given: given)
    monkeypatch.setattr(progress, "FIRST", 0.0)
    given = SHORT | {"chains": 1, "cores": 1, "nuts_sampler": "pymc"}
    synk.pymc.sample(model_of(), quiet=True, **given)
    synk.pymc.sample(walk(), quiet=True, **given | {"draws": 1, "tune": 0})
    assert plans() == []
    assert capfd.readouterr() == ("", "")
    synk.pymc.sample(model_of(), **given)
    assert len(plans()) == 1


def test_chains_follow_cores_as_in_pm_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_sample", lambda model, dim, chains, *others: chains)
    model = model_of()
    assert [synk.pymc.sample(model, cores=n) for n in (1, 2, 6)] == [2, 2, 6]
    assert synk.pymc.sample(model, cores=6, chains=3) == 3
    monkeypatch.setattr(sampling._cores, "available", lambda: range(32))
    assert synk.pymc.sample(model) == 4


@pytest.mark.usefixtures("nothing_is_cheap")
def test_an_inner_model_is_sampled_as_pm_sample_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "pm_sample", lambda **given: given["model"])
    with pm.Model():
        pm.Normal("a")
        with pm.Model("inner") as inner:
            pm.Normal("y", pm.Normal("b"), observed=np.zeros(9))
            assert synk.pymc.sample(**SHORT) is inner
    assert synk.pymc.sample(inner, members_per_chain=2, **SHORT) is inner


ARGUMENTS: dict[str, dict[str, Any]] = {
    "return_inferencedata": {"return_inferencedata": False},
    "keep_warning_stat": {"keep_warning_stat": True},
    "idata_kwargs": {"idata_kwargs": {"log_likelihood": True, "include_transformed": True}},
    "coords": {"idata_kwargs": {"coords": {"b_dim_0": ["x", "z"]}}},
    "target_accept": {"target_accept": 0.95},
    "nuts": {"nuts": {"target_accept": 0.9, "max_treedepth": 5}},
    "init": {"init": "adapt_diag"},
    "initvals": {"initvals": [{"b": [0.5, 0.0]}, {"b": [0.0, 0.5]}]},
    "tune": {"tune": 0},
    "chains": {"chains": 8},
    "processes": {"cores": 2, "mp_ctx": "fork"},
    "blas_cores": {"blas_cores": None},
    "var_names": {"var_names": ["b"]},
    "warm-up kept": {"discard_tuned_samples": False},
    "callback": {"callback": lambda trace, draw: None},
}


@pytest.mark.parametrize("way", ["one core", *thorough("as it is", "members")])
@pytest.mark.parametrize("name", ["nuts", *thorough(*sorted(ARGUMENTS.keys() - {"nuts"}))])
def test_arguments_mean_what_they_mean_to_pm_sample(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "one core":
        monkeypatch.setattr(sampling, "_CHEAP_SECONDS", 0.0)
    given = SHORT | {"chains": 2, "cores": 1, "nuts_sampler": "pymc"} | ARGUMENTS[name]
    own = {"members_per_chain": 1} if way == "members" else {}
    found = synk.pymc.sample(model_of(), **given, **own)
    plain = pm.sample(model=model_of(), **given)
    if name == "return_inferencedata":
        assert found.varnames == plain.varnames
        found, plain = (
            DataTree.from_dict({"all": Dataset({"b": (("d", "i"), t["b"])})})
            for t in (found, plain)
        )
    assert list(found) == list(plain)
    for group in plain:
        ours, theirs = (each[group].to_dataset() for each in (found, plain))
        assert list(ours.data_vars) == list(theirs.data_vars)
        for key in theirs.data_vars:
            if key in TIMED or theirs[key].dtype == object:
                assert ours[key].sizes == theirs[key].sizes
            else:
                testing.assert_allclose(ours[key], theirs[key], rtol=1e-5, atol=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("own", [{}, {"members_per_chain": 1}])
def test_no_draws_are_the_error_of_pm_sample(own: dict[str, int]) -> None:
    given = SHORT | {"chains": 1, "cores": 1, "nuts_sampler": "pymc", "draws": 0}
    for sample in (pm.sample, functools.partial(synk.pymc.sample, **own)):
        with pytest.raises(ValueError, match="Not enough samples to build a trace"):
            sample(model=model_of(), **given)


# of statistics: processor and clock times, and what differs by rounding alone
TIMED = ["perf_counter_diff", "perf_counter_start", "process_time_diff", "energy_error"]


def test_chains_in_processes_draw_what_one_after_another_draw(
    plans: Callable[[], list[str]],
) -> None:
    model = model_of()
    given = SHORT | {"chains": 2, "members_per_chain": 1}
    several = synk.pymc.sample(model, cores=2, **given)
    in_turn = synk.pymc.sample(model, cores=1, **given)
    np.testing.assert_array_equal(several.posterior["b"], in_turn.posterior["b"])
    assert several.posterior.sizes == {"chain": 2, "draw": 6, "b_dim_0": 2}
    there = len(os.sched_getaffinity(0))
    first, second = plans()
    if there > 1:
        assert first == "2 chains, 2 at once with 1 member each"
    assert second == "2 chains, one after another, with 1 member"
    assert "logp" not in vars(model)


@pytest.mark.thorough  # of the divided model: test_samplers.py
def test_the_number_of_members_changes_rounding_only() -> None:
    model, given = model_of(), SHORT | {"chains": 1, "draws": 5, "tune": 0}
    plain = pm.sample(model=model, cores=1, nuts_sampler="pymc", **given).posterior["b"]
    for members in (1, 2):
        found = synk.pymc.sample(model, members_per_chain=members, **given)
        np.testing.assert_allclose(found.posterior["b"], plain, rtol=1e-6)


def test_a_model_that_cannot_be_divided_is_sampled_plainly(
    plans: Callable[[], list[str]],
) -> None:
    model, given = walk(), SHORT | {"chains": 1, "nuts_sampler": "pymc"}
    found = synk.pymc.sample(model, **given)
    [line] = plans()
    assert line.startswith("the model is sampled plainly: ")
    assert "rows depend on one another" in line
    plain = pm.sample(model=model, cores=1, **given)
    np.testing.assert_array_equal(found.posterior["sigma"], plain.posterior["sigma"])
    with pytest.raises(InputError, match="not a dimension of the model"):
        synk.pymc.sample(model, dim="obs", **given)


def test_a_model_without_continuous_parameters_is_sampled(
    plans: Callable[[], list[str]], nothing_is_cheap: None
) -> None:
    with pm.Model() as model:
        pm.Poisson("y", pm.DiscreteUniform("k", 1, 20), observed=np.arange(30))
    given = SHORT | {"chains": 1, "cores": 1}
    idata = synk.pymc.sample(model, **given)
    assert plans() == ["1 chain with a faster density on one core each, by pymc"]
    plain = pm.sample(model=model, **given)
    np.testing.assert_array_equal(idata.posterior["k"], plain.posterior["k"])


def test_a_model_that_is_cheap_to_sample_is_sampled_plainly(
    plans: Callable[[], list[str]],
) -> None:
    model, given = model_of(), SHORT | {"chains": 1, "nuts_sampler": "pymc"}
    found = synk.pymc.sample(model, cores=2, **given)
    [line] = plans()
    assert line.startswith("the model is sampled plainly: the gradients of its 80 rows take about ")
    assert "logp" not in vars(model)
    plain = pm.sample(model=model, cores=1, **given)
    np.testing.assert_array_equal(found.posterior["b"], plain.posterior["b"])


def test_members_that_would_not_be_faster_are_left_out(
    plans: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch, nothing_is_cheap: None
) -> None:
    model, given = model_of(), SHORT | {"chains": 1, "nuts_sampler": "pymc"}
    measured: list[int] = []
    monkeypatch.setattr(
        Sampling,
        "_measured",
        lambda s, mode, cores: measured.append(cores) or advice(cores, round=9.0),
    )
    found = synk.pymc.sample(model, cores=2, **given)
    assert plans() == ["1 chain with a faster density on one core each, by pymc"]
    assert measured == [2]
    plain = pm.sample(model=model, cores=1, **given)
    np.testing.assert_allclose(found.posterior["b"], plain.posterior["b"], rtol=1e-6)


def test_a_measured_plan_is_carried_out(
    plans: Callable[[], list[str]], nothing_is_cheap: None
) -> None:
    """With real measurements, either line is right; the draws are there."""
    found = synk.pymc.sample(model_of(), chains=1, **SHORT)
    [line] = plans()
    assert line.startswith("1 chain with ")
    assert found.posterior.sizes["chain"] == 1


def test_an_error_of_the_sampler_is_not_taken_for_one_of_the_model(
    monkeypatch: pytest.MonkeyPatch, nothing_is_cheap: None
) -> None:
    def failing(**given: Any) -> None:
        raise InputError("of the sampler")

    monkeypatch.setattr(sampling, "pm_sample", failing)
    model = model_of()
    with pytest.raises(InputError, match="of the sampler"):
        synk.pymc.sample(model, chains=2, cores=1, **SHORT)
    assert "logp" not in vars(model)


@pytest.mark.thorough  # two processes compile with nutpie
@pytest.mark.timeout(300)
def test_chains_of_nutpie_with_members_have_processes(
    plans: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nutpie")
    monkeypatch.setattr(sampling._cores, "available", lambda: [0, 0, 0, 0])
    given = SHORT | {"members_per_chain": 2, "nuts_sampler": "nutpie"}
    found = synk.pymc.sample(model_of(), chains=3, cores=4, **given)
    assert plans()[0] == "3 chains, 2 at once with 2 members each"
    assert found.posterior.sizes == {"chain": 3, "draw": 6, "b_dim_0": 2}
    draws = np.asarray(found.posterior["b"])
    assert len({draws[i, -1, 0] for i in range(3)}) == 3  # other seeds
    assert found.posterior.attrs["inference_library"] == "nutpie"


@pytest.mark.timeout(300)
def test_the_death_of_a_chain_process_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling._cores, "available", lambda: [0, 0, 0, 0])
    real, started = _chain_processes.ChainsProcess.wait, []

    def wait(process: Any, seconds: float) -> bool:
        if process not in started:
            started.append(process)
            if len(started) == 2:
                os.kill(started[0]._child.pid, signal.SIGKILL)
        return real(process, seconds)

    monkeypatch.setattr(_chain_processes.ChainsProcess, "wait", wait)
    given = SHORT | {"members_per_chain": 2, "nuts_sampler": "nutpie"}
    with pytest.raises(synk.SynkhronosError, match=r"that samples .* chains .*SIGKILL"):
        synk.pymc.sample(model_of(), chains=2, cores=4, **given)
    assert len(started) == 2
    for process in started:
        with pytest.raises(ProcessLookupError):
            os.kill(process._child.pid, 0)


@pytest.mark.thorough  # two processes compile
@pytest.mark.timeout(300)
def test_an_error_in_a_chain_process_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling._cores, "available", lambda: [0, 0, 0, 0])
    given = SHORT | {"members_per_chain": 2, "nuts_sampler": "nutpie"}
    with pytest.raises(AttributeError, match="nonsense"):  # of nutpie
        synk.pymc.sample(model_of(), chains=2, cores=4, nuts={"nonsense": 1}, **given)


@pytest.mark.parametrize("freeze", [True, False])
def test_the_model_is_frozen_before_it_gets_its_density(
    freeze: bool, monkeypatch: pytest.MonkeyPatch, nothing_is_cheap: None
) -> None:
    """nutpie's own frozen copy would have PyMC's log-density."""
    seen: list[tuple[int, dict[str, Any]]] = []

    def sampled(**given: Any) -> str:
        assert "logp" in vars(given["model"])
        shared = [v for v in given["model"].data_vars if hasattr(v, "set_value")]
        seen.append((len(shared), given["compile_kwargs"]))
        assert given["initvals"] == {("mu" if freeze else mu): 0.5}
        return "idata"

    monkeypatch.setattr(sampling, "pm_sample", sampled)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Poisson("y", pm.math.exp(mu * pm.Data("x", np.ones(30))), observed=np.arange(30))
    asked = {"mode": "NUMBA", "freeze_model": freeze}
    given = {"chains": 2, "cores": 1, "nuts_sampler": "nutpie", "initvals": {mu: 0.5}}
    assert synk.pymc.sample(model, compile_kwargs=asked, **given) == "idata"
    assert seen == [(0 if freeze else 1, {"mode": "NUMBA", "freeze_model": False})]


def test_a_model_is_read_once(monkeypatch: pytest.MonkeyPatch, nothing_is_cheap: None) -> None:
    from synkhronos.pymc._group import parallel
    from synkhronos.pymc._reading import reading

    real, seen = reading.read, []
    for module in (reading, parallel):
        monkeypatch.setattr(module, "read", lambda *given: seen.append(1) or real(*given))
    given = SHORT | {"chains": 1, "nuts_sampler": "pymc"}
    synk.pymc.sample(model_of(), cores=1, members_per_chain=1, **given)
    assert seen == [1]


def test_other_arguments_reach_pm_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    from synkhronos.pymc._group import parallel

    seen: dict[str, Any] = {}
    monkeypatch.setattr(parallel, "pm_sample", lambda **kwargs: seen.update(kwargs) or "idata")
    model = model_of()
    given = {"random_seed": 3, "idata_kwargs": {"log_likelihood": True}, "progressbar": "split"}
    with model:
        found = synk.pymc.sample(
            40, chains=3, cores=1, members_per_chain=1, target_accept=0.9, **given
        )
    assert found == "idata"
    plan = {"model": model, "chains": 3, "cores": 1, "nuts_sampler": "pymc"}
    assert seen == given | plan | {"target_accept": 0.9, "draws": 40}


@pytest.mark.parametrize("draws", [6, np.int64(6)])
def test_the_number_of_draws_comes_first_as_in_pm_sample(
    draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "pm_sample", lambda **given: given)
    model = model_of()
    for found in (
        synk.pymc.sample(draws, model=model, chains=1, cores=1),
        synk.pymc.sample(model=model, draws=draws, chains=1, cores=1),
    ):
        assert found == {"model": model, "draws": 6, "chains": 1, "cores": 1}


@pytest.mark.parametrize("alone", [True, False])
def test_step_methods_of_the_user_sample_the_model_that_they_were_made_of(
    alone: bool,
    plans: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    nothing_is_cheap: None,
) -> None:
    """They have compiled its log-density; PyMC makes those of other variables of the faster one."""
    monkeypatch.setattr(sampling, "pm_sample", lambda **given: "logp" in vars(given["model"]))
    with model_of() as model:
        if not alone:
            pm.Normal("other")
        step = pm.Metropolis([model["b"]])
    faster = synk.pymc.sample(model, chains=1, cores=1, step=[step])
    assert faster is not alone
    [line] = plans()
    assert ("its step methods have compiled its log-density" in line) is alone


@pytest.mark.thorough
def test_what_idata_holds_is_that_of_pm_sample() -> None:
    model, given = model_of(), SHORT | {"chains": 1, "nuts_sampler": "pymc"}
    kept = {"log_likelihood": True}
    found = synk.pymc.sample(model, members_per_chain=2, idata_kwargs=kept, **given)
    plain = pm.sample(model=model, cores=1, idata_kwargs=kept, **given)
    assert set(found.children) == set(plain.children)
    for name, group in plain.children.items():
        assert set(found[name].data_vars) == set(group.data_vars)
        assert found[name].sizes == group.sizes
    assert found.log_likelihood["y"].shape == (1, 6, 80)


def test_the_death_of_a_member_is_an_error_and_the_model_is_as_before() -> None:
    model, seen = model_of(), []
    with synk.Group(2) as group, group.active():
        [worker] = group.channel.workers

        def callback(trace: Any, draw: Any) -> None:
            if draw.draw_idx == 2:
                seen.append(draw.draw_idx)
                os.kill(worker.pid, signal.SIGKILL)

        with pytest.raises(WorkerDied, match="SIGKILL"):
            synk.pymc.sample(model, chains=1, members_per_chain=2, callback=callback, **SHORT)
    assert seen == [2]
    assert "logp" not in vars(model)


def test_wrong_arguments() -> None:
    model = model_of()
    with pytest.raises(InputError, match="chains=0: give an integer of at least 1"):
        synk.pymc.sample(model, chains=0)
    with pytest.raises(InputTypeError, match="draws=None"):
        synk.pymc.sample(model, draws=None)
    with pytest.raises(InputTypeError, match="row_wise='y': give a list"):
        synk.pymc.sample(model, row_wise="y", **SHORT)
    with pytest.raises(InputTypeError, match="cores='8': give an integer of at least 1"):
        synk.pymc.sample(model, cores="8")
    with pytest.raises(InputTypeError, match=r"write sample\(model\)"):
        synk.pymc.sample(1000)
    with pytest.raises(InputError, match=r"sample\(6, draws=5\): give draws once"), model:
        synk.pymc.sample(6, draws=5)
    with pytest.raises(InputError, match=r"model=\.\.\.\): give the number of draws first"):
        synk.pymc.sample(model, model=model)
    with pytest.raises(InputTypeError, match=r"write sample\(model\)"):
        synk.pymc.sample()
    with (
        synk.pymc.parallel(model, members=1),
        pytest.raises(InputError, match="divided already"),
    ):
        synk.pymc.sample(model)


@pytest.mark.usefixtures("nothing_is_cheap")
def test_threads_may_sample_one_model_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a faster log-density; the model is whole once the first one has returned."""
    model, sampled = model_of(), list[pm.Model]()

    def sample() -> None:
        synk.pymc.sample(model, chains=1, cores=1, nuts_sampler="pymc", **SHORT)

    def beside_another(**given: Any) -> None:
        sampled.append(given["model"])
        if len(sampled) == 1:
            thread = threading.Thread(target=sample)
            thread.start()
            thread.join()
        assert isinstance(given["model"].logp, Divided)

    monkeypatch.setattr(sampling, "pm_sample", beside_another)
    sample()
    first, second = sampled
    assert first is model is not second
    assert "logp" not in vars(model)
    assert sampling._sampled == []


def test_members_per_chain_is_refused_with_fewer_chains_than_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (mpi, _members):
        monkeypatch.setattr(module, "launch", lambda: SimpleNamespace(size=5))
    monkeypatch.setenv("PMIX_RANK", "0")
    with pytest.raises(InputError, match="the members of all nodes work on each chain"):
        synk.pymc.sample(model_of(), members_per_chain=2)


def run_demo(name: str, options: str, picture: Path) -> subprocess.CompletedProcess[str]:
    small = f"{options} --chains 1 --draws 30 --tune 20 --mode FAST_COMPILE"
    done = subprocess.run(
        [sys.executable, str(DEMOS / f"{name}.py"), *small.split(), "--picture", picture],
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.thorough
def test_the_demo_of_a_survey(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (synkhronos[report])")
    picture = tmp_path / "survey.svg"
    done = run_demo("survey", "--rows 3000", picture)
    first, second, *_ = lines = done.stdout.splitlines()
    assert first == "3,000 answers in 2,674 cells"
    assert second.startswith("a gradient: ")
    assert any(line.startswith("effect of women: ") for line in lines)
    assert picture.read_text().count("<path") > 20


@pytest.mark.thorough
def test_the_demo_on_real_data(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (synkhronos[report])")
    picture = tmp_path / "visits.svg"
    done = run_demo("visits", "--persons 30 --members-per-chain 2", picture)
    lines = done.stdout.splitlines()
    assert lines[0] == "118 years of 30 persons, 311 visits"
    assert "synkhronos: 1 chain with 2 members" in done.stderr.splitlines()
    assert [line.split("  ")[1] for line in lines if " to " in line] == [
        "25 %",
        "50 %",
        "95 %",
        "deductible",
    ]
    seen, elpd, _, predicted, _ = lines[-5:]
    assert seen.startswith("mean visits of a row: 2.64, of the model ")
    assert elpd.startswith("elpd by PSIS-LOO: -")
    assert predicted.count(".") == 5  # a number for each plan, and for free care
    assert picture.read_text().count("<path") > 20
