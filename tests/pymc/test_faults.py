"""A fault of this package leaves a model plain, with a line. Errors of users are raised."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytest
from comparing import check_equal, evaluated, points

import synkhronos as synk
from synkhronos.pymc._chains import sampling
from synkhronos.pymc._density import faster

SAID = "a faster log-density of y could not be made (RuntimeError: broken). The model has not been"


def model_of(logp: Callable[..., Any] | None = None) -> pm.Model:
    with pm.Model(coords={"obs": range(30)}) as model:
        mu, y = pm.Normal("mu"), np.arange(30.0)
        if logp is None:
            pm.Normal("y", mu, 1, observed=y, dims="obs")
        else:
            pm.CustomDist("y", mu, logp=logp, observed=y, dims="obs")
    return model


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def likelihood(*given: object) -> None:
        raise RuntimeError("broken\nin many lines")

    monkeypatch.setattr(faster, "Likelihood", likelihood)


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> list[pm.Model]:
    """The models that `sample` gives to PyMC, which samples none of them."""
    found: list[pm.Model] = []
    monkeypatch.setattr(sampling, "_CHEAP_SECONDS", 0.0)
    monkeypatch.setattr(sampling, "pm_sample", lambda **given: found.append(given["model"]))
    return found


SHORT: dict[str, Any] = {"chains": 1, "cores": 1, "compute_convergence_checks": False}


@pytest.mark.usefixtures("broken")
def test_a_fault_leaves_a_fast_model_plain(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of()
    copy = synk.pymc.fast(model)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert SAID in record.getMessage()
    assert "please report this" in record.getMessage()
    at = points(model, 1)
    check_equal(evaluated(model, at), evaluated(copy, at))
    with pytest.raises(synk.InputError, match="of y could not be made") as caught:
        synk.pymc.fast(model, "obs")
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.usefixtures("broken")
def test_a_fault_leaves_sampling_plain(
    plans: Callable[[], list[str]], plainly: list[pm.Model]
) -> None:
    model = model_of()
    synk.pymc.sample(model, **SHORT)
    [line] = plans()
    assert line.startswith(f"the model is sampled plainly: {SAID}")
    assert plainly == [model]
    assert "logp" not in vars(model)
    with pytest.raises(synk.InputError, match="of y could not be made"):
        synk.pymc.sample(model, dim="obs", **SHORT)


def mine(value: Any, mu: Any) -> Any:
    raise ZeroDivisionError("of the user")


def test_an_error_of_the_user_is_raised_once(plainly: list[pm.Model]) -> None:
    model = model_of(mine)
    for take in (synk.pymc.fast, lambda model: synk.pymc.sample(model, **SHORT)):
        with pytest.raises(ZeroDivisionError, match="of the user") as caught:
            take(model)
        assert caught.value.__context__ is None
    assert plainly == []


def test_a_wrong_mode_is_no_reason_to_sample_plainly(plainly: list[pm.Model]) -> None:
    with pytest.raises(ValueError, match="nope"):
        synk.pymc.sample(model_of(), mode="nope", members_per_chain=1, **SHORT)
    assert plainly == []
