"""`Sampler`: what PyMC's proposed ``pm.sample(sampler=...)`` asks of an object."""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any

import pymc as pm
import pytest

import synkhronos as synk
from synkhronos.pymc._chains import sampler as _sampler
from synkhronos.pymc._chains import sampling

# The arguments of one run that PyMC hands on, in the proposal's first form, and in its later one.
RUN = {
    "draws": 11,
    "tune": None,
    "chains": 3,
    "cores": 1,
    "initvals": None,
    "random_seed": [1, 2],
    "progressbar": False,
    "quiet": True,
    "discard_tuned_samples": False,
    "keep_warning_stat": False,
    "var_names": ["mu"],
    "idata_kwargs": None,
    "compute_convergence_checks": False,
}
FORMS = {"first": {"compile_kwargs": {"mode": "NUMBA"}}, "later": {"blas_cores": 2}}


class Base(ABC):
    """In the place of PyMC's base class of samplers."""

    @abstractmethod
    def sample_from_init(self, *, model: Any = None, **run: Any) -> Any: ...


def funnel(sampler: Any, model: pm.Model, run: dict[str, Any]) -> Any:
    """What PyMC's call does with a sampler: it checks, and hands the run on by keywords."""
    assert isinstance(sampler, Base)
    return sampler.sample_from_init(model=model, **run)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments that PyMC's own sampler gets from ours, and does not sample with."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(sampling, "pm_sample", lambda **given: found.append(given))
    return found


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """Our class, in a process whose PyMC has the base class."""
    module = ModuleType("pymc.sampling.samplers")
    module.Sampler = Base  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    _sampler._register()
    return synk.pymc.Sampler


@pytest.fixture
def model() -> pm.Model:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1, observed=[0.0, 1.0])
    return model


@pytest.mark.parametrize("form", FORMS)
def test_the_run_and_the_configuration_reach_the_sampler(
    form: str, kind: type[Any], model: pm.Model, asked: list[dict[str, Any]]
) -> None:
    run = {**RUN, **FORMS[form]}
    funnel(kind(nuts_sampler="nutpie", nuts={"target_accept": 0.9}), model, run)
    [given] = asked
    assert given["model"] is model
    assert {name: given[name] for name in run} == run
    assert (given["nuts_sampler"], given["nuts"]) == ("nutpie", {"target_accept": 0.9})


def test_a_constructor_is_configuration_only(model: pm.Model, asked: list[dict[str, Any]]) -> None:
    """It needs no model; the model comes with the run, or from the context."""
    sampler = synk.pymc.Sampler(members_per_chain=None, init="adapt_diag")
    with model:
        sampler.sample_from_init(tune=5, quiet=True)
        sampler.sample_from_init(tune=6, quiet=True)
    assert [(given["model"], given["tune"]) for given in asked] == [(model, 5), (model, 6)]


@pytest.mark.filterwarnings("ignore")  # of the few draws
def test_the_settings_of_nuts_are_the_users_own(model: pm.Model) -> None:
    """`pm.sample` writes the target into them, and refuses it twice."""
    nuts = {"max_treedepth": 4}
    sampler = synk.pymc.Sampler(nuts_sampler="pymc", nuts=nuts, target_accept=0.9)
    run = {**RUN, "draws": 3, "tune": 3, "chains": 1, "random_seed": 1}
    trees = [sampler.sample_from_init(model=model, **run) for _ in range(2)]
    assert trees[0].posterior.equals(trees[1].posterior)
    assert nuts == {"max_treedepth": 4}


def test_the_signature_is_the_run_of_pymc() -> None:
    """No argument for others, so that none is lost in silence; each one is one of `pm.sample`."""
    parameters = dict(inspect.signature(synk.pymc.Sampler.sample_from_init).parameters)
    del parameters["self"], parameters["model"]
    assert set(parameters) == set(RUN).union(*FORMS.values())
    assert {p.kind for p in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    of_pymc = inspect.signature(pm.sample).parameters
    assert {n: p.default for n, p in parameters.items()} == {
        n: of_pymc[n].default for n in parameters
    }


def test_a_constructor_takes_no_argument_of_a_run() -> None:
    said = r"Sampler\(draws=\.\.\., model=\.\.\.\): what is of one run is given to pm\.sample"
    with pytest.raises(synk.InputError, match=said):
        synk.pymc.Sampler(draws=1, model=None, keep=True)


def test_a_sampler_in_a_sampler_is_refused(model: pm.Model) -> None:
    with pytest.raises(synk.InputError, match="sample is one itself"):
        synk.pymc.sample(model, sampler=synk.pymc.Sampler())


def test_a_pymc_without_samplers_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymc.sampling.samplers", None)
    _sampler._register()
