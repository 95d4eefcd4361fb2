"""Models as Bambi builds them: its fit moves intercepts, and the PyMC model takes no such draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import synkhronos as synk
from synkhronos.pymc._reading.bambi import centres_predictors

ROWS, DRAWS = 12, 30
X = np.random.default_rng(0).normal(10, 1, (ROWS, 2))
FUNCTIONS = [
    synk.pymc.compute_log_likelihood,
    synk.pymc.compute_log_prior,
    synk.pymc.compute_deterministics,
    synk.pymc.sample_posterior_predictive,
    synk.pymc.loo,
]


def built(centred: bool = True, dim: str = "__obs__") -> pm.Model:
    """A regression, as Bambi builds it."""
    with pm.Model(coords={dim: range(ROWS)}) as model:
        slopes = pm.Normal("slopes", shape=2)
        data = X - X.mean(0) if centred else X
        mean = pm.Deterministic("mu", pm.Normal("Intercept") + pm.math.dot(data, slopes), dims=dim)
        pm.Normal("y", mean, 1, observed=np.zeros(ROWS), dims=dim)
    return model


def drawn(attrs: dict[str, Any], *left_out: str) -> xr.DataTree:
    """Draws of the regression."""
    r = np.random.default_rng(1)
    found = {
        "Intercept": (("chain", "draw"), r.normal(size=(2, DRAWS))),
        "slopes": (("chain", "draw", "slopes_dim"), r.normal(size=(2, DRAWS, 2))),
    }
    kept = {name: v for name, v in found.items() if name not in left_out}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(kept, attrs=attrs)})


BY_BAMBI = {"modeling_interface": "bambi"}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_draws_with_a_moved_intercept_are_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(synk.InputError, match=r"moved .* model.compute_log_likelihood\(idata\)"):
        function(drawn(BY_BAMBI), model=built())


def test_draws_without_a_variable_are_refused() -> None:
    """PyMC would draw it from its prior."""
    idata = drawn(BY_BAMBI, "slopes")
    with pytest.raises(synk.InputError, match="without slopes"):
        synk.pymc.sample_posterior_predictive(idata, built(centred=False))


@pytest.mark.parametrize(
    ("model", "attrs"), [(built(), {}), (built(centred=False), BY_BAMBI)], ids=["ours", "unmoved"]
)
def test_draws_of_the_model_are_taken(model: pm.Model, attrs: dict[str, Any]) -> None:
    found = synk.pymc.compute_log_prior(
        drawn(attrs), model=model, compile_kwargs={"mode": "FAST_COMPILE"}, progressbar=False
    )
    assert np.isfinite(found["log_prior"]["Intercept"]).all()


def test_centred_predictors_are_those_of_bambi() -> None:
    assert centres_predictors(built())
    assert centres_predictors(synk.pymc.fast(built()))
    assert not centres_predictors(built(centred=False))
    assert not centres_predictors(built(dim="row"))


@pytest.mark.parametrize("centred", [True, False])
def test_sampling_such_a_model_itself_is_told_of(
    centred: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synkhronos.pymc._chains.sampling.pm_sample", lambda **given: None)
    synk.pymc.sample(built(centred), chains=1, cores=1)
    told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert [text.startswith("Bambi has centred the") for text in told] == [True] * centred
