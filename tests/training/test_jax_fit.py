"""fit where members compute on GPUs: the path is forced, see `start` in conftest.py."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from selection import thorough

import synkhronos as synk
from synkhronos.extensions import updates
from synkhronos.training import fit
from synkhronos.training._run.precision import SetPrecision

pytestmark = [
    pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Skipping Assert:UserWarning"),
]

ROWS = np.random.default_rng(0).normal(size=(50, 3)).astype("f4")


def options(**more: Any) -> tuple[Any, dict[str, Any]]:
    x, w = pt.fmatrix("x"), pytensor.shared(np.zeros(3, "f4"), name="w")
    given = ((x - w) ** 2).mean(), [w], x, ROWS
    adam = functools.partial(updates.adam, learning_rate=0.1)
    return given, {"optimizer": adam, "batch": 20, "epochs": 2, "progress": False, **more}


@pytest.mark.parametrize(
    ("precision", "option"), [("bf16", "bfloat16"), *thorough(("float32", "float32"))]
)
def test_precision_lasts_as_long_as_the_run(
    gpu_pair: synk.Group, precision: str, option: str
) -> None:
    """In all members; parameters stay float32; guards and averages as on cores."""
    import jax

    found = []

    def look(event: Any) -> None:
        if event.kind == "start":
            found.append(gpu_pair.run(SetPrecision(option)))

    given, how = options(mode="JAX", ema=0.9, precision=precision, callbacks=[look])
    run = fit(*given, **how)
    assert found == [option]
    assert jax.config.jax_default_matmul_precision is None
    assert given[1][0].get_value().dtype == np.float32
    given2, how = options(ema=0.9, mode="FAST_COMPILE")
    fit(*given2, **how)
    np.testing.assert_allclose(given[1][0].get_value(), given2[1][0].get_value(), rtol=1e-5)
    assert run.history["rows"] == [50, 50]


@pytest.mark.thorough  # on cores: test_fit.py
def test_nan_rows_are_named(gpu_pair: synk.Group) -> None:
    given, how = options(mode="JAX")
    rows = ROWS.copy()
    rows[33, 1] = np.nan
    with pytest.raises(synk.NonFinite, match="row 33 of the data"):
        fit(*given[:3], rows, **how)
    assert np.isfinite(given[1][0].get_value()).all()


def test_precision_is_for_gpus(group2: synk.Group) -> None:
    given, how = options(mode="FAST_COMPILE")
    for wrong, text in (("bf16", "on cores"), ("fp8", "'float32|\"float32")):
        with pytest.raises(synk.InputError, match=text):
            fit(*given, **how, precision=wrong)
